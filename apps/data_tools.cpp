// `lockstep generate`, `convert` and `bench data`: write data sets and measure their read speed.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <system_error>

#include "apps/cli.hpp"
#include "apps/plan.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/data/writer.hpp"
#include "lockstep/launch/launch.hpp"

namespace lockstep::apps {
namespace {

// Shared by generate and convert.

/// Adds --format and --files.
void add_target_options(cxxopts::Options& options, const char* format_default) {
  auto format = cxxopts::value<std::string>();
  if (*format_default != '\0') format->default_value(format_default);
  options.add_options()("format", "of the files that are written", format, "idx|csv|npy|tfrecord")(
      "files", "files, or pairs of them, for each of training and test set",
      cxxopts::value<std::string>()->default_value("1"), "N");
}

/// The value of --format.
data::Format format_in(const cxxopts::ParseResult& result) {
  if (result.count("format") == 0 && !result["format"].has_default()) {
    throw ConfigError("--format is missing", "say which of idx, csv, npy and tfrecord to write");
  }
  const auto name = result["format"].as<std::string>();
  if (const auto format = data::format_named(name)) return *format;
  throw ConfigError("--format: '" + name + "' is none of idx|csv|npy|tfrecord");
}

/// The value of a flag, at least `least`; nullopt if it was not given and has no default.
std::optional<std::uint64_t> number_in(const cxxopts::ParseResult& result, const std::string& flag,
                                       std::uint64_t least) {
  if (result.count(flag) == 0 && !result[flag].has_default()) return std::nullopt;
  try {
    constexpr std::uint64_t most = 0xFFFFFFFF;  // the maximum count of IDX
    return parse_count(result[flag].as<std::string>(), least, most);
  } catch (const ConfigError& error) {
    throw ConfigError("--" + flag + ": " + error.what());
  }
}

/// The output of `part`, "train" or "test"; as in MNIST, the test set's IDX files are named t10k.
data::Target target_of(const std::filesystem::path& folder, const std::string& part,
                       const cxxopts::ParseResult& result) {
  data::Target target;
  target.folder = folder;
  target.format = format_in(result);
  target.stem = part == "test" && target.format == data::Format::idx ? "t10k" : part;
  constexpr std::uint64_t most_files = 99'999;  // five digits in file names
  target.files = number_in(result, "files", 1).value_or(1);
  if (target.files > most_files) {
    throw ConfigError("--files: " + grouped(target.files) + " is more than " + grouped(most_files));
  }
  return target;
}

/// Creates the folder. Throws ConfigError if it has data files, which would mix with the new ones.
void make_data_folder(const std::filesystem::path& folder) {
  make_folder(folder);
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    const bool of_a_part =
        name.starts_with("train") || name.starts_with("test") || name.starts_with("t10k");
    if (!of_a_part || !data::format_of_file(name)) continue;
    throw ConfigError(entry->path().string() + ": is there already",
                      "choose another folder, or remove it");
  }
  if (error) throw OutputError(folder.string() + ": " + error.message(), "make it readable");
}

/// "FOLDER/train.csv", or "FOLDER/train-00000-of-00016.csv ... (16 files)".
std::string files_text(const data::Target& target) {
  const auto first = data::files_of(target).front().records.string();
  return target.files == 1 ? first : fmt::format("{} ... ({} files)", first, target.files);
}

// lockstep generate

cxxopts::Options generate_options() {
  cxxopts::Options options("lockstep generate",
                           "Writes the built-in data set, drawn digits, as files.");
  options.custom_help("FOLDER [flags]");
  const auto number = [](std::uint64_t otherwise) {
    return cxxopts::value<std::string>()->default_value(std::to_string(otherwise));
  };
  options.add_options()("train-limit", "training images",
                        number(data::synthetic_records(data::Part::train)), "N")(
      "test-limit", "test images", number(data::synthetic_records(data::Part::test)), "N")(
      "seed", "of the drawings; `train --data synthetic` has the default",
      number(data::synthetic_seed), "N")("h,help", "show this");
  add_target_options(options, "idx");
  options.add_options("hidden")("folder", "", cxxopts::value<std::string>()->default_value(""));
  options.positional_help("");
  options.parse_positional({"folder"});
  return options;
}

void write_part(const data::Target& target, data::Part part, std::uint64_t records,
                std::uint64_t seed) {
  const data::RecordShape shape = {
      records, {data::drawing_side, data::drawing_side}, data::Element::byte};
  std::vector<std::uint8_t> pixels(data::drawing_pixels);
  const auto record = [&](std::uint64_t index, std::span<float> features) {
    const data::DrawingId id = {seed, static_cast<std::uint32_t>(part), index};
    data::draw(id, std::span(pixels).first<data::drawing_pixels>());
    std::copy(pixels.begin(), pixels.end(), features.begin());
    return data::drawn_label(id);
  };
  data::write_records(target, shape, record);
  fmt::print("{}: {} images\n", files_text(target), grouped(records));
}

}  // namespace

int generate_command(const std::vector<std::string>& words) {
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0)
    return static_cast<int>(ExitCode::success);  // only rank 0 writes
  auto options = generate_options();
  const auto result = parse_words(options, "lockstep generate", words);
  if (result.count("help") != 0) {
    fmt::print("{}", options.help({""}));
    return static_cast<int>(ExitCode::success);
  }
  const auto folder = result["folder"].as<std::string>();
  if (folder.empty()) throw ConfigError("no folder", "`lockstep generate FOLDER` writes into it");
  const std::uint64_t train = number_in(result, "train-limit", 1).value();
  const std::uint64_t test = number_in(result, "test-limit", 1).value();
  const std::uint64_t seed = number_in(result, "seed", 0).value();
  const data::Target train_files = target_of(folder, "train", result);
  const data::Target test_files = target_of(folder, "test", result);
  make_data_folder(folder);
  write_part(train_files, data::Part::train, train, seed);
  write_part(test_files, data::Part::test, test, seed);
  return static_cast<int>(ExitCode::success);
}

// lockstep convert

namespace {

cxxopts::Options convert_options() {
  cxxopts::Options options("lockstep convert",
                           "Writes a data set again, in another format or into other files: "
                           "contiguous runs of its records, in order.");
  options.custom_help("FROM TO --format F [flags]");
  add_target_options(options, "");
  options.add_options()("from-format", "of the files that are read; auto: the one that is there",
                        cxxopts::value<std::string>()->default_value("auto"),
                        "auto|idx|csv|npy|tfrecord")("train-limit", "the first N training records",
                                                     cxxopts::value<std::string>(), "N")(
      "test-limit", "the first N test records", cxxopts::value<std::string>(), "N")("h,help",
                                                                                    "show this");
  options.add_options("hidden")("from", "", cxxopts::value<std::string>()->default_value(""))(
      "to", "", cxxopts::value<std::string>()->default_value(""));
  options.positional_help("");
  options.parse_positional({"from", "to"});
  return options;
}

std::optional<data::Format> source_format(const cxxopts::ParseResult& result) {
  const auto name = result["from-format"].as<std::string>();
  const auto format = data::format_named(name);
  if (format || name == "auto") return format;
  throw ConfigError("--from-format: '" + name + "' is none of auto|idx|csv|npy|tfrecord");
}

/// The source, with undivided features; any label is valid.
data::DataSet open_source(const cxxopts::ParseResult& result) {
  data::DataSetOptions options;
  options.train_limit = number_in(result, "train-limit", 1);
  options.test_limit = number_in(result, "test-limit", 1);
  options.divide_by = 1.0F;
  options.classes = std::numeric_limits<std::int32_t>::max();
  options.format = source_format(result);
  return data::open_data_set(result["from"].as<std::string>(), options);
}

/// Reads a source in order, about a megabyte at a time.
class Reader {
 public:
  explicit Reader(data::Source& source)
      : source_(source), most_(std::max<std::size_t>(1, most_floats / source.features())) {}

  std::int32_t read(std::uint64_t index, std::span<float> features) {
    if (index >= first_ + labels_.size()) load(index);
    const auto at = static_cast<std::size_t>(index - first_);
    const auto row = std::span(x_).subspan(at * features.size(), features.size());
    std::copy(row.begin(), row.end(), features.begin());
    return labels_[at];
  }

 private:
  static constexpr std::size_t most_floats = std::size_t{1} << 18;

  void load(std::uint64_t first) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(most_, source_.records() - first));
    ids_.resize(count);
    std::iota(ids_.begin(), ids_.end(), first);
    x_.resize(count * source_.features());
    labels_.resize(count);
    source_.read(ids_, x_, labels_);
    first_ = first;
  }

  data::Source& source_;
  std::size_t most_;
  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> ids_;
  std::vector<float> x_;
  std::vector<std::int32_t> labels_;
};

data::FinishedFiles convert_part(data::Source& source, const data::Target& target) {
  Reader reader(source);
  const data::RecordShape shape = {source.records(), source.shape(), source.element()};
  return data::finish_records(target, shape, [&](std::uint64_t index, std::span<float> features) {
    return reader.read(index, features);
  });
}

/// Atomic: files are renamed to their final names once both parts are complete.
void convert_both(const data::DataSet& from, const data::Target& train, const data::Target& test) {
  auto training = convert_part(*from.train, train);
  auto testing = convert_part(*from.test, test);
  training.publish();
  testing.publish();
  fmt::print("{}: {}\n", files_text(train), counted(from.train->records(), "record"));
  fmt::print("{}: {}\n", files_text(test), counted(from.test->records(), "record"));
}

/// CSV has no byte type, so `divide-by auto` does not divide its values.
void print_divisor(data::Element from, data::Format to) {
  const bool was_bytes = from == data::Element::byte;
  if (was_bytes && to == data::Format::csv) {
    fmt::print("CSV holds numbers: train with --divide-by 255 to have these bytes in [0, 1]\n");
  }
  if (!was_bytes && to == data::Format::idx) {
    fmt::print("IDX holds bytes: train with --divide-by 1 to have these numbers as they were\n");
  }
}

}  // namespace

int convert_command(const std::vector<std::string>& words) {
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0)
    return static_cast<int>(ExitCode::success);  // only rank 0 writes
  auto options = convert_options();
  const auto result = parse_words(options, "lockstep convert", words);
  if (result.count("help") != 0) {
    fmt::print("{}", options.help({""}));
    return static_cast<int>(ExitCode::success);
  }
  const auto to = result["to"].as<std::string>();
  if (to.empty()) {
    throw ConfigError("no folders",
                      "`lockstep convert FROM TO --format F` writes FROM's records "
                      "into the folder TO");
  }
  const data::Target train = target_of(to, "train", result);
  const data::Target test = target_of(to, "test", result);
  const data::DataSet from = open_source(result);
  data::require_files(train, from.train->records());
  data::require_files(test, from.test->records());
  make_data_folder(to);
  convert_both(from, train, test);
  print_divisor(from.train->element(), train.format);
  return static_cast<int>(ExitCode::success);
}

// lockstep bench data

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t most_seconds = 86'400;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The amount that one rank read, and its duration.
struct Reading {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  double open_seconds = 0;
  double seconds = 0;
};

/// One rank's source and plan, and the time to open them.
struct Bench {
  std::unique_ptr<data::Source> source;
  std::optional<TrainingPlan> planned;
  double open_seconds = 0;
};

Bench make_bench(const RunConfig& config, comm::Communicator& comm) {
  Bench bench;
  comm::together(comm, [&] {
    const auto begin = Clock::now();
    bench.source = data::open_data_part(config.data, data::Part::train,
                                        {.train_limit = config.train_limit,
                                         .divide_by = config.divide_by,
                                         .classes = static_cast<int>(config.classes),
                                         .format = data::format_named(config.format)});
    bench.open_seconds = seconds_since(begin);
  });
  comm::require_equal(comm, "the data of ranks", {{"training set", bench.source->identity()}},
                      "give all hosts the same files");
  comm::together(comm, [&] {
    bench.planned = training_plan(config, bench.source->records(), bench.source->file_records(),
                                  static_cast<std::uint64_t>(comm.size()));
  });
  if (!bench.planned->warning.empty() && comm.rank() == 0) {
    launch::print_warning(bench.planned->warning);
  }
  return bench;
}

/// Reads one epoch, then more until `seconds` have passed. Ranks start together.
Reading read(Bench& bench, std::uint64_t seconds, comm::Communicator& comm) {
  const data::Plan& plan = bench.planned->plan;
  Reading reading{.open_seconds = bench.open_seconds};
  comm.all_agree(true);
  comm::together(comm, [&] {
    data::BatchReader reader(*bench.source, plan, comm.rank());
    std::vector<float> x(plan.largest_piece() * reader.features());
    const auto begin = Clock::now();
    for (std::uint64_t epoch = 0; epoch == 0 || reading.seconds < static_cast<double>(seconds);
         ++epoch) {
      for (std::uint64_t step = 0; step < plan.steps(); ++step) {
        const std::size_t rows = reader.piece(step).size();
        reader.read(epoch, step, std::span(x).first(rows * reader.features()));
        reading.records += rows;
      }
      reading.seconds = seconds_since(begin);
    }
    reading.bytes = bench.source->bytes_read();
  });
  return reading;
}

/// The readings of all ranks, in rank order. Collective.
std::vector<Reading> gather(const Reading& mine, comm::Communicator& comm) {
  constexpr std::size_t figures = 4;
  std::vector<double> all(figures * static_cast<std::size_t>(comm.size()));
  const auto at = figures * static_cast<std::size_t>(comm.rank());
  all[at] = static_cast<double>(mine.records);
  all[at + 1] = static_cast<double>(mine.bytes);
  all[at + 2] = mine.open_seconds;
  all[at + 3] = mine.seconds;
  comm.all_gather(std::span(all));
  std::vector<Reading> readings;
  for (std::size_t i = 0; i < all.size(); i += figures) {
    readings.push_back({static_cast<std::uint64_t>(all[i]), static_cast<std::uint64_t>(all[i + 1]),
                        all[i + 2], all[i + 3]});
  }
  return readings;
}

double per_second(std::uint64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

/// Sums over all ranks, with the slowest rank's times.
Reading together(const std::vector<Reading>& readings) {
  Reading sum;
  for (const Reading& one : readings) {
    sum.records += one.records;
    sum.bytes += one.bytes;
    sum.open_seconds = std::max(sum.open_seconds, one.open_seconds);
    sum.seconds = std::max(sum.seconds, one.seconds);
  }
  return sum;
}

nlohmann::ordered_json to_json(const Reading& reading) {
  return {{"records", reading.records},
          {"bytes", reading.bytes},
          {"open_seconds", reading.open_seconds},
          {"seconds", reading.seconds},
          {"records_per_second", per_second(reading.records, reading.seconds)},
          {"bytes_per_second", per_second(reading.bytes, reading.seconds)}};
}

void print_table(const std::vector<Reading>& readings) {
  fmt::print("\n{:<8} {:>12} {:>12} {:>10} {:>10} {:>14} {:>12}\n", "", "records", "bytes", "open",
             "read", "records/s", "bytes/s");
  const auto row = [](const std::string& name, const Reading& one) {
    fmt::print("{:<8} {:>12} {:>12} {:>8.3f} s {:>8.3f} s {:>14} {:>10}/s\n", name,
               grouped(one.records), bytes_text(static_cast<double>(one.bytes)), one.open_seconds,
               one.seconds,
               grouped(static_cast<std::uint64_t>(per_second(one.records, one.seconds))),
               bytes_text(per_second(one.bytes, one.seconds)));
  };
  for (std::size_t i = 0; i < readings.size(); ++i) row(fmt::format("rank {}", i), readings[i]);
  if (readings.size() > 1) row("all", together(readings));
}

std::uint64_t seconds_of(const Arguments& arguments) {
  if (!arguments.given("seconds")) return 0;
  try {
    return parse_count(arguments.value("seconds", ""), 1, most_seconds);
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("--seconds: ") + error.what());
  }
}

void bench_on(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm) {
  std::uint64_t seconds = 0;
  comm::together(comm, [&] { seconds = seconds_of(arguments); });
  Bench bench = make_bench(config, comm);
  const auto readings = gather(read(bench, seconds, comm), comm);
  if (comm.rank() != 0) return;
  if (arguments.given("json")) {
    auto json = to_json(together(readings));
    json["ranks"] = nlohmann::ordered_json::array();
    for (const Reading& one : readings) json["ranks"].push_back(to_json(one));
    fmt::print("{}\n", json.dump());
    return;
  }
  const auto& plan = bench.planned->plan;
  fmt::print("{}: {} of {} features, read in steps of {} with shuffle {}\n", config.data,
             counted(plan.options().records, "record"), grouped(bench.source->features()),
             grouped(plan.options().batch_size), config.shuffle);
  print_table(readings);
}

Syntax bench_data_syntax() {
  Syntax syntax;
  syntax.command = "lockstep bench data";
  syntax.does = "Reads the training set as `lockstep train` would, and prints how fast that was.";
  syntax.usage = "[CONFIG.toml] [flags]   (flags override the file, the file the defaults)";
  syntax.operand = "run file";
  syntax.run_file = true;
  syntax.settings = {"data",       "format",         "train-limit", "classes", "divide-by",
                     "batch-size", "drop-remainder", "seed",        "shuffle", "shard-policy",
                     "rebatch",    "leaf",           "backend",     "ranks"};
  syntax.flags = {{"seconds", "N", "read further epochs until N seconds are over [one epoch]"},
                  {"json", "", "print one line of JSON instead"}};
  return syntax;
}

}  // namespace

int bench_command(const std::vector<std::string>& words) {
  const std::string part = words.empty() ? "" : words[0];
  if (part == "data") {
    return run_on_ranks(bench_data_syntax(), {words.begin() + 1, words.end()}, bench_on);
  }
  if (part == "--help" || part == "-h") {
    fmt::print(
        "Measures one part of Lockstep by itself.\n\nusage: lockstep bench data [flags]\n\n"
        "  data       reading the training set, without training\n\n"
        "`lockstep bench data --help` lists its flags.\n");
    return static_cast<int>(ExitCode::success);
  }
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0)
    return static_cast<int>(ExitCode::success);  // only rank 0 prints the error
  throw ConfigError(part.empty() ? "nothing to measure" : "'" + part + "' cannot be measured",
                    "`lockstep bench data` measures how fast data is read");
}

}  // namespace lockstep::apps

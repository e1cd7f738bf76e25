#include "apps/convert.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "apps/cli.hpp"
#include "apps/writing.hpp"
#include "collectives/launcher.hpp"
#include "data/source.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
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

/// Undivided records with any label.
data::DataSet open_source(const cxxopts::ParseResult& result) {
  data::DataSetOptions options;
  options.train_limit = number_in(result, "train-limit", 1);
  options.test_limit = number_in(result, "test-limit", 1);
  options.divide_by = 1.0F;
  options.classes = std::numeric_limits<std::int32_t>::max();
  options.format = source_format(result);
  return data::open_data_set(result["from"].as<std::string>(), options);
}

/// Reads a source from front to back, about a megabyte at a time.
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

/// All or nothing: no file of one part takes its name before those of the other are complete.
void convert_both(const data::DataSet& from, const data::Target& train, const data::Target& test) {
  auto training = convert_part(*from.train, train);
  auto testing = convert_part(*from.test, test);
  training.publish();
  testing.publish();
  fmt::print("{}: {}\n", files_text(train), counted(from.train->records(), "record"));
  fmt::print("{}: {}\n", files_text(test), counted(from.test->records(), "record"));
}

/// CSV has no type for bytes, so that `divide-by auto` divides what came from them by nothing.
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
  if (launch && launch->rank != 0) return static_cast<int>(ExitCode::success);  // one writes
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
  if (!result.unmatched().empty()) throw ConfigError("unexpected '" + result.unmatched()[0] + "'");
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

}  // namespace lockstep::apps

// `lockstep generate` and `convert`: write data sets.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "apps/cli.hpp"
#include "apps/library_options.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/data/writer.hpp"

namespace lockstep::apps {
namespace {

// Shared by generate and convert.

/// The flags --format and --files.
std::vector<Flag> target_flags(const std::string& default_format) {
  return {{"format", "idx|csv|npy|tfrecord", "of the files that are written", default_format},
          {"files", "N", "files, or pairs of them, for each of training and test set", "1"}};
}

constexpr std::uint64_t max_records = 0xFFFFFFFF;  // the maximum count of IDX

/// The value of --format.
data::Format format_in(const Arguments& arguments) {
  const auto name = arguments.value("format");
  if (name.empty()) {
    throw ConfigError("--format is missing", "say which of idx, csv, npy and tfrecord to write");
  }
  const auto format = data::format_named(name);
  if (format && data::is_writable(*format)) return *format;
  throw ConfigError("--format: '" + name + "' is none of idx|csv|npy|tfrecord", "use one of them");
}

/// The output of `part`, "train" or "test"; as in MNIST, the test set's IDX files are named t10k.
data::Target target_of(const std::filesystem::path& folder, const std::string& part,
                       const Arguments& arguments) {
  data::Target target;
  target.folder = folder;
  target.format = format_in(arguments);
  target.stem = part == "test" && target.format == data::Format::idx ? "t10k" : part;
  constexpr std::uint64_t max_files = 99'999;  // five digits in file names
  target.files = arguments.number("files", 1, max_files).value();
  return target;
}

/// The folder of the data that is written. Created, unless it exists; the destructor removes one
/// that was new if it is still empty. Throws ConfigError if it has data files, which would mix with
/// the new ones.
class DataFolder {
 public:
  explicit DataFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    is_new_ = !std::filesystem::exists(folder_, error);
    make_folder(folder_);
    for (const auto& entry : list_folder(folder_, error)) {
      if (!data::part_of_file(entry.path())) continue;
      throw ConfigError(entry.path().string() + ": already exists",
                        "choose another folder, or remove it");
    }
    if (error) throw OutputError(folder_.string() + ": " + error.message(), "make it readable");
  }
  ~DataFolder() {
    std::error_code ignored;  // it is not empty, if all went well
    if (is_new_) std::filesystem::remove(folder_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

 private:
  std::filesystem::path folder_;
  bool is_new_ = false;
};

/// "FOLDER/train.csv", or "FOLDER/train-00000-of-00016.csv ... (16 files)".
std::string files_text(const data::Target& target) {
  const auto first = data::files_of(target).front().records;
  return target.files == 1 ? first : fmt::format("{} ... ({} files)", first, target.files);
}

// lockstep generate

}  // namespace

Syntax generate_syntax() {
  Syntax syntax;
  syntax.command = "lockstep generate";
  syntax.does = "Writes a built-in data set as files.";
  syntax.usage = "FOLDER [flags]";
  syntax.operand = "folder";
  const std::string names = joined(data::drawn_sets(), "|", &data::DrawnSet::name);
  syntax.flags = target_flags("idx");
  syntax.flags.insert(syntax.flags.end(),
                      {{"data", names, "digits, or objects in colour", data::drawn_digits.name},
                       {"train-limit", "N", "training images [as many as `train` has]"},
                       {"test-limit", "N", "test images [as many as `train` has]"},
                       {"seed", "N", "of the drawings; `train --data synthetic` has the default",
                        std::to_string(data::synthetic_seed)}});
  return syntax;
}

namespace {

const data::DrawnSet& drawn_set_in(const Arguments& arguments) {
  const auto name = arguments.value("data");
  const data::DrawnSet* const set = data::drawn_set(name);
  if (set != nullptr) return *set;
  throw ConfigError("--data: '" + name + "' is not built in",
                    "`lockstep convert` writes other data in another format");
}

data::FinishedFiles draw_part(const data::DrawnSet& set, const data::Target& target,
                              data::Part part, std::uint64_t records, std::uint64_t seed) {
  const data::RecordShape shape = {records, set.shape(), data::Element::byte};
  std::vector<std::uint8_t> pixels(set.features());
  const auto record = [&](std::uint64_t index, std::span<float> features) {
    const data::DrawingId id = {seed, static_cast<std::uint32_t>(part), index};
    set.draw(id, pixels);
    std::copy(pixels.begin(), pixels.end(), features.begin());
    return set.label_of(id);
  };
  return data::finish_records(target, shape, record);
}

int generate(const Arguments& arguments) {
  const auto folder = arguments.operand();
  if (folder.empty()) throw ConfigError("no folder", "`lockstep generate FOLDER` writes into it");
  const data::DrawnSet& set = drawn_set_in(arguments);
  const auto train = arguments.number("train-limit", 1, max_records).value_or(set.train_records);
  const auto test = arguments.number("test-limit", 1, max_records).value_or(set.test_records);
  const std::uint64_t seed = arguments.number("seed", 0, max_records).value();
  const data::Target train_files = target_of(folder, "train", arguments);
  const data::Target test_files = target_of(folder, "test", arguments);
  data::require_files(train_files, train);
  data::require_files(test_files, test);
  const DataFolder made(folder);
  auto training = draw_part(set, train_files, data::Part::train, train, seed);
  auto testing = draw_part(set, test_files, data::Part::test, test, seed);
  training.publish();
  testing.publish();
  fmt::print("{}: {} images\n", files_text(train_files), grouped(train));
  fmt::print("{}: {} images\n", files_text(test_files), grouped(test));
  return static_cast<int>(ExitCode::success);
}

// lockstep convert

}  // namespace

Syntax convert_syntax() {
  Syntax syntax;
  syntax.command = "lockstep convert";
  syntax.does =
      "Writes a data set again, in another format or into other files: contiguous runs of its "
      "records, in order. Numbers are those that training reads, in float32.";
  syntax.usage = "FROM TO --format F [flags]";
  syntax.operand = "folder";
  syntax.operands = 2;
  syntax.flags = target_flags("");
  syntax.flags.insert(syntax.flags.end(),
                      {{"from-format", "auto|idx|csv|npy|tfrecord|cifar|picture",
                        "of the files that are read; auto: the one that is there", "auto"},
                       {"image-size", "auto|N|ROWSxCOLUMNS",
                        "pictures are cropped and scaled to this size", "auto"},
                       {"train-limit", "N", "the first N training records"},
                       {"test-limit", "N", "the first N test records"}});
  return syntax;
}

namespace {

std::optional<data::Format> source_format(const Arguments& arguments) {
  const auto name = arguments.value("from-format");
  const auto format = data::format_named(name);
  if (format || name == "auto") return format;
  throw ConfigError(
      "--from-format: '" + name + "' is none of auto|idx|csv|npy|tfrecord|cifar|picture",
      "use one of them");
}

/// A message about the format of the source, which is --from-format here.
std::string of_source(std::string text) {
  const std::string name = "`format";
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    text.replace(at, name.size(), "`from_format");
  }
  return text;
}

/// The source, with undivided features; any label is valid.
data::DataSet open_source(const Arguments& arguments) {
  data::DataSetOptions options;
  options.train_limit = arguments.number("train-limit", 1, max_records);
  options.test_limit = arguments.number("test-limit", 1, max_records);
  options.divide_by = 1.0F;
  options.classes = std::numeric_limits<std::int32_t>::max();
  options.format = source_format(arguments);
  try {
    options.pictures.size = data::parse_image_size(arguments.value("image-size"));
  } catch (const ConfigError& error) {
    throw ConfigError(std::string("--image-size: ") + error.what());
  }
  RunConfig given;
  given.data = arguments.operand();
  given.image_size = arguments.value("image-size");
  try {
    data::DataSet set = data::open_data_set(given.data, options);
    require_used(given, *set.train);
    return set;
  } catch (const Error& error) {
    if (error.remedy().find("`test_split=") != std::string::npos) {
      throw DataError(error.problem(), "name a folder with files called train* and test*");
    }
    throw Error(error.code(), of_source(error.problem()), of_source(error.remedy()));
  }
}

/// Reads a source in order, about a megabyte at a time.
class Reader {
 public:
  explicit Reader(data::Source& source)
      : source_(source), max_(std::max<std::size_t>(1, max_floats / source.features())) {}

  std::int32_t read(std::uint64_t index, std::span<float> features) {
    if (index >= first_ + labels_.size()) load(index);
    const auto at = static_cast<std::size_t>(index - first_);
    const auto row = std::span(x_).subspan(at * features.size(), features.size());
    std::copy(row.begin(), row.end(), features.begin());
    return labels_[at];
  }

 private:
  static constexpr std::size_t max_floats = std::size_t{1} << 18;

  void load(std::uint64_t first) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(max_, source_.records() - first));
    ids_.resize(count);
    std::iota(ids_.begin(), ids_.end(), first);
    x_.resize(count * source_.features());
    labels_.resize(count);
    source_.read(ids_, x_, labels_);
    first_ = first;
  }

  data::Source& source_;
  std::size_t max_;
  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> ids_;
  std::vector<float> x_;
  std::vector<std::int32_t> labels_;
};

data::FinishedFiles convert_part(data::Source& source, const data::Target& target) {
  Reader reader(source);
  const data::RecordShape shape = {source.records(), source.shape(), source.element(),
                                   source.columns()};
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

/// Prints what the format does not keep. CSV has no byte type, so `divide-by auto` does not divide
/// its values.
void print_what_is_lost(const data::Source& source, data::Format to) {
  const bool was_bytes = source.element() == data::Element::byte;
  if (source.shape().size() > 1 && (to == data::Format::csv || to == data::Format::tfrecord)) {
    fmt::print("{} keeps no rows and columns: layers of images need IDX or NPY\n",
               to == data::Format::csv ? "CSV" : "TFRecord");
  }
  if (was_bytes && to == data::Format::csv) {
    fmt::print("CSV holds numbers: train with --divide-by 255 to have these bytes in [0, 1]\n");
  }
  if (!source.columns().empty() && to != data::Format::csv) {
    fmt::print("names of columns are kept by CSV alone: others train on features by their order\n");
  }
  if (const auto pictures = source.pictures()) {
    std::string names;
    for (std::size_t i = 0; i < pictures->classes.size(); ++i) {
      names += fmt::format("{}{} {}", i == 0 ? "" : ", ", i, in_quotes(pictures->classes[i]));
    }
    fmt::print("labels: {}\n", names);
  }
  if (!was_bytes && to == data::Format::idx) {
    fmt::print("IDX holds bytes: train with --divide-by 1 to have these numbers as they were\n");
  }
}

int convert(const Arguments& arguments) {
  if (arguments.operands.size() < 2) {
    throw ConfigError("no folders",
                      "`lockstep convert FROM TO --format F` writes FROM's records "
                      "into the folder TO");
  }
  const std::string& to = arguments.operands[1];
  const data::Target train = target_of(to, "train", arguments);
  const data::Target test = target_of(to, "test", arguments);
  const data::DataSet from = open_source(arguments);
  data::require_files(train, from.train->records());
  data::require_files(test, from.test->records());
  const DataFolder made(to);
  convert_both(from, train, test);
  print_what_is_lost(*from.train, train.format);
  return static_cast<int>(ExitCode::success);
}

}  // namespace

int generate_command(const std::vector<std::string>& words) {
  return run_on_rank_0(generate_syntax(), words, generate);
}

int convert_command(const std::vector<std::string>& words) {
  return run_on_rank_0(convert_syntax(), words, convert);
}

}  // namespace lockstep::apps

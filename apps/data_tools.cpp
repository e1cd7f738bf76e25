// `lockstep generate` and `convert`: write data sets.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/cli.hpp"
#include "apps/library_options.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "apps/table_texts.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/stored_source.hpp"
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
      "records, in order. Numbers are written in float32, neither divided nor standardized "
      "(--standardize true: standardized). Of a table, each word becomes a feature of 0 and 1, and "
      "each label the number of its class; to --format csv it is copied as text, but for "
      "--ignore-columns.";
  syntax.usage = "FROM TO --format F [flags]";
  syntax.example = "lockstep convert iris.csv iris --format npy --label-column species";
  syntax.operand = "path";
  syntax.operands = 2;
  syntax.settings = {"classes", "train-limit", "test-limit", "test-split", "seed"};
  syntax.take_table_settings();
  syntax.other_help = {{"seed", "of the test split"},
                       {"standardize",
                        "of a table: true: write numbers standardized; "
                        "auto: as they are in the table"}};
  syntax.flags = target_flags("");
  syntax.flags.push_back({"from-format", "auto|idx|csv|npy|tfrecord|cifar|picture",
                          "of the files that are read; auto: the one that is there", "auto"});
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

/// A message about the source, which is an operand here, with --from-format.
std::string of_source(std::string text) {
  for (const auto& [name, here] : {std::pair{"`format", "`from_format"}, {"`data=", "`"}}) {
    for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
      text.replace(at, std::string_view(name).size(), here);
    }
  }
  return text;
}

/// What is converted.
struct Origin {
  RunConfig config;
  data::DataSetOptions options;
  data::FolderFiles files;  ///< none of built-in data
  data::DataSet set;

  /// The table of which records are copied as texts; null: others, or records that are converted.
  std::shared_ptr<const data::TableSchema> copied_to(data::Format to) const {
    return to == data::Format::csv ? set.train->table() : nullptr;
  }
};

/// Opens the source, with undivided features. Where it is no table, any label is valid.
Origin open_origin(const Arguments& arguments) {
  Origin from;
  auto& [config, options, files, set] = from;
  config = config_over(RunConfig(), arguments);
  config.data = arguments.operand();
  require_split_for_seed(arguments, config);
  options = data_options(config);
  options.format = source_format(arguments);
  options.may_lack_test = true;
  if (config.standardize != "true") options.divide_by = 1.0F;
  try {
    if (data::drawn_set(config.data) == nullptr) {
      files = data::find_files(config.data, {.format = options.format, .may_lack_test = true});
    }
    if (!config.classes && files.format != data::Format::csv) {
      options.classes = std::numeric_limits<std::int32_t>::max();
    }
    set = data::open_data_set(config.data, options);
    require_used(config, *set.train);
  } catch (const Error& error) {
    throw Error(error.code(), of_source(error.problem()), of_source(error.remedy()));
  }
  if (set.test == nullptr && config.test_limit) {
    throw ConfigError("--test-limit: " + config.data + " has no test set",
                      "leave it out, or take one from the training records: `test_split=0.2`");
  }
  return from;
}

/// Throws ConfigError if `to` cannot hold what a table has, or for a setting that has no effect on
/// one that is copied.
void require_fitting(const Origin& from, data::Format to) {
  const auto table = from.set.train->table();
  if (table == nullptr) return;
  const std::string& data = from.config.data;
  if (from.copied_to(to) != nullptr) {
    const std::string changed = from.config.standardize == "true" ? "standardize=true"
                                : from.config.missing == "zero"   ? "missing=zero"
                                                                  : "";
    if (changed.empty()) return;
    throw ConfigError("`" + changed + "` with `format=csv`: " + data + " is copied as it is",
                      "leave it out, and give it to `lockstep train`");
  }
  constexpr std::array titles = {"IDX", "CSV", "NPY", "TFRecord"};
  const auto refuse = [&](const std::string& problem, const std::string& other = "") {
    throw ConfigError(data + ": " + titles.at(static_cast<std::size_t>(to)) + problem,
                      "write a table: `format=csv`" + other);
  };
  const std::string names = listed(table->label_names());
  if (table->is_regression()) {
    refuse(" holds labels, not numbers to predict: " + names,
           table->targets.size() == 1 ? "; or, if these are classes, `task=classification`" : "");
  }
  if (table->is_multi_label()) refuse(" holds one label a record, not several: " + names);
  if (table->weight.empty()) return;
  refuse(" holds no weights of records: " + in_quotes(table->weight),
         "; or leave them out: `ignore_columns=" + data::csv_field(table->weight) +
             "` in place of `weight_column`");
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
  const data::RecordShape shape = {source.records(), source.shape(), source.element()};
  return data::finish_records(target, shape, [&](std::uint64_t index, std::span<float> features) {
    return reader.read(index, features);
  });
}

/// The files of a table, without the columns that are ignored.
TableTexts texts_of(const std::vector<data::RecordFiles>& files,
                    const data::TableOptions& options) {
  std::vector<std::filesystem::path> paths;
  paths.reserve(files.size());
  for (const auto& file : files) paths.emplace_back(file.records);
  TableTexts texts(std::move(paths), options.has_header, options.separator);
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < texts.columns().size(); ++i) {
    if (!contains(options.ignored, texts.columns()[i])) kept.push_back(i);
  }
  texts.choose(std::move(kept));
  return texts;
}

/// Copies the records of `part`, which are in the table in `files`.
data::FinishedFiles copy_part(const data::Source& part, const std::vector<data::RecordFiles>& files,
                              const data::TableOptions& table, const data::Target& target) {
  TableTexts texts = texts_of(files, table);
  const auto* const split = dynamic_cast<const data::SubsetSource*>(&part);  // null: not split
  std::vector<std::string> header;
  if (table.has_header) header = texts.chosen_names();
  std::uint64_t read = 0;
  return data::finish_texts(
      target, part.records(), header, [&](std::uint64_t index) -> const std::vector<std::string>& {
        const std::uint64_t wanted = split == nullptr ? index : split->ids()[index];  // ascends
        const std::vector<std::string>* fields = nullptr;
        for (; read <= wanted; ++read) {
          fields = texts.next();
          if (fields != nullptr) continue;
          throw DataError(files.back().records + ": ends earlier than before",
                          "leave data files alone while they are in use");
        }
        return *fields;
      });
}

/// Copies both parts of a table.
std::vector<data::FinishedFiles> copy_parts(const Origin& from, const data::Target& train,
                                            const data::Target& test) {
  const data::TableOptions& table = *from.options.table;
  std::vector<data::FinishedFiles> parts;
  parts.push_back(copy_part(*from.set.train, from.files.train, table, train));
  if (from.set.test == nullptr) return parts;
  const auto& files = from.options.test_split ? from.files.train : from.files.test;
  parts.push_back(copy_part(*from.set.test, files, table, test));
  return parts;
}

/// Renames files to their final names, one by one, only when both parts are complete.
void convert_both(const Origin& from, const data::Target& train, const data::Target& test) {
  std::vector<data::FinishedFiles> parts;
  if (from.copied_to(train.format) != nullptr) {
    parts = copy_parts(from, train, test);
  } else {
    parts.push_back(convert_part(*from.set.train, train));
    if (from.set.test != nullptr) parts.push_back(convert_part(*from.set.test, test));
  }
  for (data::FinishedFiles& part : parts) part.publish();
  fmt::print("{}: {}\n", files_text(train), counted(from.set.train->records(), "record"));
  if (from.set.test != nullptr) {
    fmt::print("{}: {}\n", files_text(test), counted(from.set.test->records(), "record"));
  } else {
    fmt::print("no test set: --test-split 0.2 takes one from these records, here or in training\n");
  }
}

/// Prints the names of classes that are not their numbers, and whether training has to be told how
/// many there are.
void print_classes(const data::DataSet& set, const std::vector<std::string>& classes) {
  std::string names;
  bool are_numbers = true;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    are_numbers = are_numbers && classes[i] == std::to_string(i);
    names += fmt::format("{}{} {}", i == 0 ? "" : ", ", i, in_quotes(classes[i]));
  }
  if (!are_numbers) fmt::print("labels: {}\n", names);
  auto counts = data::label_counts(*set.train);
  counts.resize(classes.size());
  if (set.test != nullptr) {
    const auto there = data::label_counts(*set.test);
    std::transform(there.begin(), there.end(), counts.begin(), counts.begin(), std::plus<>());
  }
  if (!contains(counts, 0U)) return;
  fmt::print("some classes have no record here: train with --classes {}\n", classes.size());
}

/// Prints what becomes of a table that is no table any more.
void print_of_table(const Origin& from, const data::TableSchema& table, data::Format to) {
  print_classes(from.set, table.classes);
  for (const auto& [name, reason] : table.left_out) {
    fmt::print("{} left out ({})\n", in_quotes(name), reason);
  }
  const bool has_numbers = std::ranges::any_of(table.columns, &std::vector<std::string>::empty,
                                               &data::TableColumn::categories);
  if (has_numbers && from.config.standardize == "auto" && to != data::Format::idx) {
    fmt::print(
        "numbers are written as they are in the table: --standardize true writes them "
        "standardized\n");
  }
}

/// Prints what the format does not keep. CSV has no byte type, so `divide-by auto` does not divide
/// its values.
void print_what_is_lost(const Origin& from, data::Format to) {
  if (from.copied_to(to) != nullptr) return;
  const data::Source& source = *from.set.train;
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
  if (const auto pictures = source.pictures()) print_classes(from.set, pictures->classes);
  if (const auto table = source.table()) print_of_table(from, *table, to);
  if (!was_bytes && to == data::Format::idx) {
    fmt::print("IDX holds bytes: train with --divide-by 1 to have these numbers as they were\n");
  }
}

int convert(const Arguments& arguments) {
  if (arguments.operands.size() < 2) {
    throw ConfigError(arguments.operands.empty()
                          ? "FROM, a file or folder, and TO, a folder, are missing"
                          : "TO, the folder to write, is missing",
                      "`lockstep convert FROM TO --format F` writes FROM's records "
                      "into the folder TO");
  }
  const std::string& to = arguments.operands[1];
  const data::Target train = target_of(to, "train", arguments);
  const data::Target test = target_of(to, "test", arguments);
  const Origin from = open_origin(arguments);
  require_fitting(from, train.format);
  data::require_files(train, from.set.train->records());
  if (from.set.test != nullptr) data::require_files(test, from.set.test->records());
  if (from.copied_to(train.format) == nullptr) print_warnings(from.set);
  const DataFolder made(to);
  convert_both(from, train, test);
  print_what_is_lost(from, train.format);
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

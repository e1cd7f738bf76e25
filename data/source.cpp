#include "lockstep/data/source.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/cifar.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/idx.hpp"
#include "lockstep/data/npy.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/data/tfrecord.hpp"

namespace lockstep::data {

// File formats.

namespace {

bool is_pair_name(std::string_view name) {
  return name.find("images") != name.npos || name.find("labels") != name.npos;
}

/// True for the ending of other files: such a name is not IDX.
bool has_foreign_ending(std::string_view name) {
  constexpr std::array<std::string_view, 21> endings{
      ".npy", ".npz",    ".csv",     ".tsv", ".txt", ".json", ".tfrecord",
      ".md5", ".sha256", ".part",    ".png", ".jpg", ".zip",  ".jpeg",
      ".tar", ".tgz",    ".parquet", ".pkl", ".mat", ".h5",   ".hdf5"};
  return std::any_of(endings.begin(), endings.end(),
                     [name](std::string_view ending) { return name.ends_with(ending); });
}

/// train.tfrecord, train-00000-of-00005.tfrecords, train.tfrecord-00000-of-00005
bool is_tfrecord(std::string_view name) {
  constexpr std::string_view mark = ".tfrecord";
  const auto at = name.find(mark);
  if (at == name.npos) return false;
  name.remove_prefix(at + mark.size());
  if (name.starts_with('s')) name.remove_prefix(1);
  return name.empty() ||
         (name.starts_with('-') && name.find_first_not_of("-of0123456789") == name.npos);
}

bool is_csv(std::string_view name) { return name.ends_with(".csv"); }
bool is_npy(std::string_view name) { return name.ends_with(".npy") && is_pair_name(name); }
bool is_cifar(std::string_view name) {
  return name.ends_with(".bin") &&
         (name.starts_with("data_batch") || name.starts_with("test_batch") || name == "train.bin" ||
          name == "test.bin");
}
bool is_idx(std::string_view name) {
  return is_pair_name(name) && !has_foreign_ending(name) && !is_tfrecord(name);
}

/// Of pictures the folder is the data, not a file in it: find_picture_folders().
bool is_no_file(std::string_view) { return false; }

using Open = std::unique_ptr<Source> (*)(const RecordFiles&, const ReadOptions&);

template <class Paired>
std::unique_ptr<Source> open_pair(const RecordFiles& files, const ReadOptions& options) {
  return std::make_unique<Paired>(files.records, files.labels, options);
}

template <class Single>
std::unique_ptr<Source> open_single(const RecordFiles& files, const ReadOptions& options) {
  return std::make_unique<Single>(files.records, options);
}

struct Entry {
  const char* name;
  bool paired;
  bool (*claims)(std::string_view name);
  Open open;
};

/// In the order of Format.
constexpr std::array<Entry, all_formats.size()> entries{{
    {"idx", true, is_idx, open_pair<IdxSource>},
    {"csv", false, is_csv, open_single<CsvSource>},
    {"npy", true, is_npy, open_pair<NpySource>},
    {"tfrecord", false, is_tfrecord, open_single<TfRecordSource>},
    {"cifar", false, is_cifar, open_single<CifarSource>},
    {"picture", false, is_no_file, open_single<PictureSource>},
}};

const Entry& entry_of(Format format) noexcept { return entries[static_cast<std::size_t>(format)]; }

}  // namespace

const char* name_of(Format format) noexcept { return entry_of(format).name; }

bool is_paired(Format format) noexcept { return entry_of(format).paired; }

std::optional<Format> format_named(std::string_view name) noexcept {
  for (const Format format : all_formats) {
    if (name == name_of(format)) return format;
  }
  return std::nullopt;
}

std::optional<Format> format_of_file(std::string_view name) noexcept {
  for (const Format format : all_formats) {
    if (entry_of(format).claims(name)) return format;
  }
  return std::nullopt;
}

std::unique_ptr<Source> open_files(Format format, const RecordFiles& files,
                                   const ReadOptions& options) {
  return entry_of(format).open(files, options);
}

// Sources.

void Source::read_bytes(std::span<const std::uint64_t>, std::span<std::uint8_t>,
                        std::span<std::int32_t>) {
  throw std::logic_error("read_bytes: this source gives no bytes: " + identity());
}

// Data sets.

namespace {

/// Throws ConfigError for options of files.
void require_no_file_options(const DrawnSet& drawn, const DataSetOptions& options) {
  const auto refuse = [&](const std::string& option, const char* problem) {
    throw ConfigError("`" + option + "`: " + drawn.name + problem,
                      "leave it out, or name files in place of " + std::string(drawn.name));
  };
  if (options.format) {
    refuse("format=" + std::string(name_of(*options.format)), " is built in, without files");
  }
  if (options.test_split) {
    refuse("test_split=" + shortest(*options.test_split), " has a test set of its own");
  }
}

}  // namespace

DataSet open_data_set(const std::string& path, const DataSetOptions& options) {
  const DrawnSet* const drawn = drawn_set(path);
  if (drawn == nullptr) return open_folder(path, options);
  require_no_file_options(*drawn, options);
  DataSet set = {std::make_unique<SyntheticSource>(*drawn, Part::train, options.of(Part::train)),
                 std::make_unique<SyntheticSource>(*drawn, Part::test, options.of(Part::test))};
  take_validation(set, options);
  return set;
}

std::vector<std::uint64_t> label_counts(const Source& source) {
  std::vector<std::uint64_t> counts;
  if (source.targets() > 0) return counts;
  for (std::uint64_t id = 0; id < source.records(); ++id) {
    const auto known = source.known_label(id);
    if (!known) return {};
    const auto label = static_cast<std::size_t>(*known);
    if (label >= counts.size()) counts.resize(label + 1);
    ++counts[label];
  }
  return counts;
}

std::unique_ptr<Source> open_data_part(const std::string& path, Part part,
                                       const DataSetOptions& options) {
  const DrawnSet* const drawn = drawn_set(path);
  if (drawn == nullptr) return open_folder_part(path, part, options);
  require_no_file_options(*drawn, options);
  DataSet set = {std::make_unique<SyntheticSource>(*drawn, part, options.of(part)), nullptr};
  if (part == Part::train) take_validation(set, options);
  return std::move(set.train);
}

}  // namespace lockstep::data

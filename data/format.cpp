#include "data/format.hpp"

#include <algorithm>

#include "data/csv.hpp"
#include "data/idx.hpp"
#include "data/npy.hpp"
#include "data/tfrecord.hpp"

namespace lockstep::data {
namespace {

bool speaks_of_a_pair(std::string_view name) {
  return name.find("images") != name.npos || name.find("labels") != name.npos;
}

/// Names with another format's or a checksum's ending are not IDX, whatever they begin with.
bool has_foreign_ending(std::string_view name) {
  constexpr std::array<std::string_view, 10> endings{
      ".npy", ".npz", ".csv", ".tfrecord", ".md5", ".sha256", ".txt", ".json", ".png", ".part"};
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
bool is_npy(std::string_view name) { return name.ends_with(".npy") && speaks_of_a_pair(name); }
bool is_idx(std::string_view name) {
  return speaks_of_a_pair(name) && !has_foreign_ending(name) && !is_tfrecord(name);
}

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

}  // namespace lockstep::data

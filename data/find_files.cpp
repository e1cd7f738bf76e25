#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/npy.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/synthetic.hpp"

namespace lockstep::data {

const char* const known_file_names =
    "*.csv, *.tfrecord, *images* and *labels* as IDX or *.npy, data_batch*.bin and test_batch.bin "
    "(CIFAR-10), train.bin and test.bin (CIFAR-100), each plain or .gz";

namespace {

/// The hint at the end of errors about missing data.
const char* const get_data =
    "name a table (`data=FILE.csv`), a folder with files named train* and test*, or one with a "
    "folder of pictures for each class; `data=synthetic` and `data=synthetic-rgb` are built in";

using Paths = std::set<std::filesystem::path>;

bool replace(std::string& text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

std::string file_name(const std::filesystem::path& path) { return path.filename().string(); }

bool has_plain_twin(const std::filesystem::path& path, const Paths& all) {
  const std::string name = bare_name(path);
  return name != file_name(path) && all.contains(path.parent_path() / name);
}

/// True for a folder that does not stand in place of an IDX file. Kaggle's MNIST has folders beside
/// the files: train-images-idx3-ubyte/ and train-images.idx3-ubyte.
bool is_other_folder(const std::filesystem::path& path, const Paths& all) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return false;
  std::string name = file_name(path);
  return !replace(name, "-idx", ".idx") || all.contains(path.parent_path() / name);
}

/// The format of a file in a folder, by its name.
std::optional<Format> format_in_folder(const std::filesystem::path& file) {
  return is_npz_file(file) ? std::optional(Format::npy) : format_of_file(bare_name(file));
}

const char* files_called(Part part) {
  return part == Part::train ? "training files (train*)" : "test files (test* or t10k*)";
}

/// Files of one part, by folder and the common name of a pair.
using Groups = std::map<std::pair<std::filesystem::path, std::string>, RecordFiles>;

/// True for a regular file with the name of a table.
bool is_table_file(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 4> endings{".csv", ".tsv", ".txt", ".data"};
  const std::string name = bare_name(path);
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) &&
         std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Inserts `path` by its key: the name without `.gz`, with `*` for images or labels of a pair.
void enter(Groups& groups, Format format, const std::filesystem::path& path,
           const std::string& where) {
  std::string key = bare_name(path);
  bool labels = false;
  if (is_paired(format)) {
    labels = !replace(key, "images", "*") && replace(key, "labels", "*");
    for (const char* magic : {"idx1", "idx2", "idx3", "idx4"}) {
      if (replace(key, magic, "idx")) break;
    }
  }
  const auto refuse_twin = [&](const RecordFiles& group) {
    const std::string& place = labels ? group.labels : group.records;
    if (place.empty()) return;
    throw DataError(where + ": both " + file_name(place) + " and " + file_name(path) +
                        " could be the " + (labels ? "labels" : "images") + " of one pair",
                    "remove one of them");
  };
  RecordFiles& group = groups[{path.parent_path(), key}];
  refuse_twin(group);
  std::string other = key;  // MNIST's files have both names
  if (format == Format::idx && (replace(other, "-idx", ".idx") || replace(other, ".idx", "-idx"))) {
    const auto twin = groups.find({path.parent_path(), other});
    if (twin != groups.end()) refuse_twin(twin->second);
  }
  (labels ? group.labels : group.records) = path.string();
}

/// The files that belong together by their names.
struct NumberedSet {
  std::string stem;         // before their numbers
  std::uint64_t files = 0;  // as the names say; 0: they do not
  auto operator<=>(const NumberedSet&) const = default;
};

/// "train-00002-of-00005..." -> "train-" and 5, and 2.
std::pair<NumberedSet, std::uint64_t> set_of(std::string_view key) {
  constexpr std::string_view digits = "0123456789";
  for (auto at = key.find("-of-"); at != key.npos; at = key.find("-of-", at + 1)) {
    const std::string_view count = key.substr(at + 4).substr(0, 9);
    const std::size_t length = std::min(count.find_first_not_of(digits), count.size());
    const std::size_t begin = key.substr(0, at).find_last_not_of(digits) + 1;
    const auto number = whole_number(key.substr(begin, at - begin));
    if (!number || length == 0) continue;
    return {{std::string(key.substr(0, begin)), std::stoull(std::string(count.substr(0, length)))},
            *number};
  }
  return {};
}

/// Each numbered set must be complete, and the only one of its stem: another number of files is
/// another split of the same records.
void check_complete(const Groups& groups, Format format, const std::string& where) {
  const char* const parts = is_paired(format) ? " pairs" : " files";
  using Names = std::map<std::uint64_t, std::string>;  // by their numbers
  std::map<std::pair<std::filesystem::path, NumberedSet>, Names> found;
  for (const auto& [key, files] : groups) {
    const auto [set, number] = set_of(key.second);
    if (set.files == 0) continue;
    const std::string name = file_name(files.records);
    const auto [same, is_new] = found[{key.first, set}].emplace(number, name);
    if (is_new) continue;
    throw DataError(where + ": two of " + std::to_string(set.files) + parts + " have the number " +
                        std::to_string(number) + ": " + same->second + ", " + name,
                    "remove one of them");
  }
  for (auto at = found.begin(); at != found.end(); ++at) {
    const auto& [folder, set] = at->first;
    const Names& names = at->second;
    const std::string& first = names.begin()->second;
    if (set.files != names.size()) {
      throw DataError(where + ": the names say that " + std::to_string(set.files) + parts +
                          " belong together, but " + std::to_string(names.size()) +
                          " are here: " + first + " ...",
                      "bring the missing files, or remove what is left of another split");
    }
    const std::uint64_t begin = names.begin()->first;
    const std::uint64_t last = names.rbegin()->first;
    if (begin > 1 || last - begin != set.files - 1) {
      throw DataError(where + ": " + std::to_string(set.files) + parts +
                          " belong together, but their numbers go from " + std::to_string(begin) +
                          " to " + std::to_string(last) + ": " + first + " ... " +
                          names.rbegin()->second,
                      "number them from 0 or 1 on, or bring the missing files");
    }
    const auto next = std::next(at);  // sorted by folder and stem
    if (next == found.end() || next->first.first != folder) continue;
    const NumberedSet& other = next->first.second;
    if (other.stem != set.stem) continue;
    throw DataError(where + ": two splits of one set, into " + std::to_string(set.files) +
                        " and into " + std::to_string(other.files) + " parts: " + first + " ..., " +
                        next->second.begin()->second + " ...",
                    "remove one of them, or name the files of one by a pattern");
  }
}

std::vector<RecordFiles> files_of(const Groups& groups, Format format, bool needs_labels,
                                  const std::string& where) {
  std::vector<RecordFiles> result;
  for (const auto& [key, files] : groups) {
    const bool no_labels = files.labels.empty();
    if (is_paired(format) && ((no_labels && needs_labels) || files.records.empty())) {
      const auto& there = no_labels ? files.records : files.labels;
      const std::string kind = no_labels ? "labels" : "images";
      std::string missing = key.second;
      replace(missing, "*", kind);
      if (format == Format::idx) replace(missing, "idx", no_labels ? "idx1" : "idx3");
      throw DataError(where + ": " + file_name(there) + " has no " + kind + " beside it (" +
                          missing + ", plain or .gz)",
                      "bring the missing file, or remove this one");
    }
    result.push_back(files);
  }
  check_complete(groups, format, where);
  return result;
}

/// The only format among the data files; `first` holds one file of each format.
Format only_format(const std::map<Format, std::filesystem::path>& first, std::optional<Part> only,
                   const std::string& where) {
  if (first.size() == 1) return first.begin()->first;
  if (first.empty()) {
    throw DataError(
        where + ": no " + (only ? files_called(*only) : "data files (train*, and test* or t10k*)") +
            " with a known name (" + known_file_names + "), nor folders of PNG or JPEG files",
        std::string("the format is that of the name: rename files; or ") + get_data);
  }
  const auto& [one, one_path] = *first.begin();
  const auto& [other, other_path] = *std::next(first.begin());
  throw DataError(where + ": files of two formats, " + file_name(one_path) + " (" + name_of(one) +
                      ") and " + file_name(other_path) + " (" + name_of(other) + ")",
                  std::string("choose one with `format=") + name_of(one) +
                      "` or `format=" + name_of(other) + "`, or keep one of them in the folder");
}

const char* const split_remedy =
    "take a part of the training records as test set: `test_split=0.2`";

void check_found(const std::vector<RecordFiles>& files, Part part, Format format,
                 const std::string& where) {
  if (!files.empty()) return;
  throw DataError(where + ": no " + files_called(part) + " of format " + name_of(format),
                  part == Part::train
                      ? std::string("name files as one of ") + known_file_names + "; or " + get_data
                      : split_remedy);
}

const char* const get_pictures = "name a folder with a folder of pictures for each class";

/// The folders of training and test pictures in `path`, or one picture as test data, if there are
/// any.
std::optional<FolderFiles> find_pictures(const std::string& path, const FindOptions& find) {
  std::error_code ignored;
  if (is_picture_name(path) && std::filesystem::is_regular_file(path, ignored)) {
    if (find.only == Part::test) return FolderFiles{Format::picture, {}, {{path, {}}}};
    throw DataError(path + ": is one picture", get_pictures);
  }
  if (!std::filesystem::is_directory(path, ignored)) return std::nullopt;
  const auto parts = find_picture_folders(path);
  if (!parts) return std::nullopt;
  FolderFiles files{Format::picture, {}, {}};
  const auto& [train, test] = *parts;
  if (!train.empty()) files.train.push_back({train, {}});
  if (!test.empty()) files.test.push_back({test, {}});
  if (find.only == Part::test && train == path) files.test = files.train;  // neither train nor test
  if (find.only != Part::test && train.empty()) {
    throw DataError(path + ": has no folder `train` with folders of training pictures beside test",
                    "name it so, with a folder for each class");
  }
  if (find.needs_test() && files.test.empty()) {
    throw DataError(path + ": has no folder `test` with test pictures", split_remedy);
  }
  return files;
}

/// The arrays of an NPZ archive with the files of one part.
RecordFiles arrays_in(const std::filesystem::path& archive, Part part, bool needs_labels) {
  const NpzArrays arrays = find_npz_arrays(archive, needs_labels);
  const auto& named = part == Part::train ? arrays.train : arrays.test;
  if (const auto& pair = named ? named : arrays.unnamed) return *pair;
  throw DataError(archive.string() + ": has arrays of the other part only",
                  "name the arrays X and y");
}

/// The arrays of an NPZ archive, as pairs of NPY files.
FolderFiles files_of_npz(const std::string& path, const FindOptions& find) {
  if (find.format && find.format != Format::npy) {
    throw ConfigError("`format=" + std::string(name_of(*find.format)) + "`: " + path + " is NPZ",
                      "leave `format` out");
  }
  const NpzArrays arrays = find_npz_arrays(path, find.needs_labels);
  const auto only = find.only;
  const bool has_parts = arrays.train || arrays.test;
  FolderFiles files{Format::npy, {}, {}};
  if (const auto& train = has_parts ? arrays.train : arrays.unnamed) files.train = {*train};
  if (const auto& test = has_parts || !only ? arrays.test : arrays.unnamed) files.test = {*test};
  if (only != Part::test && files.train.empty()) {
    throw DataError(path + ": has no arrays of training images and labels", save_arrays);
  }
  if (find.needs_test()) check_found(files.test, Part::test, Format::npy, path);
  return files;
}

/// The remedy for a path that does not exist.
std::string how_to_get(const std::string& path) {
  if (path.find("mnist") != std::string::npos) return "scripts/get_mnist.sh fetches MNIST";
  std::vector<std::string> names;
  for (const DrawnSet* set : drawn_sets()) names.emplace_back(set->name);
  const auto meant = nearest(path, names);
  return meant ? "did you mean `data=" + *meant + "`?" : get_data;
}

const char* const readable_files = "give a folder or a pattern of files that this user may read";

Paths files_in(const std::filesystem::path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw DataError(folder.string() + ": no such file or folder", how_to_get(folder.string()));
  }
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status)) {
    throw DataError(folder.string() + ": is a stream, and data is read more than once",
                    "write it to a file; `lockstep predict` reads stdin with --data -");
  }
  if (!error && !std::filesystem::is_directory(status)) {
    throw DataError(folder.string() + ": is not a folder",
                    "a single file is a table (*.csv, *.tsv, *.txt or *.data) or *.npz; of other "
                    "formats name the folder, with files named train* and test* (TFRecord: "
                    "train.tfrecord)");
  }
  Paths files;
  if (!error) {
    const auto entries = list_folder(folder, error);
    files.insert(entries.begin(), entries.end());
  }
  if (error) {
    throw DataError(folder.string() + ": cannot be listed: " + error.message(), readable_files);
  }
  if (files.empty()) throw DataError(folder.string() + ": the folder is empty", get_data);
  return files;
}

/// The entries of a folder, or the matches of a pattern.
Paths list_entries(const std::string& path) {
  return is_pattern(path) ? files_matching(path) : files_in(path);
}

}  // namespace

std::optional<Part> part_of_file(const std::filesystem::path& file) {
  if (!format_in_folder(file)) return std::nullopt;
  const std::string name = bare_name(file);
  if (name.starts_with("train") || name.starts_with("data_batch")) return Part::train;
  if (name.starts_with("test") || name.starts_with("t10k")) return Part::test;
  return std::nullopt;
}

namespace {

/// True if the pattern matches the file's path, which need not exist. Links are resolved in both,
/// but for those that a wildcard stands for.
bool matches_whole(const std::filesystem::path& pattern, const std::filesystem::path& file) {
  std::string literal;  // the working directory, in which no character is a wildcard
  if (pattern.is_relative()) {
    for (const char c : std::filesystem::current_path().string() + '/') {
      if (std::string_view("*?[]\\").find(c) != std::string_view::npos) literal += '\\';
      literal += c;
    }
  }
  std::error_code error;
  const auto whole_pattern = std::filesystem::weakly_canonical(literal + pattern.string(), error);
  if (error) return false;
  const auto whole_file = std::filesystem::weakly_canonical(file, error);
  if (error) return false;
  return ::fnmatch(whole_pattern.c_str(), whole_file.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
}

}  // namespace

bool would_find(const std::string& path, const std::filesystem::path& file) {
  if (!part_of_file(file)) return false;
  std::error_code ignored;
  if (!is_pattern(path)) return std::filesystem::equivalent(path, file.parent_path(), ignored);
  if (matches_whole(path, file)) return true;
  // Links that a wildcard stands for: by the folders of the matches.
  const auto name = file.filename();
  if (::fnmatch(file_name(path).c_str(), name.c_str(), FNM_PERIOD) != 0) return false;
  return std::ranges::any_of(files_matching(path), [&](const auto& one) {
    const auto folder = std::filesystem::absolute(one).parent_path();
    return std::filesystem::equivalent(folder, file.parent_path(), ignored);
  });
}

FolderFiles find_files(const std::string& path, const FindOptions& find) {
  const auto& [format, only, may_lack_test, needs_labels] = find;
  if (is_table_file(path)) {
    if (format && format != Format::csv) {
      throw ConfigError("`format=" + std::string(name_of(*format)) + "`: " + path +
                            " is a single file, which is read as CSV",
                        "leave `format` out, or name the folder that holds the files");
    }
    const std::vector<RecordFiles> file = {{path, {}}};
    if (only == Part::test) return {Format::csv, {}, file};
    if (!only && !may_lack_test) {
      throw DataError(path + ": is one file, so there is no test set", split_remedy);
    }
    return {Format::csv, file, {}};
  }
  if (format == Format::picture || (!format && is_picture_name(path))) {
    if (auto pictures = find_pictures(path, find)) return *std::move(pictures);
    if (is_pattern(path)) throw DataError(path + ": a pattern names no pictures", get_pictures);
    list_entries(path);  // throws if there is nothing
    throw DataError(path + ": no PNG or JPEG files", get_pictures);
  }
  if (is_npz_file(path)) return files_of_npz(path, find);
  const Paths all = list_entries(path);
  std::map<Format, Groups> train;
  std::map<Format, Groups> test;
  std::map<Format, std::filesystem::path> first;
  for (const auto& file : all) {
    const auto found = format_in_folder(file);
    if (!found || (format && found != format) || has_plain_twin(file, all)) continue;
    if (*found == Format::idx && is_other_folder(file, all)) continue;
    const auto part = part_of_file(file);
    if (!part || (only && part != only)) continue;
    first.try_emplace(*found, file);
    Groups& groups = part == Part::train ? train[*found] : test[*found];
    if (is_npz_file(file)) {
      groups[{file.parent_path(), bare_name(file)}] = arrays_in(file, *part, needs_labels);
    } else {
      enter(groups, *found, file, path);
    }
  }
  if (!format && first.empty()) {
    if (auto pictures = find_pictures(path, find)) return *std::move(pictures);
  }
  const Format chosen = format ? *format : only_format(first, only, path);
  FolderFiles files{chosen, files_of(train[chosen], chosen, needs_labels, path),
                    files_of(test[chosen], chosen, needs_labels, path)};
  if (only != Part::test) check_found(files.train, Part::train, chosen, path);
  if (find.needs_test()) check_found(files.test, Part::test, chosen, path);
  return files;
}

std::set<std::filesystem::path> files_matching(const std::string& pattern) {
  // Set by keep_error, to which glob() passes nothing: a folder that cannot be listed, and errno.
  static thread_local std::string unreadable;
  static thread_local int reason = 0;
  // Something that is gone meanwhile is no match, nor is what belongs to an ext4 file system.
  const auto keep_error = [](const char* folder, int error) {
    if (error == ENOENT || file_name(folder) == "lost+found") return 0;
    unreadable = folder;
    reason = error;
    return 1;
  };
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_NOSORT, keep_error, &found);
  const std::unique_ptr<glob_t, decltype(&::globfree)> owner(&found, &::globfree);
  if (code == GLOB_ABORTED) {
    throw DataError(pattern + ": " + unreadable +
                        " cannot be listed: " + std::generic_category().message(reason),
                    readable_files);
  }
  if (code == GLOB_NOSPACE) throw std::bad_alloc();
  if (code != 0) {
    throw DataError(pattern + ": no file matches the pattern",
                    "quote it, and check it with `ls`; or name the folder");
  }
  return {found.gl_pathv, found.gl_pathv + found.gl_pathc};
}

bool is_pattern(const std::string& path) {
  std::error_code ignored;
  return path.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(path, ignored);
}

}  // namespace lockstep::data

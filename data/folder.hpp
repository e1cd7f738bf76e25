// Data folders, patterns and single tables: finds the files of the training set and of the test
// set.
//
// Names of training files begin with `train` or CIFAR-10's `data_batch`, names of test files with
// `test` or MNIST's `t10k`.
// All files have one format (data/source.hpp), given by their names: `.csv`; `.tfrecord` or
// `.tfrecords`, optionally followed by -00000-of-00005; or a pair of names that differ only in
// `images` and `labels` (and `idx3` and `idx1`), with the suffix `.npy` or, for IDX, none; `.npz`;
// `.bin` of CIFAR. Where labels are not needed (prediction), images of a pair may be alone. `.gz`
// may follow; if a file exists in both forms, the plain one is used. A part may have several files,
// archives or pairs, such as train-00000-of-00005-images-idx3-ubyte, read in the order of their
// names. All other files are ignored. The files that a pattern matches, in any folders, are treated
// alike. A folder without such files may have pictures, and so may a table (picture_source.hpp); an
// NPZ file has both parts, or one (npy.hpp).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/data/source.hpp"

namespace lockstep::data {
/// The files of a folder, each part sorted by name.
struct FolderFiles {
  Format format = Format::idx;
  std::vector<RecordFiles> train;
  std::vector<RecordFiles> test;
};

/// What find_files() finds.
struct FindOptions {
  std::optional<Format> format = {};  ///< none: the only format present
  std::optional<Part> only = {};      ///< ignoring the other; none: both
  bool may_lack_test = false;         ///< a training set without test files is not an error
  bool needs_labels = true;           ///< false: a pair may be images alone

  bool needs_test() const { return only != Part::train && !may_lack_test; }
};

/// Lists the folder, or expands the pattern; opens no file but an NPZ archive. A file whose name
/// ends in .csv, .tsv, .txt or .data is the whole part `only`, or the training set.
///
/// Errors    throws DataError for a folder that is missing, no folder, unreadable or empty, a
///           pattern without matches, a part without files, more than one format, half of a pair,
///           two files for one half, missing files of a numbered set or two of one number, or two
///           sets that differ only in their number of files.
FolderFiles find_files(const std::string& path, const FindOptions& find);

/// Opens the files of one part as one source; only as many files as `options.limit` needs.
///
/// Errors   throws what open_files throws, and DataError if files differ in record shape, or in
///          element type while no divisor is given.
std::unique_ptr<Source> open_part(Format format, const std::vector<RecordFiles>& files,
                                  const ReadOptions& options);

/// One part of a folder or pattern. Throws what the functions above throw.
std::unique_ptr<Source> open_folder_part(const std::string& path, Part part,
                                         const DataSetOptions& options);

/// Both parts of a folder or pattern.
///
/// Errors   throws what the functions above throw, and DataError if the parts differ in that way.
DataSet open_folder(const std::string& path, const DataSetOptions& options);

/// The part to which find_files() would count a file of this name, in one of the formats that it
/// finds by their names; empty if to none.
std::optional<Part> part_of_file(const std::filesystem::path& file);

/// True if find_files() would count `file`, an absolute path that need not exist, to a part of the
/// folder or pattern `path`. Opens no file.
bool would_find(const std::string& path, const std::filesystem::path& file);

// Expansion of paths and patterns to files.

/// True if `path` is a pattern: it contains `*`, `?` or `[`, and no file has exactly that name.
bool is_pattern(const std::string& path);

/// The matches of a pattern by shell rules, sorted by name. Opens no file. Throws DataError if
/// there are none, or a folder that may have some cannot be listed.
std::set<std::filesystem::path> files_matching(const std::string& pattern);

/// The names of data files, by which their format is known, for messages.
extern const char* const known_file_names;

}  // namespace lockstep::data

// A data folder: which of its files hold the training set, which the test set.
//
// Training files have names that begin with `train`, test files with `test` or MNIST's `t10k`. All
// are of one format (data/source.hpp), which their names tell: `.csv`; `.tfrecord` or `.tfrecords`,
// perhaps with -00000-of-00005 behind; two names that differ only in `images` and `labels` (and in
// `idx3` and `idx1`), with `.npy` behind or, for IDX, without. Each plain or with `.gz` behind;
// where both stand there, the plain one is used. One file or pair or many, such as
// train-00000-of-00005-images-idx3-ubyte; many are read in the order of their names. All other
// files are ignored. What a pattern matches is read in the same way, whatever folders it is in.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/source.hpp"

namespace lockstep::data {
/// The files of a folder, each part sorted by name.
struct FolderFiles {
  Format format = Format::idx;
  std::vector<RecordFiles> train;
  std::vector<RecordFiles> test;
};

/// Looks into the folder, or expands the pattern, and opens nothing.
///
/// `format`  which files to use; none: the one format that there is.
/// `only`    the part to look for, whatever there is of the other; none: both.
/// Errors    throws DataError as list_files does, where a part has no files or there are two
///           formats, and for a file without its partner or a part of which some are missing.
FolderFiles find_files(const std::string& path, std::optional<Format> format,
                       std::optional<Part> only = {});

/// Opens the files of one part as one source; no more of them than `options.limit` needs.
///
/// Errors   throws DataError as open_files does, and where records differ in shape, or some are
///          bytes, others numbers, and no divisor is given.
std::unique_ptr<Source> open_part(Format format, const std::vector<RecordFiles>& files,
                                  const ReadOptions& options);

/// One part of a folder or pattern. Throws what the functions above throw.
std::unique_ptr<Source> open_folder_part(const std::string& path, Part part,
                                         const DataSetOptions& options);

/// Both parts of a folder or pattern.
///
/// Errors   throws DataError as the functions above do, and where the parts differ in the same way.
DataSet open_folder(const std::string& path, const DataSetOptions& options);

// The files that a path or a pattern names.

/// Whether `path` is a pattern: it holds `*`, `?` or `[`, and nothing has that very name.
bool is_pattern(const std::string& path);

/// What a pattern matches, as the shell expands it, sorted by name. Opens no file. Throws DataError
/// where it matches nothing.
std::set<std::filesystem::path> files_matching(const std::string& pattern);

/// The entries of a folder, or what a pattern matches, as the shell expands it. Opens no file.
///
/// Errors   throws DataError where the folder is missing, not a folder, unreadable or empty, or
///          the pattern matches nothing.
std::set<std::filesystem::path> list_files(const std::string& path);

/// How errors end where there is no data.
extern const char* const get_data;

}  // namespace lockstep::data

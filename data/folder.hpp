// A data folder: which of its files hold the training set, which the test set.
//
// Training files have names that begin with `train`, test files with `test` or MNIST's `t10k`. A
// pair is two names that differ only in `images` and `labels` (and in `idx3` and `idx1`), plain or
// with `.gz` behind; where both stand there, the plain one is used. One pair or many, such as
// train-00000-of-00005-images-idx3-ubyte; many are read in the order of their names. All other
// files are ignored.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "data/source.hpp"

namespace lockstep::data {

/// Images and their labels.
struct IdxPair {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// The pairs of a folder, each part sorted by name.
struct FolderFiles {
  std::vector<IdxPair> train;
  std::vector<IdxPair> test;
};

/// Looks into the folder, and opens nothing.
///
/// Errors   throws DataError where it is missing, not a folder, unreadable or empty, where a part
///          has no files, and for a file without its partner or a part of which some are missing.
FolderFiles find_pairs(const std::filesystem::path& folder);

/// Opens the pairs of one part as one source; no more of them than `options.limit` needs.
///
/// Errors   throws DataError as IdxSource does, and where the images differ in size.
std::unique_ptr<Source> open_pairs(const std::vector<IdxPair>& pairs, const ReadOptions& options);

/// Both parts of a folder.
///
/// Errors   throws DataError as the functions above do, and where the parts' features differ in
///          number.
DataSet open_folder(const std::filesystem::path& folder, const DataSetOptions& options);

}  // namespace lockstep::data

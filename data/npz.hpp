// NPZ: NumPy's arrays in a ZIP archive, as numpy.savez and savez_compressed write it.
//
// An array in it is a file below the archive: "mnist.npz/x_train.npy". Arrays of images are called
// x, images, data or features, arrays of labels y, labels, target or targets, in either case; those
// of a training and a test set have `train` and `test` before or behind, with an underscore:
// x_train, train_images. Other arrays are ignored. Every rank that opens an array decompresses it,
// as it does gzip (Content).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/data/file.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// The archive in which `path` is; else `path`.
std::filesystem::path archive_of(const std::filesystem::path& path);

/// True for a regular file whose name ends in .npz.
bool is_npz_file(const std::filesystem::path& path);

/// Decompresses one file of a ZIP archive. Local; not thread-safe.
class ZipReader final : public Decompressor {
 public:
  /// `path` is that of the file, below the archive. Throws DataError if the archive is damaged, or
  /// has no such file.
  explicit ZipReader(const std::filesystem::path& path);
  ~ZipReader() override;

  std::size_t read_some(std::span<std::uint8_t> bytes) override;

 private:
  [[noreturn]] void fail(const std::string& problem) const override;

  struct State;
  std::unique_ptr<State> state_;
};

/// The arrays of images and labels in an archive, by the set that their names say.
struct NpzArrays {
  std::optional<RecordFiles> train;
  std::optional<RecordFiles> test;
  std::optional<RecordFiles> unnamed;  ///< of neither: X and y
};

/// Errors   throws DataError: a damaged archive, two arrays for one purpose, images without labels,
///          or no images.
/// Ranks    local.
NpzArrays find_npz_arrays(const std::filesystem::path& archive);

}  // namespace lockstep::data

// NPY, NumPy's format: images in one file, their labels in another; and NPZ, arrays in a ZIP
// archive.
//
//   offset   bytes    meaning
//   0        6        \x93NUMPY
//   6        2        version: 1.0, 2.0 or 3.0
//   8        2 or 4   h, little-endian; 2 bytes in version 1.0
//   then     h        a Python dictionary in text: 'descr', the type of an element ("<f4");
//                     'fortran_order'; 'shape', whose first number is the record count
//   then              the elements, up to the end of the file
//
// Images have at least 2 dimensions, and channels last: (N, 3, 32, 32) is refused; elements are
// bytes (|u1), other integers, booleans, or floats of 4 or 8 bytes, in either byte order, and are
// rounded to the nearest float32. Labels have one dimension (or a second one of 1) and are
// integers. Either file may be gzip-compressed.
//
// An array of an NPZ archive (numpy.savez, numpy.savez_compressed) is the NPY file
// "mnist.npz/x_train.npy" (Content). Arrays of images are called x, images, data or features,
// arrays of labels y, labels, target or targets, in either case; those of a training and a test set
// have `train` and `test` before or behind, with an underscore: x_train, train_images. Other arrays
// are ignored. Where labels are not needed, images may be alone: x_test, X. Every rank that opens
// an array decompresses it, as it does gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// The type of an array's elements.
struct NpyType {
  char kind = 'u';        ///< b: boolean, u: unsigned, i: signed, f: float
  std::size_t bytes = 1;  ///< bytes per element
  bool swapped = false;   ///< the byte order is not this machine's

  bool is_integer() const noexcept { return kind != 'f'; }
};

/// The header of an NPY file.
struct NpyHeader {
  NpyType type;
  std::string descr;                 ///< 'descr' as in the file
  std::vector<std::uint64_t> shape;  ///< [0] is the record count
  std::uint64_t record_elements = 1;
  std::uint64_t header_bytes = 0;

  std::uint64_t record_bytes() const noexcept { return record_elements * type.bytes; }
};

/// The first bytes, up to the elements, of an NPY file of version 1.0. `descr`: "<f4". Its length
/// is a multiple of 64.
std::string npy_header(const char* descr, std::span<const std::uint64_t> shape);

/// Reads the header and checks the file's length against it. Decompresses a compressed file to its
/// end; at least its first `keep` records can be read afterwards.
///
/// Errors   throws DataError, with the file and the offset, if the file is not NPY, its header is
///          damaged, its element type or order is not supported, it has no records or empty
///          records, or its length does not match the header.
NpyHeader read_npy_header(Content& content, std::uint64_t keep);

/// A pair of NPY files; without ReadOptions::needs_labels only that of images is read. Local; not
/// thread-safe.
class NpySource final : public StoredSource {
 public:
  /// Throws what read_npy_header throws; DataError if the counts differ, labels are not integers,
  /// or a label in use is outside [0, classes); ConfigError like IdxSource. read() throws DataError
  /// for a number that is not finite in float32.
  NpySource(const std::filesystem::path& images, const std::filesystem::path& labels,
            const ReadOptions& options);

 private:
  void load_labels(const std::filesystem::path& path);
  std::uint64_t offset(std::uint64_t index) const noexcept override;
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;

  NpyHeader header_;
};

/// The remedy for an archive with other arrays.
inline constexpr const char* save_arrays =
    "save them so: numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)";

/// The arrays of images and labels in an NPZ archive, by the set in their names.
struct NpzArrays {
  std::optional<RecordFiles> train;
  std::optional<RecordFiles> test;
  std::optional<RecordFiles> unnamed;  ///< of neither: X and y
};

/// `needs_labels`   false: images may lack labels.
/// Errors   throws DataError: a damaged archive, two arrays for one purpose, images without labels,
///          or no images.
/// Ranks    local.
NpzArrays find_npz_arrays(const std::filesystem::path& archive, bool needs_labels);

}  // namespace lockstep::data

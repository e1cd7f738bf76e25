// Files of named tensors in the safetensors format: of this program, and of others.
//
// Source   https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/file.hpp"

namespace lockstep::train {

/// Name and shape of a tensor.
struct TensorSpec {
  std::string name;
  std::vector<std::uint64_t> shape;

  std::uint64_t size() const noexcept;  ///< number of elements
};

/// Length and checksum of a file.
struct FileSum {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  ///< hash_of() all bytes
};

/// Texts by name in a file's header, which other libraries pass over.
using Metadata = std::map<std::string, std::string>;

/// Writes a file of F32 tensors, sequentially and atomically. Local.
class SafetensorsWriter {
 public:
  /// Reserves disk space for the whole file. Throws OutputError, as all members do.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                    const Metadata& metadata = {});

  /// Writes the next tensor: all of its values, row-major.
  void add(std::span<const float> values);

  /// Syncs the file to disk and gives it its name.
  FileSum finish();

 private:
  void write(std::span<const std::byte> bytes);

  NewFile file_;
  Hash hash_;
  std::uint64_t bytes_ = 0;
};

/// A tensor of a file.
struct StoredTensor {
  TensorSpec spec;
  std::string type;  ///< "F32", "BF16", "I64" ...
  Range bytes;       ///< behind the header
};

/// A file of tensors. Local.
class SafetensorsReader {
 public:
  /// `remedy`: for errors.
  /// Errors   throws DataError with file, byte or tensor, and reason: a header that is longer than
  ///          the file or is not JSON; a tensor outside the file, or with another number of bytes
  ///          than its shape's; a gap between tensors, or an overlap.
  SafetensorsReader(const std::filesystem::path& path, const std::string& remedy);

  /// The file must contain exactly `expected`, in any order, in float32; tensors() then has their
  /// order.
  /// Errors   those above; throws DataError if a tensor is missing, unknown, or of another type or
  ///          shape.
  SafetensorsReader(const std::filesystem::path& path, const std::vector<TensorSpec>& expected,
                    const std::string& remedy);

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const noexcept { return tensors_; }
  const Metadata& metadata() const noexcept { return metadata_; }

  /// All values of tensor `index` of tensors(), row-major, rounded to float32. Throws DataError for
  /// another type than F32, F64, F16 or BF16.
  std::vector<float> read(std::size_t index) const;

  /// "PATH: byte N", where N is the begin of the first tensor.
  std::string place() const { return data::place(file_.path(), data_begin_); }

 private:
  data::RegularFile file_;
  std::string remedy_;
  std::uint64_t data_begin_ = 0;
  Metadata metadata_;
  std::vector<StoredTensor> tensors_;
};

/// Throws DataError if one of the values of `tensor`, read from `place`, is not finite. Local.
void require_finite(std::span<const float> values, const std::string& place,
                    const std::string& tensor, const std::string& remedy);

/// "[2, 3]".
std::string shape_text(const std::vector<std::uint64_t>& shape);

}  // namespace lockstep::train

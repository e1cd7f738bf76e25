// CIFAR's binary files: records of a label and 32x32 pixels, of which all red values come first,
// then all green, then all blue. The file may be gzip-compressed.
//
//   CIFAR-10    data_batch_1.bin, test_batch.bin    3,073 bytes a record
//   CIFAR-100   train.bin, test.bin                 3,074: the coarse label, which is not used, and
//                                                   the fine one
//
// The name of the file tells them apart. Features have their channels last, as those of all images
// here: {32, 32, 3}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// One file of either. Local; not thread-safe.
class CifarSource final : public StoredSource {
 public:
  /// Throws DataError if the file is empty or does not end with a record, or a label in use is
  /// outside [0, classes); ConfigError like IdxSource.
  CifarSource(const std::filesystem::path& path, const ReadOptions& options);

 private:
  std::uint64_t offset(std::uint64_t index) const noexcept override;
  void decode(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
              std::span<float> x) override;
  void decode_bytes(std::uint64_t first, std::size_t count, std::span<const std::uint8_t> bytes,
                    std::span<std::uint8_t> x) override;

  std::size_t label_bytes_;           // before the pixels of a record; the last is the label
  std::vector<std::uint8_t> pixels_;  // of decode()
};

}  // namespace lockstep::data

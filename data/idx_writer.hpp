// Writes IDX pairs; the format is in data/idx.hpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace lockstep::data {

/// What the headers of a pair say.
struct IdxShape {
  std::uint64_t records = 0;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
};

/// Fills `pixels` (rows * columns of them) with record `index` and returns its label.
using IdxRecord = std::function<std::uint8_t(std::uint64_t index, std::span<std::uint8_t> pixels)>;

/// Writes `shape.records` records, asked for in order, as two plain IDX files.
///
/// Streams: memory for about 1 MB of images and no more. Both files are complete and on the disk
/// before the first one takes its name; where anything fails, whatever `record` throws included,
/// neither name is touched and nothing else remains.
/// Errors   throws OutputError with the path and the system's reason; std::invalid_argument for
///          a shape that IDX cannot hold (0, or records beyond 32 bits).
void write_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
               const IdxShape& shape, const IdxRecord& record);

}  // namespace lockstep::data

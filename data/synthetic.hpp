// The built-in data set: synthetic digits, about as hard as MNIST, without files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/drawing.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {

/// The fixed seed of the built-in data set; independent of the run's seed.
constexpr std::uint64_t synthetic_seed = 1;

/// Records of a part without a limit; the same as in MNIST.
constexpr std::uint64_t synthetic_records(Part part) noexcept {
  return part == Part::train ? 60'000 : 10'000;
}

/// Synthetic digits, 28x28 bytes, 10 classes: see data/drawing.hpp.
///
/// Draws a record on its first read and caches it: 784 bytes each, allocated in blocks.
/// Local; not thread-safe.
class SyntheticSource final : public Source {
 public:
  /// A limit above the number of records means all. Throws ConfigError for a limit of 0, or fewer
  /// than 10 classes.
  SyntheticSource(Part part, const ReadOptions& options, std::uint64_t seed = synthetic_seed);

  std::uint64_t records() const noexcept override { return records_; }
  std::size_t features() const noexcept override { return drawing_pixels; }
  float divisor() const noexcept override { return scale_.divisor(); }
  std::vector<std::uint64_t> file_records() const override { return {}; }
  Element element() const noexcept override { return Element::byte; }
  std::vector<std::uint64_t> shape() const override { return {drawing_side, drawing_side}; }
  std::uint64_t classes() const noexcept override { return static_cast<std::uint64_t>(classes_); }
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  static constexpr std::size_t block_records = 256;
  static constexpr std::uint8_t not_drawn = 255;

  /// The cached records of one block.
  struct Block {
    std::vector<std::uint8_t> pixels;
    std::vector<std::uint8_t> labels;  // or not_drawn
  };

  /// A view of one record.
  struct Digit {
    std::span<const std::uint8_t> pixels;
    std::int32_t label;
  };

  /// The record `index`; draws it if it is not cached.
  Digit drawn(std::uint64_t index);

  Part part_;
  std::uint64_t seed_;
  std::uint64_t records_;
  int classes_;
  ByteScale scale_;
  std::vector<Block> blocks_;
};

}  // namespace lockstep::data

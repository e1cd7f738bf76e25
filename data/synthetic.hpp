// The built-in data sets: images that are drawn from their index, without files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/drawing.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// The fixed seed of the built-in data sets; independent of the run's seed.
constexpr std::uint64_t synthetic_seed = 1;

/// A built-in data set of 10 classes, about equally frequent.
struct DrawnSet {
  const char* name;             ///< of `--data`
  const char* title;            ///< in the identity
  int version;                  ///< raised by any change of an image
  std::uint64_t train_records;  ///< without a limit
  std::uint64_t test_records;
  std::size_t side;      ///< pixels
  std::size_t channels;  ///< bytes of a pixel: 1 or 3

  /// The class of an image, in [0, 10), without drawing it.
  int (*label_of)(const DrawingId& id) noexcept;

  /// Draws an image of features() bytes, row-major from the top left.
  void (*draw)(const DrawingId& id, std::span<std::uint8_t> image) noexcept;

  std::uint64_t records(Part part) const noexcept {
    return part == Part::train ? train_records : test_records;
  }
  std::size_t features() const noexcept { return side * side * channels; }
  std::vector<std::uint64_t> shape() const;  ///< {28, 28}, {32, 32, 3}
};

/// `synthetic`: handwritten digits, 28x28 bytes, as many as in MNIST and about as hard.
extern const DrawnSet drawn_digits;

/// `synthetic-rgb`: objects of random colours before random backgrounds, 32x32 pixels, as many as
/// in CIFAR-10. The classes are house, tree, car, boat, fish, mug, flower, aeroplane, mushroom and
/// butterfly.
extern const DrawnSet drawn_objects;

/// All of them.
std::array<const DrawnSet*, 2> drawn_sets() noexcept;

/// The set of that name; null if there is none.
const DrawnSet* drawn_set(std::string_view name) noexcept;

/// The records of a built-in data set.
///
/// Draws a record on its first read and caches its bytes, allocated in blocks.
/// Local; not thread-safe.
class SyntheticSource final : public Source {
 public:
  /// A limit above the number of records means all. Throws ConfigError for a limit of 0, or fewer
  /// than 10 classes. `set` must outlive the source.
  SyntheticSource(const DrawnSet& set, Part part, const ReadOptions& options);

  std::uint64_t records() const noexcept override { return records_; }
  std::size_t features() const noexcept override { return set_.features(); }
  float divisor() const noexcept override { return scale_.divisor(); }
  std::vector<std::uint64_t> file_records() const override { return {}; }
  Element element() const noexcept override { return Element::byte; }
  std::vector<std::uint64_t> shape() const override { return set_.shape(); }
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
  struct Image {
    std::span<const std::uint8_t> pixels;
    std::int32_t label;
  };

  /// The record `index`; draws it if it is not cached.
  Image drawn(std::uint64_t index);

  const DrawnSet& set_;
  Part part_;
  std::uint64_t records_;
  int classes_;
  ByteScale scale_;
  std::vector<Block> blocks_;
};

}  // namespace lockstep::data

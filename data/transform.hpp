// Random changes of training images: each a pure function of seed, epoch and record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// How much images are changed; 0 each: not at all.
struct Augmentation {
  double shift = 0;   ///< pixels, at most, either way, in rows and in columns
  double rotate = 0;  ///< degrees, at most, either way, about the middle; at most 180
  double noise = 0;   ///< standard deviation, in units of the features as the network sees them

  bool any() const noexcept { return moves() || noise > 0; }
  bool moves() const noexcept { return shift > 0 || rotate > 0; }
  bool operator==(const Augmentation&) const = default;
};

/// Reads "none", or "shift=2,rotate=10,noise=0.05": any of them, in any order, each once.
///
/// Errors   throws ConfigError with the reason alone: unknown name (with the nearest valid one),
///          one that stands twice, no number, a negative one, or one out of range.
Augmentation parse_augmentation(std::string_view text);

/// Changes features on their way from the source to the batch.
///
/// An image is turned by an angle and moved by a distance, both uniform, then sampled bilinearly;
/// what comes from outside is 0. Then each feature gets noise of its own: the sum of four uniforms,
/// bell-shaped, never beyond 3.5 standard deviations; results are not clamped.
///
/// Ranks    which rank reads a record, at which step, in which batch, changes nothing: random
///          numbers come from Philox at (seed; epoch, id, count), never from a state.
/// Bits     additions, multiplications, one division and roundings, each correctly rounded and in
///          a written order; sine and cosine are fixed polynomials in double. So the bits are the
///          same on every IEEE machine.
/// Threads  one at a time: it holds an image's copy.
class Transform {
 public:
  /// `dims` of a record as Source::shape() says.
  ///
  /// Errors   throws ConfigError where images are to be moved, and records are none: rows and
  ///          columns, and maybe channels behind them.
  Transform(const Augmentation& augmentation, std::uint64_t seed,
            const std::vector<std::size_t>& dims);

  /// Changes the rows of `x`, [ids.size(), features], as they are in `epoch` (modulo 2^32).
  void apply(std::uint64_t epoch, std::span<const std::uint64_t> ids, std::span<float> x);

 private:
  void move(std::uint32_t epoch, std::uint64_t id, std::span<float> image);
  void sample(double row, double column, std::span<float> channels) const;
  void add_noise(std::uint32_t epoch, std::uint64_t id, std::span<float> image) const;

  Augmentation augmentation_;
  std::uint64_t seed_;
  std::size_t features_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  std::size_t channels_ = 1;
  std::vector<float> before_;  // the image that is being moved
};

}  // namespace lockstep::data

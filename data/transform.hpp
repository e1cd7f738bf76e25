// Random augmentation of training images, as a pure function of seed, epoch and record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// Augmentation parameters; 0 disables each.
struct Augmentation {
  double shift = 0;   ///< maximum shift in pixels, in both directions, of rows and columns
  double rotate = 0;  ///< maximum angle in degrees, in both directions, about the centre; <= 180
  double noise = 0;   ///< standard deviation, in units of the divided features

  bool any() const noexcept { return moves() || noise > 0; }
  bool moves() const noexcept { return shift > 0 || rotate > 0; }
  bool operator==(const Augmentation&) const = default;
};

/// Parses "none", or "shift=2,rotate=10,noise=0.05": any subset in any order, each at most once.
///
/// Errors   throws ConfigError with only the reason: unknown name (with the nearest valid one),
///          duplicate name, invalid number, negative number, or number out of range.
Augmentation parse_augmentation(std::string_view text);

/// Augments features between the source and the batch.
///
/// Rotates an image by an angle and shifts it by a distance, both uniform, with bilinear sampling;
/// pixels outside the image are 0. Then adds independent noise to each feature: a scaled sum of
/// four uniforms, about normal, within 3.5 standard deviations. Does not clamp the results.
///
/// Ranks    results do not depend on rank, step or batch: random numbers come from stateless
///          Philox at (seed; epoch, id, count).
/// Bits     additions, multiplications, one division and roundings, each correctly rounded and in
///          a fixed order; sine and cosine are fixed polynomials in double. So the bits are the
///          same on every IEEE machine.
/// Threads  not thread-safe: it stores a copy of an image.
class Transform {
 public:
  /// `dims`: the shape of a record, Source::shape().
  ///
  /// Errors   throws ConfigError for shift or rotate unless records are images: {rows, columns} or
  ///          {rows, columns, channels}.
  Transform(const Augmentation& augmentation, std::uint64_t seed,
            const std::vector<std::size_t>& dims);

  /// Augments the rows of `x`, [ids.size(), features], for `epoch` (modulo 2^32).
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
  std::vector<float> before_;  // copy of the image before shift and rotation
};

}  // namespace lockstep::data

// Random numbers, strokes and pens: what the built-in data sets are drawn with.
//
// Integers, and floats in a fixed order without libm or contraction: every machine with IEEE
// arithmetic draws the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "lockstep/base/philox.hpp"

namespace lockstep::data {

/// Identifies an image of a data set: equal ids give equal images on every machine.
struct DrawingId {
  std::uint64_t seed;
  std::uint32_t part;   ///< 0 training, 1 test
  std::uint64_t index;  ///< index within the part
};

/// The sequence of random numbers of one image.
class Draws {
 public:
  /// `set` is the number of the built-in data set: each has random numbers of its own.
  Draws(const DrawingId& id, std::uint32_t set) noexcept
      : key_(philox_key(id.seed)),
        counter_{0, 2 * set + id.part, static_cast<std::uint32_t>(id.index),
                 static_cast<std::uint32_t>(id.index >> 32)} {}

  std::uint32_t word() noexcept {
    if (used_ == block_.size()) {
      block_ = Philox::at(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }

  /// Uniform over [0, n).
  std::uint32_t below(std::uint32_t n) noexcept {
    return static_cast<std::uint32_t>((std::uint64_t{word()} * n) >> 32);
  }

  /// Uniform over [0, 1).
  float unit() noexcept { return unit_float(word()); }

  /// In (-max, max), with a density that is highest at 0.
  float about_zero(float max) noexcept {
    const std::uint32_t bits = word();
    const auto high = static_cast<std::int32_t>(bits >> 16);
    const auto low = static_cast<std::int32_t>(bits & 0xFFFFU);
    return static_cast<float>(high - low) * (max / 65536.0F);
  }

 private:
  Philox::Key key_;
  Philox::Block counter_;
  Philox::Block block_{};
  std::size_t used_ = block_.size();
};

/// The noise of value `index` of an image, in [0, 64): a hash of `grain`, the image's random word.
constexpr std::int32_t speck(std::uint32_t grain, std::size_t index) noexcept {
  const std::uint32_t bits = (grain ^ static_cast<std::uint32_t>(index)) * 0x9E3779B1U;
  return static_cast<std::int32_t>((bits ^ (bits >> 15)) * 0x85EBCA77U >> 26);
}

/// Up to `most` values, stored in the object.
template <class T, std::size_t most>
class Few {
 public:
  constexpr Few() = default;
  constexpr Few(std::initializer_list<T> values) {
    for (const T& value : values) values_[size_++] = value;
  }

  constexpr std::span<const T> all() const noexcept { return {values_.data(), size_}; }
  constexpr std::span<T> all() noexcept { return {values_.data(), size_}; }

 private:
  std::size_t size_ = 0;
  std::array<T, most> values_{};
};

/// A point in glyph coordinates, x to the right, y downwards, both about [0, 100]; or in pixels.
struct Point {
  float x;
  float y;
};

/// Cosine (x) and sine (y) of a small angle in radians; libm's results differ between machines.
Point direction(float angle) noexcept;

/// How the points of a stroke are connected.
enum class Path {
  straight,  ///< a polyline
  curve,     ///< a smooth curve through the points
  loop,      ///< a closed smooth curve
};

/// One continuous pen stroke.
class Stroke {
 public:
  static constexpr std::size_t max_points = 12;

  constexpr Stroke() = default;
  constexpr Stroke(Path path, std::initializer_list<Point> points) : path_(path), points_(points) {}

  constexpr Path path() const noexcept { return path_; }
  constexpr std::span<const Point> points() const noexcept { return points_.all(); }

  /// Left and right swapped.
  constexpr Stroke mirrored() const noexcept {
    Stroke other = *this;
    for (Point& point : other.points_.all()) point.x = 100.0F - point.x;
    return other;
  }

 private:
  Path path_ = Path::straight;
  Few<Point, max_points> points_;
};

/// Ranges of the random parameters of a Hand: each is in (-range, range).
struct HandRanges {
  float size;          ///< pixels per unit of the glyph's square
  float size_spread;   ///< relative
  float width_spread;  ///< relative to the height
  float turn;          ///< radians
  float slant;         ///< horizontal pixels per vertical pixel
  float shift;         ///< pixels
  float bend;          ///< units per squared unit
  float shake;         ///< units, independent for each point
  float scrawl;        ///< relative increase of shake and bend, at most
};

/// Maps glyph coordinates to pixels: jitter of each point, a quadratic bend, an affine map.
class Hand {
 public:
  /// Draws the parameters; the glyph's centre is near that of an image of `side` x `side` pixels.
  Hand(const HandRanges& ranges, std::size_t side, Draws& draws) noexcept;

  Point place(Point point, Draws& draws) const noexcept;

 private:
  float shake_;
  std::array<float, 6> bend_;
  float xx_, xy_, yx_, yy_, x_, y_;
};

struct Line {
  Point from;
  Point to;
};

/// A stroke in pixels, its curves as short lines: each begins where the one before ends, or within
/// rounding of it.
class Polyline {
 public:
  /// Places the stroke's points by `hand`.
  Polyline(const Stroke& stroke, const Hand& hand, Draws& draws) noexcept;

  std::span<const Line> lines() const noexcept { return {lines_.data(), size_}; }

 private:
  static constexpr std::size_t pieces = 3;  // of a curve between two points

  void add(Point from, Point to) noexcept { lines_[size_++] = {from, to}; }

  /// Adds the uniform Catmull-Rom curve from b to c; a and d are the neighbouring points.
  void add_curve(Point a, Point b, Point c, Point d) noexcept;

  std::size_t size_ = 0;
  std::array<Line, pieces * Stroke::max_points> lines_;
};

/// A round pen: how much ink a pixel gets at a distance from the stroke.
class Pen {
 public:
  /// `radius` in pixels.
  explicit Pen(float radius) noexcept;

  /// The distance from which on no ink is left.
  float reach() const noexcept { return outer_; }

  /// In [0, 1]: 1 on the stroke, and less over its edge.
  float ink(float squared_distance) const noexcept {
    float covered = (outer_ * outer_ - squared_distance) * fade_;
    covered = covered > 0.0F ? covered : 0.0F;
    return covered < 1.0F ? covered : 1.0F;
  }

 private:
  float outer_;
  float fade_;
};

/// The squared distance of each pixel to the nearest line, up to the pen's reach; and the pixels
/// inside of outlines.
class Sheet {
 public:
  static constexpr std::size_t max_side = 32;

  Sheet(std::size_t side, float reach) noexcept;

  /// Draws the lines. Visits only pixels within reach of their bounding boxes.
  void draw(const Polyline& polyline) noexcept;

  /// Draws the lines, and fills the outline that they are, with the last point joined to the first:
  /// the distance of pixels inside is 0.
  void fill(const Polyline& outline) noexcept;

  float nearest(std::size_t row, std::size_t column) const noexcept {
    return (inside_[row] >> column & 1U) != 0 ? 0.0F : nearest_[row * stride + column];
  }

 private:
  static constexpr std::size_t group = 4;                  // columns at once
  static constexpr std::size_t stride = max_side + group;  // room for the last group of a row

  int pixel(float place) const noexcept;
  void draw(Point a, Point b) noexcept;
  void flip_right_of(Point a, Point b) noexcept;

  std::size_t side_;
  float reach_;
  std::array<float, max_side * stride> nearest_;
  std::array<std::uint64_t, max_side> inside_{};  // a bit for each column
};

}  // namespace lockstep::data

// How people write the ten digits: the strokes of each writing variant, before any hand shakes.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace lockstep::data {

/// A place on the glyph's square: x to the right, y downwards, both about [0, 100].
struct Point {
  float x;
  float y;
};

/// How the pen goes from point to point.
enum class Path {
  straight,  ///< a polyline
  curve,     ///< a smooth curve through the points
  loop,      ///< the same, back to the first point
};

/// One movement of the pen, without lifting it.
class Stroke {
 public:
  static constexpr std::size_t most_points = 12;

  constexpr Stroke() = default;
  constexpr Stroke(Path path, std::initializer_list<Point> points) : path_(path) {
    for (const Point& point : points) points_[size_++] = point;
  }

  constexpr Path path() const noexcept { return path_; }
  constexpr std::span<const Point> points() const noexcept { return {points_.data(), size_}; }

 private:
  Path path_ = Path::straight;
  std::size_t size_ = 0;
  std::array<Point, most_points> points_{};
};

/// One way to write a digit.
class Glyph {
 public:
  static constexpr std::size_t most_strokes = 3;

  constexpr Glyph(std::initializer_list<Stroke> strokes) {
    for (const Stroke& stroke : strokes) strokes_[size_++] = stroke;
  }

  constexpr std::span<const Stroke> strokes() const noexcept { return {strokes_.data(), size_}; }

 private:
  std::size_t size_ = 0;
  std::array<Stroke, most_strokes> strokes_{};
};

/// The ways in which `digit`, in [0, 10), is written; each is about as frequent as the next.
std::span<const Glyph> writing_variants(int digit) noexcept;

}  // namespace lockstep::data

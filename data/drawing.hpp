// Draws one digit of the built-in data set, as a pure function of its index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace lockstep::data {
/// Height and width of a drawn image, as in MNIST.
constexpr std::size_t drawing_side = 28;
constexpr std::size_t drawing_pixels = drawing_side * drawing_side;

/// Identifies an image: equal ids give equal images on every machine.
struct DrawingId {
  std::uint64_t seed;
  std::uint32_t part;   ///< 0 training, 1 test
  std::uint64_t index;  ///< index within the part
};

/// The digit drawn for `id`: uniform over [0, 10).
int drawn_label(const DrawingId& id) noexcept;

/// Draws the image of `id`: bright on black, row-major from the top left.
///
/// The digit's strokes are warped by a random smooth map of the plane, each point is jittered, and
/// a round pen of random width draws the result. Uses integers, and floats in a fixed order without
/// libm or contraction: every machine with IEEE arithmetic gives the same bytes.
void draw(const DrawingId& id, std::span<std::uint8_t, drawing_pixels> image) noexcept;

/// A point in glyph coordinates: x to the right, y downwards, both about [0, 100].
struct Point {
  float x;
  float y;
};

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
  constexpr Stroke(Path path, std::initializer_list<Point> points) : path_(path) {
    for (const Point& point : points) points_[size_++] = point;
  }

  constexpr Path path() const noexcept { return path_; }
  constexpr std::span<const Point> points() const noexcept { return {points_.data(), size_}; }

 private:
  Path path_ = Path::straight;
  std::size_t size_ = 0;
  std::array<Point, max_points> points_{};
};

/// One way to write a digit.
class Glyph {
 public:
  static constexpr std::size_t max_strokes = 3;

  constexpr Glyph(std::initializer_list<Stroke> strokes) {
    for (const Stroke& stroke : strokes) strokes_[size_++] = stroke;
  }

  constexpr std::span<const Stroke> strokes() const noexcept { return {strokes_.data(), size_}; }

 private:
  std::size_t size_ = 0;
  std::array<Stroke, max_strokes> strokes_{};
};

/// The glyphs of `digit`, in [0, 10); all are about equally frequent.
std::span<const Glyph> writing_variants(int digit) noexcept;

}  // namespace lockstep::data

#include "lockstep/data/drawing.hpp"

#include <algorithm>
#include <cstring>

namespace lockstep::data {

Point direction(float angle) noexcept {
  const float square = angle * angle;
  const float sine = angle * (1.0F - square * (1.0F / 6.0F - square * (1.0F / 120.0F)));
  const float cosine = 1.0F - square * (0.5F - square * (1.0F / 24.0F));
  return {cosine, sine};
}

Hand::Hand(const HandRanges& ranges, std::size_t side, Draws& draws) noexcept {
  const float u = draws.unit();
  const float wildness = 1.0F + ranges.scrawl * (u * u) * (u * u) * (u * u);
  shake_ = ranges.shake * wildness;
  for (float& coefficient : bend_) coefficient = draws.about_zero(ranges.bend * wildness);
  const float tall = ranges.size * (1.0F + draws.about_zero(ranges.size_spread));
  const float wide = tall * (1.0F + draws.about_zero(ranges.width_spread));
  const float slant = draws.about_zero(ranges.slant);
  const Point turn = direction(draws.about_zero(ranges.turn));
  xx_ = turn.x * wide;
  xy_ = (turn.x * -slant - turn.y) * tall;
  yx_ = turn.y * wide;
  yy_ = (turn.x - turn.y * slant) * tall;
  const float middle = static_cast<float>(side - 1) / 2.0F;
  x_ = middle + draws.about_zero(ranges.shift);
  y_ = middle + draws.about_zero(ranges.shift);
}

Point Hand::place(Point point, Draws& draws) const noexcept {
  const float x = point.x - 50.0F + draws.about_zero(shake_);
  const float y = point.y - 50.0F + draws.about_zero(shake_);
  const float bent_x = x + (bend_[0] * x * x + bend_[1] * x * y + bend_[2] * y * y);
  const float bent_y = y + (bend_[3] * x * x + bend_[4] * x * y + bend_[5] * y * y);
  return {x_ + (xx_ * bent_x + xy_ * bent_y), y_ + (yx_ * bent_x + yy_ * bent_y)};
}

Polyline::Polyline(const Stroke& stroke, const Hand& hand, Draws& draws) noexcept {
  std::array<Point, Stroke::max_points> placed{};
  const std::size_t size = stroke.points().size();
  for (std::size_t i = 0; i < size; ++i) placed[i] = hand.place(stroke.points()[i], draws);
  if (stroke.path() == Path::straight) {
    for (std::size_t i = 0; i + 1 < size; ++i) add(placed[i], placed[i + 1]);
  } else if (stroke.path() == Path::loop) {
    for (std::size_t i = 0; i < size; ++i) {
      add_curve(placed[(i + size - 1) % size], placed[i], placed[(i + 1) % size],
                placed[(i + 2) % size]);
    }
  } else {
    for (std::size_t i = 0; i + 1 < size; ++i) {
      add_curve(placed[i == 0 ? 0 : i - 1], placed[i], placed[i + 1],
                placed[std::min(i + 2, size - 1)]);
    }
  }
}

void Polyline::add_curve(Point a, Point b, Point c, Point d) noexcept {
  const auto at = [](float p, float q, float r, float s, float t) {
    const float linear = r - p;
    const float square = 2.0F * p - 5.0F * q + 4.0F * r - s;
    const float cube = 3.0F * (q - r) + s - p;
    return q + 0.5F * t * (linear + t * (square + t * cube));
  };
  Point from = b;
  for (std::size_t piece = 1; piece <= pieces; ++piece) {
    const float t = static_cast<float>(piece) / static_cast<float>(pieces);
    const Point to{at(a.x, b.x, c.x, d.x, t), at(a.y, b.y, c.y, d.y, t)};
    add(from, to);
    from = to;
  }
}

namespace {

constexpr float edge = 0.65F;  // half the width in pixels of the faded edge of a stroke
constexpr float far = 1e9F;

}  // namespace

Pen::Pen(float radius) noexcept : outer_(radius + edge) {
  const float inner = std::max(radius - edge, 0.0F);
  fade_ = 1.0F / (outer_ * outer_ - inner * inner);
}

Sheet::Sheet(std::size_t side, float reach) noexcept : side_(side), reach_(reach) {
  nearest_.fill(far);
}

void Sheet::draw(const Polyline& polyline) noexcept {
  for (const Line& line : polyline.lines()) draw(line.from, line.to);
}

void Sheet::fill(const Polyline& outline) noexcept {
  draw(outline);
  const auto lines = outline.lines();
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    flip_right_of(lines[i].from, lines[i + 1].from);  // without a gap
  }
  flip_right_of(lines.back().from, lines.back().to);
  draw(lines.back().to, lines.front().from);
  flip_right_of(lines.back().to, lines.front().from);
}

int Sheet::pixel(float place) const noexcept {
  return static_cast<int>(std::clamp(place, 0.0F, static_cast<float>(side_)));
}

/// Visits groups of columns. Vector extension, because GCC's scalar code branches on every pixel.
void Sheet::draw(Point a, Point b) noexcept {
  using Lanes [[gnu::vector_size(group * sizeof(float))]] = float;
  constexpr Lanes lane{0.0F, 1.0F, 2.0F, 3.0F};
  const Point along{b.x - a.x, b.y - a.y};
  const float scale = 1.0F / std::max(along.x * along.x + along.y * along.y, 1e-6F);
  const int top = pixel(std::min(a.y, b.y) - reach_ + 1.0F);
  const int bottom = pixel(std::max(a.y, b.y) + reach_ + 1.0F);
  const int left = pixel(std::min(a.x, b.x) - reach_ + 1.0F);
  const int right = pixel(std::max(a.x, b.x) + reach_ + 1.0F);
  for (int row = top; row < bottom; ++row) {
    const float y = static_cast<float>(row) - a.y;
    for (int column = left; column < right; column += static_cast<int>(group)) {
      float* const pixels =
          &nearest_[static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(column)];
      const Lanes x = lane + (static_cast<float>(column) - a.x);
      Lanes t = (x * along.x + y * along.y) * scale;
      t = t > 0.0F ? t : Lanes{};
      t = t < 1.0F ? t : Lanes{} + 1.0F;
      const Lanes dx = x - t * along.x;
      const Lanes dy = y - t * along.y;
      const Lanes distance = dx * dx + dy * dy;
      Lanes nearest;
      std::memcpy(&nearest, pixels, sizeof nearest);
      nearest = distance < nearest ? distance : nearest;
      std::memcpy(pixels, &nearest, sizeof nearest);
    }
  }
}

/// Changes inside to outside, and back, right of the line: a pixel that an odd number of an
/// outline's lines have on their right is inside.
void Sheet::flip_right_of(Point a, Point b) noexcept {
  if (a.y > b.y) std::swap(a, b);
  const int bottom = pixel(b.y + 1.0F);
  for (int row = pixel(a.y + 1.0F); row < bottom; ++row) {
    const float t = (static_cast<float>(row) - a.y) / (b.y - a.y);
    const int column = pixel(a.x + t * (b.x - a.x) + 1.0F);
    inside_[static_cast<std::size_t>(row)] ^= ~std::uint64_t{0} << column;
  }
}

}  // namespace lockstep::data

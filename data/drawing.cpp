#include "lockstep/data/drawing.hpp"

#include <algorithm>
#include <cstring>

#include "lockstep/base/philox.hpp"

namespace lockstep::data {
namespace {

// Ranges of the handwriting parameters. Tuned so that the digits are about as hard as MNIST for a
// linear classifier and the tutorial's network; any change changes every image.
namespace hand {
constexpr float size = 0.20F;          // pixels per unit of the glyph's square
constexpr float size_spread = 0.16F;   // relative, both directions
constexpr float width_spread = 0.26F;  // relative to the height
constexpr float turn = 0.30F;          // radians
constexpr float slant = 0.38F;         // horizontal pixels per vertical pixel
constexpr float shift = 2.6F;          // pixels
constexpr float bend = 0.0045F;        // units per squared unit
constexpr float shake = 6.6F;          // units, independent for each point
constexpr float scrawl = 2.0F;         // relative increase of shake and bend, at most
constexpr float pen_least = 0.75F;     // pixels, half the pen's width
constexpr float pen_most = 1.75F;
constexpr float edge = 0.65F;      // half the width in pixels of the faded edge of a stroke
constexpr float faintest = 0.75F;  // relative to full ink
}  // namespace hand

/// The sequence of random numbers of one image.
class Draws {
 public:
  explicit Draws(const DrawingId& id) noexcept
      : key_(philox_key(id.seed)),
        counter_{0, id.part, static_cast<std::uint32_t>(id.index),
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

  /// In (-most, most), with a density that is highest at 0.
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

/// Cosine and sine of a small angle; libm's results differ between machines.
Point direction(float angle) noexcept {
  const float square = angle * angle;
  const float sine = angle * (1.0F - square * (1.0F / 6.0F - square * (1.0F / 120.0F)));
  const float cosine = 1.0F - square * (0.5F - square * (1.0F / 24.0F));
  return {cosine, sine};
}

/// Maps glyph coordinates to pixels: jitter of each point, a quadratic bend, an affine map.
class Hand {
 public:
  explicit Hand(Draws& draws) noexcept {
    const float u = draws.unit();
    const float wildness = 1.0F + hand::scrawl * (u * u) * (u * u) * (u * u);
    shake_ = hand::shake * wildness;
    for (float& coefficient : bend_) coefficient = draws.about_zero(hand::bend * wildness);
    const float tall = hand::size * (1.0F + draws.about_zero(hand::size_spread));
    const float wide = tall * (1.0F + draws.about_zero(hand::width_spread));
    const float slant = draws.about_zero(hand::slant);
    const Point turn = direction(draws.about_zero(hand::turn));
    xx_ = turn.x * wide;
    xy_ = (turn.x * -slant - turn.y) * tall;
    yx_ = turn.y * wide;
    yy_ = (turn.x - turn.y * slant) * tall;
    constexpr float middle = (drawing_side - 1) / 2.0F;
    x_ = middle + draws.about_zero(hand::shift);
    y_ = middle + draws.about_zero(hand::shift);
  }

  Point place(Point point, Draws& draws) const noexcept {
    float x = point.x - 50.0F + draws.about_zero(shake_);
    float y = point.y - 50.0F + draws.about_zero(shake_);
    const float bent_x = x + (bend_[0] * x * x + bend_[1] * x * y + bend_[2] * y * y);
    const float bent_y = y + (bend_[3] * x * x + bend_[4] * x * y + bend_[5] * y * y);
    return {x_ + (xx_ * bent_x + xy_ * bent_y), y_ + (yx_ * bent_x + yy_ * bent_y)};
  }

 private:
  float shake_;
  std::array<float, 6> bend_;
  float xx_, xy_, yx_, yy_, x_, y_;
};

/// The squared distance of each pixel to the nearest stroke, up to the pen's reach.
class Sheet {
 public:
  explicit Sheet(float reach) noexcept : reach_(reach) { nearest_.fill(far); }

  float nearest(std::size_t row, std::size_t column) const noexcept {
    return nearest_[row * stride + column];
  }

  /// Draws the line from a to b. Visits only pixels within reach of its bounding box, in groups of
  /// columns.
  void line(Point a, Point b) noexcept {
    const Point along{b.x - a.x, b.y - a.y};
    const float scale = 1.0F / std::max(along.x * along.x + along.y * along.y, 1e-6F);
    const int top = pixel(std::min(a.y, b.y) - reach_ + 1.0F);
    const int bottom = pixel(std::max(a.y, b.y) + reach_ + 1.0F);
    const int left = pixel(std::min(a.x, b.x) - reach_ + 1.0F);
    const int right = pixel(std::max(a.x, b.x) + reach_ + 1.0F);
    for (int row = top; row < bottom; ++row) {
      const float y = static_cast<float>(row) - a.y;
      for (int column = left; column < right; column += group) {
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

 private:
  // Four columns at once. Vector extension, because GCC's scalar code branches on every pixel.
  using Lanes [[gnu::vector_size(4 * sizeof(float))]] = float;
  static constexpr int group = 4;
  static constexpr Lanes lane{0.0F, 1.0F, 2.0F, 3.0F};
  static constexpr std::size_t stride = drawing_side + group;  // room for the last group of a row
  static constexpr float far = 1e9F;

  static int pixel(float place) noexcept {
    return static_cast<int>(std::clamp(place, 0.0F, static_cast<float>(drawing_side)));
  }

  float reach_;
  std::array<float, drawing_side * stride> nearest_;
};

/// Draws the uniform Catmull-Rom curve from b to c; a and d are the neighbouring points.
void draw_curve(Sheet& sheet, Point a, Point b, Point c, Point d) noexcept {
  constexpr int pieces = 3;
  const auto at = [](float p, float q, float r, float s, float t) {
    const float linear = r - p;
    const float square = 2.0F * p - 5.0F * q + 4.0F * r - s;
    const float cube = 3.0F * (q - r) + s - p;
    return q + 0.5F * t * (linear + t * (square + t * cube));
  };
  Point from = b;
  for (int piece = 1; piece <= pieces; ++piece) {
    const float t = static_cast<float>(piece) / static_cast<float>(pieces);
    const Point to{at(a.x, b.x, c.x, d.x, t), at(a.y, b.y, c.y, d.y, t)};
    sheet.line(from, to);
    from = to;
  }
}

void draw_stroke(Sheet& sheet, const Stroke& stroke, const Hand& hand, Draws& draws) noexcept {
  std::array<Point, Stroke::max_points> placed{};
  const std::size_t size = stroke.points().size();
  for (std::size_t i = 0; i < size; ++i) placed[i] = hand.place(stroke.points()[i], draws);
  if (stroke.path() == Path::straight) {
    for (std::size_t i = 0; i + 1 < size; ++i) sheet.line(placed[i], placed[i + 1]);
  } else if (stroke.path() == Path::loop) {
    for (std::size_t i = 0; i < size; ++i) {
      draw_curve(sheet, placed[(i + size - 1) % size], placed[i], placed[(i + 1) % size],
                 placed[(i + 2) % size]);
    }
  } else {
    for (std::size_t i = 0; i + 1 < size; ++i) {
      draw_curve(sheet, placed[i == 0 ? 0 : i - 1], placed[i], placed[i + 1],
                 placed[std::min(i + 2, size - 1)]);
    }
  }
}

/// Renders the strokes with faded edges and per-pixel noise.
void develop(const Sheet& sheet, float pen, Draws& draws,
             std::span<std::uint8_t, drawing_pixels> image) noexcept {
  const float inner = std::max(pen - hand::edge, 0.0F);
  const float outer = pen + hand::edge;
  const float fade = 1.0F / (outer * outer - inner * inner);
  const float ink = 255.0F - (1.0F - hand::faintest) * 255.0F * draws.unit();
  const std::uint32_t grain = draws.word();
  for (std::size_t row = 0; row < drawing_side; ++row) {
    for (std::size_t column = 0; column < drawing_side; ++column) {
      const std::size_t pixel = row * drawing_side + column;
      const std::uint32_t speck = (grain ^ static_cast<std::uint32_t>(pixel)) * 0x9E3779B1U;
      const auto noise = static_cast<std::int32_t>((speck ^ (speck >> 15)) * 0x85EBCA77U >> 26);
      float covered = (outer * outer - sheet.nearest(row, column)) * fade;
      covered = covered > 0.0F ? covered : 0.0F;
      covered = covered < 1.0F ? covered : 1.0F;
      const float value = covered * (ink - static_cast<float>(noise));
      image[pixel] = static_cast<std::uint8_t>(static_cast<std::int32_t>(value));
    }
  }
}

}  // namespace

int drawn_label(const DrawingId& id) noexcept { return static_cast<int>(Draws(id).below(10)); }

void draw(const DrawingId& id, std::span<std::uint8_t, drawing_pixels> image) noexcept {
  Draws draws(id);
  const auto variants = writing_variants(static_cast<int>(draws.below(10)));
  const Glyph& glyph = variants[draws.below(static_cast<std::uint32_t>(variants.size()))];
  const Hand hand(draws);
  const float pen = hand::pen_least + (hand::pen_most - hand::pen_least) * draws.unit();
  Sheet sheet(pen + hand::edge);
  for (const Stroke& stroke : glyph.strokes()) draw_stroke(sheet, stroke, hand, draws);
  develop(sheet, pen, draws, image);
}

namespace {

using enum Path;

constexpr std::array zero{
    Glyph{{loop, {{50, 5}, {28, 15}, {18, 50}, {28, 85}, {50, 95}, {72, 85}, {82, 50}, {72, 15}}}},
    Glyph{
        {curve,
         {{58, 7}, {36, 14}, {22, 48}, {32, 88}, {56, 94}, {78, 62}, {74, 26}, {52, 8}, {40, 16}}}},
    Glyph{{loop, {{50, 16}, {20, 30}, {16, 58}, {34, 86}, {62, 86}, {84, 60}, {76, 28}}}},
};

constexpr std::array one{
    Glyph{{straight, {{50, 5}, {50, 50}, {50, 95}}}},
    Glyph{{straight, {{34, 26}, {52, 6}, {52, 50}, {51, 95}}}},
    Glyph{{straight, {{32, 25}, {52, 6}, {52, 95}}}, {straight, {{30, 95}, {74, 94}}}},
    Glyph{{curve, {{56, 4}, {50, 35}, {49, 65}, {46, 96}}}},
};

constexpr std::array two{
    Glyph{{curve, {{22, 28}, {36, 8}, {60, 6}, {76, 25}, {66, 50}, {42, 75}, {22, 93}}},
          {straight, {{22, 93}, {80, 92}}}},
    Glyph{{curve,
           {{24, 25},
            {46, 6},
            {70, 14},
            {70, 40},
            {50, 68},
            {28, 90},
            {18, 82},
            {34, 75},
            {58, 90},
            {84, 86}}}},
    Glyph{{curve, {{20, 16}, {48, 7}, {76, 20}, {70, 42}, {46, 68}, {22, 91}}},
          {curve, {{22, 91}, {50, 86}, {84, 94}}}},
};

constexpr std::array three{
    Glyph{{curve, {{24, 16}, {48, 5}, {72, 20}, {62, 40}, {42, 47}}},
          {curve, {{42, 47}, {68, 54}, {78, 74}, {58, 94}, {34, 94}, {18, 80}}}},
    Glyph{{straight, {{24, 8}, {74, 8}, {44, 42}}},
          {curve, {{44, 42}, {70, 50}, {78, 72}, {58, 93}, {34, 94}, {18, 82}}}},
    Glyph{{curve,
           {{28, 10},
            {58, 6},
            {70, 24},
            {54, 42},
            {46, 48},
            {56, 52},
            {74, 68},
            {62, 90},
            {30, 95}}}},
};

constexpr std::array four{
    Glyph{{straight, {{28, 8}, {20, 55}, {82, 54}}}, {straight, {{66, 14}, {65, 54}, {62, 95}}}},
    Glyph{{straight, {{62, 95}, {62, 50}, {62, 5}, {16, 66}, {84, 66}}}},
    Glyph{{curve, {{30, 8}, {22, 40}, {34, 56}, {56, 54}, {72, 40}}},
          {curve, {{76, 8}, {70, 50}, {64, 95}}}},
    Glyph{{curve, {{66, 8}, {40, 28}, {24, 52}, {46, 56}, {70, 46}}},
          {straight, {{70, 10}, {66, 52}, {60, 95}}}},
};

constexpr std::array five{
    Glyph{{straight, {{76, 7}, {34, 8}, {29, 45}}},
          {curve, {{29, 45}, {52, 38}, {76, 54}, {74, 80}, {50, 95}, {22, 86}}}},
    Glyph{{curve,
           {{74, 8},
            {42, 10},
            {32, 24},
            {32, 42},
            {58, 46},
            {75, 66},
            {62, 90},
            {38, 95},
            {20, 84}}}},
    Glyph{{straight, {{36, 10}, {32, 44}}},
          {curve, {{32, 44}, {58, 42}, {74, 62}, {64, 88}, {40, 95}, {18, 88}}},
          {straight, {{36, 10}, {58, 9}, {80, 5}}}},
};

constexpr std::array six{
    Glyph{{curve,
           {{66, 6},
            {42, 25},
            {26, 58},
            {31, 86},
            {52, 95},
            {74, 82},
            {74, 62},
            {54, 52},
            {32, 66}}}},
    Glyph{{curve, {{54, 4}, {36, 40}, {28, 72}, {42, 94}, {66, 90}, {72, 70}, {56, 57}, {34, 70}}}},
    Glyph{{curve,
           {{76, 12},
            {50, 8},
            {28, 34},
            {22, 66},
            {40, 92},
            {66, 90},
            {78, 70},
            {62, 52},
            {36, 56},
            {26, 70}}}},
};

constexpr std::array seven{
    Glyph{{straight, {{20, 11}, {78, 9}, {60, 50}, {42, 95}}}},
    Glyph{{straight, {{20, 10}, {78, 9}, {44, 95}}}, {straight, {{32, 52}, {74, 50}}}},
    Glyph{{curve, {{18, 16}, {46, 13}, {76, 10}, {62, 40}, {48, 70}, {44, 95}}}},
    Glyph{{straight, {{20, 26}, {22, 10}, {78, 10}, {56, 50}, {46, 95}}}},
};

constexpr std::array eight{
    Glyph{{curve,
           {{70, 20},
            {50, 5},
            {31, 18},
            {37, 38},
            {60, 54},
            {74, 76},
            {54, 95},
            {30, 86},
            {30, 66},
            {46, 50},
            {66, 36},
            {70, 18}}}},
    Glyph{{loop, {{50, 5}, {31, 14}, {31, 36}, {50, 47}, {69, 36}, {69, 14}}},
          {loop, {{50, 47}, {26, 60}, {26, 86}, {50, 95}, {74, 86}, {74, 60}}}},
    Glyph{{curve,
           {{76, 12},
            {52, 8},
            {30, 22},
            {48, 44},
            {70, 66},
            {64, 90},
            {38, 94},
            {26, 76},
            {44, 54},
            {64, 34},
            {78, 10}}}},
};

constexpr std::array nine{
    Glyph{{loop, {{71, 26}, {54, 7}, {32, 14}, {25, 34}, {40, 50}, {62, 44}}},
          {straight, {{72, 12}, {70, 40}, {64, 95}}}},
    Glyph{{curve,
           {{70, 24},
            {54, 7},
            {32, 15},
            {27, 36},
            {44, 49},
            {66, 40},
            {72, 22},
            {73, 60},
            {62, 88},
            {42, 95},
            {26, 86}}}},
    Glyph{{curve,
           {{68, 14},
            {44, 8},
            {28, 30},
            {40, 48},
            {60, 42},
            {70, 16},
            {68, 42},
            {60, 70},
            {52, 96}}}},
};

}  // namespace

std::span<const Glyph> writing_variants(int digit) noexcept {
  switch (digit) {
    case 0: return zero;
    case 1: return one;
    case 2: return two;
    case 3: return three;
    case 4: return four;
    case 5: return five;
    case 6: return six;
    case 7: return seven;
    case 8: return eight;
    default: return nine;
  }
}

}  // namespace lockstep::data

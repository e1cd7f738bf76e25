// The built-in colour images: an object of one of ten classes, warped and turned, before a
// background of random colours with clutter, and partly behind more of it. Colours do not depend on
// the class.
#include <algorithm>
#include <array>

#include "lockstep/data/drawing.hpp"
#include "lockstep/data/synthetic.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint32_t set_number = 1;
constexpr std::size_t side = 32;

// Tuned so that a linear classifier is poor and a small residual network good; any change changes
// every image.
constexpr HandRanges hand_ranges{.size = 0.21F,
                                 .size_spread = 0.35F,
                                 .width_spread = 0.30F,
                                 .turn = 0.60F,
                                 .slant = 0.30F,
                                 .shift = 6.0F,
                                 .bend = 0.0025F,
                                 .shake = 3.0F,
                                 .scrawl = 1.0F};
constexpr float rim = 0.3F;           // pixels, half the pen's width around filled outlines
constexpr std::uint32_t clutter = 4;  // strokes behind the object: fewer than this
constexpr float light = 0.3F;         // relative, from the centre to an edge

using enum Path;

/// A filled outline, or a line, in one of the object's colours.
struct Piece {
  std::size_t colour;  ///< 0 main, 1 second, 2 details
  Stroke stroke;
  float pen = 0.0F;  ///< units, half the width of a line; 0: filled
};

constexpr Stroke box(float left, float top, float right, float bottom) {
  return {straight, {{left, top}, {right, top}, {right, bottom}, {left, bottom}}};
}

constexpr Stroke oval(float x, float y, float wide, float tall) {
  constexpr float diagonal = 0.7071F;
  const float w = wide * diagonal;
  const float t = tall * diagonal;
  return {loop,
          {{x, y - tall},
           {x + w, y - t},
           {x + wide, y},
           {x + w, y + t},
           {x, y + tall},
           {x - w, y + t},
           {x - wide, y},
           {x - w, y - t}}};
}

/// One way to draw an object; later pieces cover earlier ones.
using Figure = Few<Piece, 9>;

constexpr std::array house{
    Figure{{0, box(16, 46, 84, 94)},
           {1, {straight, {{4, 50}, {50, 8}, {96, 50}}}},
           {2, box(42, 64, 58, 94)},
           {2, box(66, 58, 78, 70)}},
    Figure{{2, box(66, 10, 78, 40)},
           {0, box(22, 42, 78, 94)},
           {1, {straight, {{10, 46}, {50, 12}, {90, 46}}}},
           {2, box(30, 66, 46, 94)},
           {2, box(56, 58, 68, 70)}},
    Figure{{0, box(6, 50, 94, 90)},
           {1, {straight, {{2, 52}, {20, 20}, {80, 20}, {98, 52}}}},
           {2, box(16, 62, 28, 90)},
           {2, box(44, 62, 56, 74)},
           {2, box(70, 62, 82, 74)}},
};

constexpr std::array tree{
    Figure{{1, box(43, 76, 57, 98)},
           {0, {straight, {{50, 34}, {88, 82}, {12, 82}}}},
           {0, {straight, {{50, 4}, {78, 50}, {22, 50}}}}},
    Figure{{1, box(42, 56, 58, 98)}, {0, oval(50, 36, 34, 32)}},
    Figure{{1, box(43, 50, 57, 98)},
           {0, oval(32, 46, 24, 20)},
           {0, oval(68, 46, 24, 20)},
           {0, oval(50, 24, 26, 22)}},
};

constexpr std::array car{
    Figure{{0,
            {straight,
             {{4, 74}, {4, 54}, {24, 50}, {36, 28}, {70, 28}, {82, 50}, {96, 56}, {96, 74}}}},
           {2, {straight, {{34, 49}, {41, 35}, {66, 35}, {73, 49}}}},
           {1, oval(26, 75, 12, 12)},
           {1, oval(75, 75, 12, 12)}},
    Figure{{0, {straight, {{4, 76}, {4, 24}, {62, 24}, {62, 40}, {82, 42}, {96, 58}, {96, 76}}}},
           {2, {straight, {{66, 46}, {80, 47}, {88, 58}, {66, 58}}}},
           {1, oval(24, 77, 12, 12)},
           {1, oval(74, 77, 12, 12)}},
};

constexpr std::array boat{
    Figure{{2, {straight, {{50, 4}, {50, 66}}}, 2.0F},
           {1, {straight, {{53, 8}, {53, 60}, {90, 60}}}},
           {1, {straight, {{46, 16}, {46, 60}, {14, 60}}}},
           {0, {straight, {{4, 66}, {96, 66}, {78, 90}, {22, 90}}}}},
    Figure{{2, {straight, {{38, 4}, {38, 66}}}, 2.0F},
           {1, {curve, {{41, 6}, {66, 28}, {84, 60}, {41, 60}}}},
           {0, {straight, {{6, 66}, {98, 64}, {80, 88}, {16, 88}}}}},
};

constexpr std::array fish{
    Figure{{1, {straight, {{70, 50}, {98, 24}, {90, 50}, {98, 76}}}},
           {1, {straight, {{34, 30}, {58, 8}, {62, 34}}}},
           {0, oval(42, 50, 38, 24)},
           {2, oval(22, 44, 5, 5)}},
    Figure{{1, {straight, {{72, 50}, {96, 28}, {96, 72}}}},
           {0, {loop, {{4, 52}, {30, 30}, {62, 36}, {84, 50}, {62, 64}, {30, 72}}}},
           {2, {straight, {{38, 36}, {38, 66}}}, 3.0F},
           {2, oval(20, 46, 5, 5)}},
};

constexpr std::array mug{
    Figure{{0, oval(72, 52, 18, 20), 4.5F},
           {0, {straight, {{14, 16}, {70, 16}, {66, 90}, {18, 90}}}},
           {1, {straight, {{16, 36}, {69, 36}, {67, 56}, {17, 56}}}}},
    Figure{{0, oval(76, 46, 15, 14), 4.5F},
           {0, {curve, {{8, 28}, {18, 66}, {42, 80}, {66, 66}, {76, 28}}}},
           {1, oval(42, 28, 34, 7)},
           {2, {straight, {{10, 88}, {78, 88}}}, 4.0F}},
};

constexpr std::array flower{
    Figure{{2, {curve, {{50, 40}, {46, 70}, {50, 99}}}, 3.0F},
           {2, {curve, {{48, 84}, {62, 66}, {76, 66}}}},
           {0, oval(50, 16, 13, 14)},
           {0, oval(71, 31, 14, 13)},
           {0, oval(63, 54, 13, 13)},
           {0, oval(37, 54, 13, 13)},
           {0, oval(29, 31, 14, 13)},
           {1, oval(50, 38, 11, 11)}},
    Figure{{0, oval(50, 20, 15, 18)},
           {0, oval(77, 36, 17, 15)},
           {0, oval(76, 65, 17, 15)},
           {0, oval(50, 80, 15, 18)},
           {0, oval(24, 65, 17, 15)},
           {0, oval(23, 36, 17, 15)},
           {1, oval(50, 50, 16, 16)}},
};

constexpr std::array aeroplane{
    Figure{{1, {straight, {{50, 32}, {98, 66}, {98, 76}, {50, 60}, {2, 76}, {2, 66}}}},
           {1, {straight, {{50, 80}, {72, 96}, {28, 96}}}},
           {0, oval(50, 48, 9, 46)},
           {2, oval(50, 16, 5, 6)}},
    Figure{{1, box(2, 34, 98, 50)},
           {1, box(30, 82, 70, 94)},
           {0, oval(50, 50, 10, 44)},
           {2, {straight, {{34, 4}, {66, 4}}}, 2.0F}},
};

constexpr std::array mushroom{
    Figure{{1, {straight, {{38, 46}, {62, 46}, {66, 96}, {34, 96}}}},
           {0, {curve, {{4, 54}, {10, 30}, {28, 12}, {50, 6}, {72, 12}, {90, 30}, {96, 54}}}},
           {2, oval(32, 34, 7, 7)},
           {2, oval(58, 24, 7, 7)},
           {2, oval(74, 42, 6, 6)}},
    Figure{{1, {straight, {{42, 40}, {58, 40}, {60, 94}, {40, 94}}}},
           {0, {straight, {{6, 50}, {50, 14}, {94, 50}, {50, 58}}}},
           {2, oval(38, 40, 6, 5)},
           {2, oval(62, 38, 6, 5)}},
};

constexpr std::array butterfly{
    Figure{{0, {loop, {{48, 46}, {30, 8}, {4, 12}, {10, 46}}}},
           {0, {loop, {{52, 46}, {70, 8}, {96, 12}, {90, 46}}}},
           {1, {loop, {{48, 50}, {14, 56}, {18, 88}, {40, 84}}}},
           {1, {loop, {{52, 50}, {86, 56}, {82, 88}, {60, 84}}}},
           {2, {straight, {{50, 22}, {50, 86}}}, 3.0F}},
    Figure{{0, {straight, {{48, 50}, {6, 6}, {2, 50}}}},
           {0, {straight, {{52, 50}, {94, 6}, {98, 50}}}},
           {0, {straight, {{48, 52}, {12, 60}, {26, 92}}}},
           {0, {straight, {{52, 52}, {88, 60}, {74, 92}}}},
           {1, oval(22, 32, 7, 7)},
           {1, oval(78, 32, 7, 7)},
           {2, oval(50, 52, 5, 30)}},
};

/// The figures of each class.
constexpr std::array<std::span<const Figure>, 10> figures{
    house, tree, car, boat, fish, mug, flower, aeroplane, mushroom, butterfly};

/// Values of 0 to 255; sums may go beyond.
struct Colour {
  float red, green, blue;
};

Colour mix(const Colour& a, const Colour& b, float t) noexcept {
  return {a.red + t * (b.red - a.red), a.green + t * (b.green - a.green),
          a.blue + t * (b.blue - a.blue)};
}

float squared_distance(const Colour& a, const Colour& b) noexcept {
  const Colour d{a.red - b.red, a.green - b.green, a.blue - b.blue};
  return d.red * d.red + d.green * d.green + d.blue * d.blue;
}

Colour random_colour(Draws& draws) noexcept {
  const float red = 255.0F * draws.unit();
  const float green = 255.0F * draws.unit();
  return {red, green, 255.0F * draws.unit()};
}

/// The one of two random colours that differs more from `other`.
Colour colour_unlike(const Colour& other, Draws& draws) noexcept {
  const Colour a = random_colour(draws);
  const Colour b = random_colour(draws);
  return squared_distance(a, other) < squared_distance(b, other) ? b : a;
}

/// A wave of straight flanks between 0 and 1, with period 1.
float triangle_wave(float x) noexcept {
  const float fraction = x - static_cast<float>(static_cast<std::int32_t>(x));
  const float positive = fraction < 0.0F ? fraction + 1.0F : fraction;
  return positive < 0.5F ? 2.0F * positive : 2.0F - 2.0F * positive;
}

/// The picture while it is drawn.
class Canvas {
 public:
  /// Two colours mixed by smooth random values, and stripes.
  explicit Canvas(Draws& draws) noexcept;

  /// The mean of the background's two colours.
  const Colour& ground() const noexcept { return ground_; }

  void cover(const Sheet& sheet, const Pen& pen, const Colour& colour) noexcept {
    for (std::size_t row = 0; row < side; ++row) {
      for (std::size_t column = 0; column < side; ++column) {
        const float ink = pen.ink(sheet.nearest(row, column));
        if (ink == 0.0F) continue;
        Colour& pixel = pixels_[row * side + column];
        pixel = mix(pixel, colour, ink);
      }
    }
  }

  /// Light from a side, and noise in every value.
  void develop(Draws& draws, std::span<std::uint8_t> image) const noexcept;

 private:
  Colour ground_;
  std::array<Colour, side * side> pixels_;
};

Canvas::Canvas(Draws& draws) noexcept {
  constexpr std::size_t cell = 8;  // pixels between random values
  constexpr std::size_t corners = side / cell + 1;
  std::array<float, corners * corners> values;
  for (float& value : values) value = draws.unit();
  const Colour a = random_colour(draws);
  const Colour b = random_colour(draws);
  ground_ = mix(a, b, 0.5F);
  const Colour stripes = random_colour(draws);
  const float strength = 0.5F * draws.unit() * draws.unit();
  const float across = draws.about_zero(0.25F);  // periods a pixel
  const float down = draws.about_zero(0.25F);
  const float phase = draws.unit();
  const auto smooth = [](std::size_t place) {
    const float t = static_cast<float>(place % cell) / static_cast<float>(cell);
    return t * t * (3.0F - 2.0F * t);
  };
  for (std::size_t row = 0; row < side; ++row) {
    const float below = smooth(row);
    for (std::size_t column = 0; column < side; ++column) {
      const float* const corner = &values[row / cell * corners + column / cell];
      const float right = smooth(column);
      const float upper = corner[0] + right * (corner[1] - corner[0]);
      const float lower = corner[corners] + right * (corner[corners + 1] - corner[corners]);
      const float wave = triangle_wave(static_cast<float>(column) * across +
                                       static_cast<float>(row) * down + phase);
      const Colour smoothed = mix(a, b, upper + below * (lower - upper));
      pixels_[row * side + column] = mix(smoothed, stripes, strength * wave);
    }
  }
}

void Canvas::develop(Draws& draws, std::span<std::uint8_t> image) const noexcept {
  const float across = draws.about_zero(light);
  const float down = draws.about_zero(light);
  const float strength = 0.1F + 0.6F * draws.unit();  // of the noise
  const std::uint32_t grain = draws.word();
  constexpr float middle = static_cast<float>(side - 1) / 2.0F;
  std::size_t value = 0;
  for (std::size_t row = 0; row < side; ++row) {
    for (std::size_t column = 0; column < side; ++column) {
      const float brightness = 1.0F + (across * (static_cast<float>(column) - middle) +
                                       down * (static_cast<float>(row) - middle)) /
                                          middle;
      const Colour& pixel = pixels_[row * side + column];
      for (const float channel : {pixel.red, pixel.green, pixel.blue}) {
        const float noise = strength * (static_cast<float>(speck(grain, value)) - 31.5F);
        const float seen = std::clamp(channel * brightness + noise, 0.0F, 255.0F);
        image[value++] = static_cast<std::uint8_t>(static_cast<std::int32_t>(seen));
      }
    }
  }
}

/// A random line or patch of a random colour.
void draw_clutter(Canvas& canvas, Draws& draws) noexcept {
  const Colour colour = random_colour(draws);
  const bool is_line = draws.below(2) == 0;
  const Pen pen(is_line ? 0.4F + 1.2F * draws.unit() : rim);
  const Hand hand(hand_ranges, side, draws);
  const auto anywhere = [&draws] {
    const float x = 200.0F * draws.unit() - 50.0F;
    return Point{x, 200.0F * draws.unit() - 50.0F};
  };
  const Point start = anywhere();
  const auto nearby = [&draws, start] {
    const float x = start.x + draws.about_zero(70.0F);
    return Point{x, start.y + draws.about_zero(70.0F)};
  };
  const Point second = nearby();
  const Point third = nearby();
  const Path path = draws.below(2) == 0 ? curve : straight;
  const Polyline line(Stroke(path, {start, second, third}), hand, draws);
  Sheet sheet(side, pen.reach());
  if (is_line) {
    sheet.draw(line);
  } else {
    sheet.fill(line);
  }
  canvas.cover(sheet, pen, colour);
}

void draw_figure(Canvas& canvas, const Figure& figure, Draws& draws) noexcept {
  const Colour main = colour_unlike(canvas.ground(), draws);
  const Colour second = colour_unlike(main, draws);
  const std::array colours{main, second, colour_unlike(main, draws)};
  const bool is_mirrored = draws.below(2) == 1;
  const Hand hand(hand_ranges, side, draws);
  for (const Piece& piece : figure.all()) {
    const Pen pen(piece.pen > 0.0F ? piece.pen * hand_ranges.size : rim);
    const Polyline line(is_mirrored ? piece.stroke.mirrored() : piece.stroke, hand, draws);
    Sheet sheet(side, pen.reach());
    if (piece.pen > 0.0F) {
      sheet.draw(line);
    } else {
      sheet.fill(line);
    }
    canvas.cover(sheet, pen, colours[piece.colour]);
  }
}

int label_of(const DrawingId& id) noexcept {
  return static_cast<int>(Draws(id, set_number).below(10));
}

void draw(const DrawingId& id, std::span<std::uint8_t> image) noexcept {
  Draws draws(id, set_number);
  const auto variants = figures[draws.below(10)];
  const Figure& figure = variants[draws.below(static_cast<std::uint32_t>(variants.size()))];
  Canvas canvas(draws);
  for (std::uint32_t left = draws.below(clutter); left > 0; --left) draw_clutter(canvas, draws);
  draw_figure(canvas, figure, draws);
  if (draws.below(2) == 0) draw_clutter(canvas, draws);
  canvas.develop(draws, image);
}

}  // namespace

constinit const DrawnSet drawn_objects{.name = "synthetic-rgb",
                                       .title = "drawn objects",
                                       .version = 1,
                                       .train_records = 50'000,
                                       .test_records = 10'000,
                                       .side = side,
                                       .channels = 3,
                                       .label_of = label_of,
                                       .draw = draw};

}  // namespace lockstep::data

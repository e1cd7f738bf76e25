// The built-in digits: strokes, warped by a random smooth map of the plane, each point jittered, in
// a round pen of random width; bright on black.
#include <array>

#include "lockstep/data/drawing.hpp"
#include "lockstep/data/synthetic.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint32_t set_number = 0;
constexpr std::size_t side = 28;

// Tuned so that the digits are about as hard as MNIST for a linear classifier and the tutorial's
// network; any change changes every image.
constexpr HandRanges hand_ranges{.size = 0.20F,
                                 .size_spread = 0.16F,
                                 .width_spread = 0.26F,
                                 .turn = 0.30F,
                                 .slant = 0.38F,
                                 .shift = 2.6F,
                                 .bend = 0.0045F,
                                 .shake = 6.6F,
                                 .scrawl = 2.0F};
constexpr float pen_least = 0.75F;  // pixels, half the pen's width
constexpr float pen_most = 1.75F;
constexpr float faintest = 0.75F;  // relative to full ink

/// One way to write a digit.
using Glyph = Few<Stroke, 3>;

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

/// The glyphs of each digit; all are about equally frequent.
constexpr std::array<std::span<const Glyph>, 10> writing_variants{zero, one, two,   three, four,
                                                                  five, six, seven, eight, nine};

/// Renders the strokes with faded edges and per-pixel noise.
void develop(const Sheet& sheet, const Pen& pen, Draws& draws,
             std::span<std::uint8_t> image) noexcept {
  const float ink = 255.0F - (1.0F - faintest) * 255.0F * draws.unit();
  const std::uint32_t grain = draws.word();
  for (std::size_t row = 0; row < side; ++row) {
    for (std::size_t column = 0; column < side; ++column) {
      const std::size_t pixel = row * side + column;
      const auto noise = static_cast<float>(speck(grain, pixel));
      const float value = pen.ink(sheet.nearest(row, column)) * (ink - noise);
      image[pixel] = static_cast<std::uint8_t>(static_cast<std::int32_t>(value));
    }
  }
}

int label_of(const DrawingId& id) noexcept {
  return static_cast<int>(Draws(id, set_number).below(10));
}

void draw(const DrawingId& id, std::span<std::uint8_t> image) noexcept {
  Draws draws(id, set_number);
  const auto variants = writing_variants[draws.below(10)];
  const Glyph& glyph = variants[draws.below(static_cast<std::uint32_t>(variants.size()))];
  const Hand hand(hand_ranges, side, draws);
  const Pen pen(pen_least + (pen_most - pen_least) * draws.unit());
  Sheet sheet(side, pen.reach());
  for (const Stroke& stroke : glyph.all()) sheet.draw(Polyline(stroke, hand, draws));
  develop(sheet, pen, draws, image);
}

}  // namespace

constinit const DrawnSet drawn_digits{.name = "synthetic",
                                      .title = "drawn digits",
                                      .version = 1,
                                      .train_records = 60'000,
                                      .test_records = 10'000,
                                      .side = side,
                                      .channels = 1,
                                      .label_of = label_of,
                                      .draw = draw};

}  // namespace lockstep::data

#include "lockstep/data/picture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/picture_source.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using data::ImageSize;

Bytes noise(const ImageSize& size, std::size_t channels) {
  Bytes pixels(static_cast<std::size_t>(size.rows * size.columns) * channels);
  std::uint32_t state = 7;
  for (auto& pixel : pixels) {
    state = state * 1664525U + 1013904223U;
    pixel = static_cast<std::uint8_t>(state >> 24);
  }
  return pixels;
}

Bytes resized(const Bytes& pixels, const ImageSize& from, std::size_t channels,
              const ImageSize& to) {
  Bytes x(static_cast<std::size_t>(to.rows * to.columns) * channels);
  data::resize(pixels, from, channels, to, x);
  return x;
}

/// The weight of original `j` in pixel `i` where `length` originals become `pixels`, from the
/// definition: the covered part, or linear interpolation.
double weight(std::int64_t i, std::int64_t j, std::int64_t length, std::int64_t pixels) {
  const double ratio = static_cast<double>(length) / static_cast<double>(pixels);
  const auto x = static_cast<double>(i);
  const auto y = static_cast<double>(j);
  if (length >= pixels) {
    const double begin = std::max(x * ratio, y);
    const double end = std::min((x + 1) * ratio, y + 1);
    return std::max(0.0, end - begin) / ratio;
  }
  const double place = std::clamp((x + 0.5) * ratio - 0.5, 0.0, static_cast<double>(length - 1));
  return std::max(0.0, 1 - std::abs(place - y));
}

TEST_CASE("pictures are scaled as defined", "[data]") {
  const auto [from, to] = GENERATE(table<ImageSize, ImageSize>({{{8, 8}, {4, 4}},
                                                                {{9, 9}, {4, 4}},
                                                                {{5, 5}, {11, 11}},
                                                                {{1, 1}, {3, 3}},
                                                                {{30, 20}, {12, 8}},
                                                                {{2, 3}, {4, 6}},
                                                                {{64, 64}, {63, 63}}}));
  const std::size_t channels = GENERATE(1U, 3U);
  const Bytes pixels = noise(from, channels);
  const Bytes x = resized(pixels, from, channels, to);
  for (std::size_t row = 0; row < to.rows; ++row) {
    for (std::size_t column = 0; column < to.columns; ++column) {
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (std::size_t j = 0; j < from.rows; ++j) {
          for (std::size_t k = 0; k < from.columns; ++k) {
            sum += weight(row, j, from.rows, to.rows) *
                   weight(column, k, from.columns, to.columns) *
                   pixels[(j * from.columns + k) * channels + c];
          }
        }
        CHECK(x[(row * to.columns + column) * channels + c] == Approx(sum).margin(0.5001));
      }
    }
  }
}

TEST_CASE("the centre is cut out before scaling", "[data]") {
  // 2 rows of 6 columns: columns 2 and 3 remain.
  const Bytes wide = {1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16};
  CHECK(resized(wide, {2, 6}, 1, {2, 2}) == Bytes{3, 4, 13, 14});
  CHECK(resized(wide, {6, 2}, 1, {2, 2}) == Bytes{5, 6, 11, 12});
  CHECK(resized(wide, {2, 6}, 1, {1, 1}) == Bytes{9});  // 8.5
  CHECK(resized(wide, {2, 6}, 1, {2, 6}) == wide);
  CHECK(resized({255, 255, 255, 255}, {2, 2}, 1, {77, 33}) == Bytes(77 * 33, 255));
}

TEST_CASE("sizes of pictures are parsed", "[data]") {
  CHECK(data::parse_image_size("auto") == std::nullopt);
  CHECK(data::parse_image_size("28") == ImageSize{28, 28});
  CHECK(data::parse_image_size("28x32") == ImageSize{28, 32});
  for (const char* text : {"", "x", "0", "28x", "28x0", "-1", "5000", "28x28x3"}) {
    CHECK_THROWS_AS(data::parse_image_size(text), ConfigError);
  }
}

}  // namespace
}  // namespace lockstep::test

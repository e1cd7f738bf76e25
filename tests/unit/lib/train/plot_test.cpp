#include "lockstep/train/plot.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/picture.hpp"
#include "lockstep/train/run_directory.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace lockstep::train;
using Catch::Matchers::Contains;
using test::TemporaryFolder;

namespace {

History history(const std::string& name, double factor) {
  History made = {name, {}};
  for (std::uint64_t i = 1; i <= 5; ++i) {
    const double x = static_cast<double>(i);
    made.epochs.push_back({.epoch = i,
                           .train_loss = factor / x,
                           .train_score = 1 - 1 / x,
                           .test = {.loss = factor * 2 / x, .score = 0.9 - 1 / x}});
  }
  return made;
}

/// The error of plotting, or empty. Skips the test where nothing can be drawn.
std::string refusal(std::span<const History> histories, const std::filesystem::path& file) {
  try {
    plot(histories, file);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

constexpr std::array<int, 3> blue = {0, 114, 178};
constexpr std::array<int, 3> orange = {213, 94, 0};
constexpr data::ImageSize size = {.rows = 720, .columns = 1920};

/// The number of pixels of this color in the left half of a PNG file: in the panel of the loss.
std::size_t pixels_of(const std::filesystem::path& file, const std::array<int, 3>& color) {
  std::vector<std::uint8_t> pixels(size.rows * size.columns * 3);
  data::PictureReader().read(file, size, 3, pixels);
  std::size_t count = 0;
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    if (i / 3 % size.columns >= size.columns / 2) continue;
    if (pixels[i] == color[0] && pixels[i + 1] == color[1] && pixels[i + 2] == color[2]) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("a figure has the lines of its histories", "[plot]") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.png";
  const std::array one = {history("a", 1)};
  const std::string refused = refusal(one, file);
  if (refused.find("cairo") != std::string::npos) {
    WARN("SKIPPED: " << refused);
    return;
  }
  REQUIRE(refused.empty());
  const std::size_t training = pixels_of(file, blue);
  const std::size_t test = pixels_of(file, orange);
  CHECK(training > 500);
  CHECK(test > 500);

  std::array gap = one;
  gap[0].epochs[2].train_loss = NAN;  // two of the four parts of the line
  plot(gap, file);
  CHECK(pixels_of(file, blue) < training);
  CHECK(pixels_of(file, orange) == test);

  const std::array flat = {History{"", {{.epoch = 1}}}};  // all zero, and one epoch
  plot(flat, file);
  CHECK(pixels_of(file, orange) > 20);

  const std::array two = {history("a", 1), history("b", 3)};
  plot(two, folder.path() / "b.SVG");
  std::ifstream svg(folder.path() / "b.SVG");
  const std::string text{std::istreambuf_iterator<char>(svg), {}};
  CHECK_THAT(text, Contains("<svg"));
  CHECK_THAT(text, Contains("stroke-dasharray"));
}

TEST_CASE("a panel with logarithmic axes has lines and points", "[plot]") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.png";
  const Curve roof = {.name = "roof", .points = {{0.1, 10}, {1, 100}, {100, 100}}};
  const Curve point = {.name = "point", .color = 1, .is_line = false, .points = {{10, 80}}};
  Panel panel = {.title = "t", .x_name = "x", .is_logarithmic = true, .curves = {roof, point}};
  try {
    draw(std::array{panel, panel}, file);
  } catch (const ConfigError& error) {
    WARN("SKIPPED: " << error.what());
    return;
  }
  CHECK(pixels_of(file, blue) > 500);
  const std::size_t dot = pixels_of(file, orange);
  CHECK(dot > 100);  // the point, and in the legend
  CHECK(dot < 1000);

  panel.curves[1].points = {{80, 11}};  // in the corner that is farther from the roof
  draw(std::array{panel, panel}, file);
  CHECK(pixels_of(file, orange) > dot - dot / 10);

  for (int i = 0; i < 40; ++i) panel.curves[1].points.emplace_back(0.1 * std::pow(1.18, i), 50);
  draw(std::array{panel, panel}, file);
  CHECK(pixels_of(file, orange) > 10 * dot);

  panel.curves.clear();  // axes alone
  draw(std::array{panel, Panel{.title = "t", .x_name = "x"}}, file);
  CHECK(pixels_of(file, orange) == 0);
}

TEST_CASE("figures that cannot be drawn are refused", "[plot]") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a.png";
  std::vector<History> two = {history("a", 1), history("b", 1)};
  if (refusal(two, file).find("cairo") != std::string::npos) return;  // said above
  CHECK_THAT(refusal(two, folder.path() / "a.pdf"), Contains("a.pdf: is neither *.svg nor *.png"));
  CHECK_THAT(refusal({}, file), Contains("no history"));
  two[1].epochs[0].is_regression = true;
  CHECK_THAT(refusal(two, file), Contains("scores of 'a' and 'b' differ"));
  two[1].epochs.clear();
  CHECK_THAT(refusal(two, file), Contains("'b' has no epoch"));
  CHECK_THROWS_AS(plot(std::array{history("", 1)}, folder.path() / "none" / "a.png"), OutputError);
}

TEST_CASE("the epochs of a run are read while it is trained", "[plot]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run";
  RunDirectory directory(path.string(), "", {});
  CHECK_THROWS_WITH(read_epochs(path), Contains("no epoch is recorded"));
  directory.on_epoch(
      {.epoch = 1, .train_loss = 0.5, .test = {.score = 0.25}, .weights_hash = 0xcd});
  directory.on_epoch({.epoch = 2,
                      .train_score = -1.5,
                      .test = {.metrics = {{"auc", std::nan("")}}},
                      .is_regression = true,
                      .validation = SetFigures{.loss = 2, .score = 3, .metrics = {{"auc", 0.75}}}});
  const auto epochs = read_epochs(path);
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[0].train_loss == 0.5);
  CHECK(epochs[0].test.score == 0.25);
  CHECK(epochs[0].weights_hash == 0xcd);
  CHECK(epochs[1].is_regression);
  CHECK(epochs[1].train_score == -1.5);
  REQUIRE(epochs[1].test.metrics.size() == 1);
  CHECK(epochs[1].test.metrics[0].first == "auc");
  CHECK(std::isnan(epochs[1].test.metrics[0].second));
  REQUIRE(epochs[1].validation);
  CHECK(epochs[1].validation->named("loss") == 2);
  CHECK(epochs[1].validation->named("score") == 3);
  CHECK(epochs[1].validation->named("auc") == 0.75);
  CHECK_FALSE(epochs[1].validation->named("top-2"));
  CHECK_THROWS_WITH(read_epochs(folder.path() / "none"), Contains("none: no such folder"));
}

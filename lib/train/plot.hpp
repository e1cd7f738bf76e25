// Figures as SVG or PNG: curves in panels; the epochs of a run, and their figure, loss and score
// against epochs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/train/evaluation.hpp"

namespace lockstep::train {

/// Loss, score and metrics of a data set.
struct SetFigures {
  double loss = 0;
  double score = 0;
  NamedFigures metrics = {};

  /// "loss", "score", or the one of `metrics` with that name; nullopt: there is none.
  std::optional<double> named(std::string_view name) const;
};

/// True of "loss", of which less is better; of all other figures of a data set more is.
bool is_less_better(std::string_view figure);

/// Report of one epoch. Training loss and score are of its examples, computed before the update of
/// each step, without those of skipped steps.
///
/// The score is accuracy; or, of a regression, R2: of training with the mean squared error 1 -
/// loss, which assumes values with a variance of 1, as a table gives them, and no weights.
struct EpochReport {
  std::uint64_t epoch = 0;  ///< from 1
  double train_loss = 0;
  std::optional<double> train_score = {};  ///< none of other regressions
  double test_loss = 0;
  double test_score = 0;
  NamedFigures test_metrics = {};  ///< of the metrics given
  bool is_regression = false;
  std::optional<SetFigures> validation = {};
  double seconds = 0;  ///< of training in this process, without evaluation
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
  /// The leaves of a batch that each rank computes from the next epoch on (Plan::shares()); empty
  /// if that does not change.
  std::vector<std::uint64_t> new_shares = {};
};

/// A line of a panel, or points alone.
struct Curve {
  std::string name;       ///< in the legend; empty: not in it
  std::size_t color = 0;  ///< index in a palette of 7
  bool is_dashed = false;
  bool is_line = true;
  std::vector<std::pair<double, double>> points = {};  ///< in the order of x; y may be not finite
};

/// Curves in one pair of axes.
struct Panel {
  std::string title;
  std::string x_name;
  std::string y_name = {};      ///< empty: none
  bool is_logarithmic = false;  ///< both axes: values are greater than 0
  std::vector<Curve> curves = {};
};

/// Throws ConfigError unless draw() can draw to a file of this name: it has another extension, or
/// this build has no cairo, the library that draws; OutputError if it cannot be created. Local.
void require_drawable(const std::filesystem::path& file);

/// Draws one panel, or two side by side.
///
/// file     "*.svg", 960 x 360 points, or "*.png", 1920 x 720 pixels; replaced atomically.
/// Errors   those of require_drawable(); OutputError: the file cannot be written.
/// Ranks    local; call it on one.
void draw(std::span<const Panel> panels, const std::filesystem::path& file);

/// The epochs of one run.
struct History {
  std::string name = {};  ///< in the legend; needed with several histories
  std::vector<EpochReport> epochs;
};

/// Draws two panels side by side, loss and score (accuracy, or R2), against epochs. Each has a line
/// of the test set and one of training, which is dashed if there are several histories: then a
/// history has a color, and there are at most 7. Values that are not finite are left out of their
/// line.
///
///   plot(std::array{History{"", read_epochs("runs/A")}}, "history.svg");
///
/// Errors   those of draw(); also throws ConfigError: no history, more than 7, or one without
///          epochs; some are of regressions and others are not.
/// Ranks    local; call it on one.
void plot(std::span<const History> histories, const std::filesystem::path& file);

}  // namespace lockstep::train

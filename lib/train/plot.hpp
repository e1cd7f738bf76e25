// The epochs of a run, and their figure: loss and score against epochs, as SVG or PNG.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/train/metrics.hpp"

namespace lockstep::train {

/// Loss, score and metrics of a data set.
struct SetFigures {
  double loss = 0;
  double score = 0;
  NamedFigures metrics = {};
};

/// Report of one epoch. Training loss and score are of its examples, computed before the update of
/// each step, without those of skipped steps.
///
/// The score is accuracy; or, of a regression, R2: of training with the mean squared error 1 -
/// loss, which assumes values with a variance of 1, as a table gives them.
struct EpochReport {
  std::uint64_t epoch = 0;  ///< from 1
  double train_loss = 0;
  std::optional<double> train_score = {};  ///< none of regressions with another loss
  double test_loss = 0;
  double test_score = 0;
  NamedFigures test_metrics = {};  ///< TrainerOptions::metrics
  bool is_regression = false;
  std::optional<SetFigures> validation = {};
  double seconds = 0;  ///< of training in this process, without evaluation
  double examples_per_second = 0;
  std::uint64_t weights_hash = 0;
  /// The leaves of a batch that each rank computes from the next epoch on (Plan::shares()); empty
  /// if that does not change.
  std::vector<std::uint64_t> new_shares = {};
};

/// The epochs of one run.
struct History {
  std::string name = {};  ///< in the legend; needed with several histories
  std::vector<EpochReport> epochs;
};

/// Draws two panels side by side, loss and score (accuracy, or R2), against epochs. Each has a line
/// of the test set and one of training, which is dashed if there are several histories: then a
/// history has a color. Values that are not finite are left out of their line.
///
///   plot(std::array{History{"", trainer.train(replica).epochs}}, "history.svg");
///
/// file     "*.svg", 960 x 360 points, or "*.png", 1920 x 720 pixels; replaced atomically.
/// Errors   throws ConfigError: another extension; no history, or one without epochs; some are of
///          regressions and others are not; this build has no cairo, the library that draws.
///          OutputError: the file cannot be written.
/// Ranks    local; call it on one.
void plot(std::span<const History> histories, const std::filesystem::path& file);

}  // namespace lockstep::train

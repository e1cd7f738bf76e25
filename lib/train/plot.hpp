// Figures of training: loss and score against epochs, as SVG or PNG.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/train/report.hpp"

namespace lockstep::train {

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

// Figures as SVG or PNG: panels of curves, and the loss and score of runs against their epochs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// A line of a panel, or points alone.
struct Curve {
  std::string name;       ///< in the legend; empty: not in it
  std::size_t color = 0;  ///< index in a palette of 7
  bool is_dashed = false;
  bool is_line = true;
  std::vector<std::pair<double, double>> points =
      {};  ///< in the order of x; y not finite: not drawn
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

/// Reads epochs.jsonl of a run's folder: all fields of EpochReport but the new shares. The run may
/// still be trained.
///
/// Errors   throws DataError with file, line and reason: no such folder, no run in it, no epoch
///          recorded, a truncated line, or a field that is missing or of another type.
/// Ranks    local.
std::vector<EpochReport> read_epochs(const std::filesystem::path& folder);

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

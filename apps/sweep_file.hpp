// Sweep files: a run file with the table [sweep], which lists the settings to vary and how.
//
//   [sweep]
//   group = 1                      ranks of a trial; a divisor of the ranks of the job
//   method = "grid"                or "random"
//   trials = 12                    of random
//   seed = 1                       of random
//   metric = "testing score"       decides which is best: score (accuracy of classes, R2 of
//                                  numbers), accuracy, R2, loss or one of the setting `metrics`,
//                                  of testing or validation; "loss" is "testing loss"
//   halving = 2                    none unless given: after each of `rungs` but the last, 1/halving
//                                  of the trials go on, rounded up
//   rungs = [1, 2, 4]              with halving: ascending numbers of epochs
//   [sweep.settings]
//   learning-rate = [0.01, 0.1]               of grid: every combination; of random: one of them
//   batch-size = {min = 16, max = 256}        of random: a whole number
//   weight-decay = {min = 1e-4, max = 0.1, log = true}    a number; log: its logarithm is uniform
//
// The settings may stand in [sweep.settings.optimizer] and [sweep.settings.schedule].
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/settings.hpp"

namespace lockstep::apps {

/// Settings of a trial, and their values as flags take them.
using TrialSettings = std::vector<std::pair<std::string, std::string>>;

/// The trials of a sweep.
struct Sweep {
  std::uint64_t group = 1;               ///< ranks of a trial
  std::string metric = "testing score";  ///< with its set
  std::uint64_t halving = 1;             ///< 1: all trials are trained to the end
  std::vector<std::uint64_t> rungs;      ///< epochs; empty without halving
  /// The same settings in each, in the order of the file. In a grid the last one varies fastest.
  std::vector<TrialSettings> trials;
};

/// Reads the text of a sweep file. `base`: what the run file and the flags set, for `ranks` ranks;
/// `has_epochs`: a flag sets `epochs`, perhaps to the default.
///
/// A random value is a function of the seed, the number of the trial and the name of the setting,
/// and has at most 4 significant digits. All values are checked, one by one.
/// Errors   throws ConfigError with path and line: not TOML, unknown key, bad value, no trial,
///          ranks that `group` does not divide, settings that a sweep sets itself.
/// Ranks    local; the same for the same text.
Sweep read_sweep(const std::string& path, const std::string& text, const RunConfig& base,
                 std::uint64_t ranks, bool has_epochs);

/// True of the settings that a sweep sets itself, in each trial, and of what goes with them.
bool is_of_sweep(const std::string& setting);

/// True of the metrics "validation loss" and such.
bool is_of_validation(const std::string& metric);

/// The figure of a metric in train::SetFigures: "testing accuracy" -> "score".
std::string figure_of(const std::string& metric);

/// False for accuracy of a regression, and R2 of classes.
bool has_metric(bool is_regression, const std::string& metric);

/// The configuration of one trial: `base` with its settings.
RunConfig with_settings(RunConfig base, const TrialSettings& settings);

}  // namespace lockstep::apps

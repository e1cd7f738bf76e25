// Stragglers: ranks whose own work takes longer than that of the others, which wait for them in
// every step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/data/plan.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::train {

/// Finds stragglers by the time of each rank's own work before the exchange of a step.
///
/// A window is at least 50 steps and 5 seconds. A rank is a straggler if, in more than half of a
/// window's steps and in their sum, it needs more than `factor` times the median of all ranks, and
/// the excess is at least 1 ms and a tenth of a step. A rank with more examples than the median
/// rank may need as much more time; ranks without examples do not count. The first ten steps do not
/// count either.
///
/// Time that a device waits for other devices counts as its own: with the all-reduce reduction on
/// devices nothing is found.
class Stragglers final : public Observer {
 public:
  /// Called with a message, at most once a rank by each object.
  using Warn = std::function<void(const std::string& text)>;

  /// `names`: of the plan's ranks, for messages: "rank 3 on beta". `plan` must outlive this.
  Stragglers(double factor, const data::Plan& plan, std::vector<std::string> names, Warn warn);

  void on_step(const StepReport& report) override;
  void on_epoch(const EpochReport&) override {}
  void on_checkpoint(const DueCheckpoint&) override {}

 private:
  /// Sums over the steps of a window.
  struct Sums {
    double seconds = 0;   ///< before the exchange
    double expected = 0;  ///< the median, if the rank has no more examples than the median rank
    std::uint64_t slow_steps = 0;
  };

  void add(const StepReport& report);
  void end_window();

  double factor_;
  const data::Plan& plan_;
  std::vector<std::string> names_;
  Warn warn_;
  std::uint64_t seen_ = 0;
  std::vector<bool> is_reported_;
  // Of the window.
  std::vector<Sums> ranks_;
  std::uint64_t steps_ = 0;
  double step_seconds_ = 0;
  double median_ = 0;
};

}  // namespace lockstep::train

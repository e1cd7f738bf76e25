// Schedules: the learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::optim {

enum class ScheduleKind { constant, linear, cosine, step, exponential };

/// "constant", "linear" ..., and the inverse; empty for any other name.
const char* name_of(ScheduleKind kind) noexcept;
std::optional<ScheduleKind> schedule_named(std::string_view name) noexcept;

/// A factor of the learning rate for each step, from 0. With u the step after the warm-up:
///
///   warm-up        (step + 1) / warmup, in the first `warmup` steps
///   constant       1
///   linear         from 1 to `last`, in the steps after the warm-up up to `steps`
///   cosine         last + (1 - last) (1 + cos(pi u / (steps - warmup))) / 2, to the same end
///   step           decay^floor(u / every)
///   exponential    decay^(u / every)
///
/// After `steps` steps, linear and cosine stay at `last`.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  std::uint64_t warmup = 0;
  std::uint64_t steps = 0;  ///< of linear and cosine: all steps of training
  double last = 0;          ///< of linear and cosine
  double decay = 0.1;       ///< of step and exponential
  std::uint64_t every = 1;  ///< of step and exponential

  /// The factor, in fixed operations of double: the same bits for every mathematics library. Local.
  double factor(std::uint64_t step) const noexcept;

  bool operator==(const Schedule&) const = default;
};

/// Throws ConfigError for a schedule that cannot be followed: of linear and cosine, no steps after
/// the warm-up, or `last` outside [0, 1]; of the others, `decay` outside (0, 1], or `every` 0.
void require_valid(const Schedule& schedule);

}  // namespace lockstep::optim

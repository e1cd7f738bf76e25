#include <array>
#include <limits>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/strict_math.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::optim {
namespace {

constexpr std::array<const char*, 5> schedule_names = {"constant", "linear", "cosine", "step",
                                                       "exponential"};

// Functions of mathematics libraries differ in the last bit. These are fixed operations, as those
// of strict_math.hpp.

/// cos(pi x) for x in [0, 1], as sin(pi (1/2 - x)): a series, to about 1e-15.
double fixed_cos_pi(double x) noexcept {
  constexpr double pi = 3.14159265358979323846;
  const double y = pi * (0.5 - x);
  double sum = 1;
  for (int i = 26; i > 0; i -= 2) sum = 1 - sum * y * y / (i * (i + 1));  // Taylor
  return y * sum;
}

/// x^n by repeated squaring.
double fixed_power(double x, std::uint64_t n) noexcept {
  double power = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) power *= x;
  }
  return power;
}

bool ends(ScheduleKind kind) noexcept {
  return kind == ScheduleKind::linear || kind == ScheduleKind::cosine;
}

}  // namespace

const char* name_of(ScheduleKind kind) noexcept {
  return schedule_names[static_cast<std::size_t>(kind)];
}

std::optional<ScheduleKind> schedule_named(std::string_view name) noexcept {
  return named<ScheduleKind>(schedule_names, name);
}

double Schedule::factor(std::uint64_t step) const noexcept {
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (ends(kind) && step >= steps) return last;
  const std::uint64_t after = step - warmup;
  const double done =  // of linear and cosine: the share of the steps after the warm-up
      ends(kind) ? static_cast<double>(after) / static_cast<double>(steps - warmup) : 0;
  switch (kind) {
    case ScheduleKind::constant: return 1;
    case ScheduleKind::linear: return 1 - (1 - last) * done;
    case ScheduleKind::cosine: return last + (1 - last) * (1 + fixed_cos_pi(done)) / 2;
    case ScheduleKind::step: return fixed_power(decay, after / every);
    case ScheduleKind::exponential: {
      constexpr double least = -708;  // of exp_in_double()
      const double power =
          log_in_double(decay) * static_cast<double>(after) / static_cast<double>(every);
      return power < least ? 0 : exp_in_double(power);
    }
  }
  return 1;
}

void require_used(const char* name, bool is_used, bool is_default, const std::string& where,
                  const char* users) {
  if (is_used || is_default) return;
  throw ConfigError(std::string("`") + name + "` with `" + where + "`, which does not use it",
                    std::string("leave it out, or use ") + users);
}

void require_valid(const Schedule& schedule) {
  const auto refuse = [&](const std::string& option, const std::string& problem,
                          const std::string& remedy) {
    throw ConfigError("`" + option + "` with `schedule=" + name_of(schedule.kind) + "`: " + problem,
                      remedy);
  };
  if (ends(schedule.kind) && schedule.steps <= schedule.warmup) {
    refuse("warmup=" + std::to_string(schedule.warmup),
           "leaves none of " + counted(schedule.steps, "step"),
           "use a shorter `warmup`, or more epochs");
  }
  const Schedule defaults;
  const std::string where = std::string("schedule=") + name_of(schedule.kind);
  const bool decays =
      schedule.kind == ScheduleKind::step || schedule.kind == ScheduleKind::exponential;
  require_used("final_rate", ends(schedule.kind), schedule.last == defaults.last, where,
               "linear or cosine");
  require_used("decay", decays, schedule.decay == defaults.decay, where, "step or exponential");
  require_used("decay_every", decays, schedule.every == defaults.every, where,
               "step or exponential");
  if (!(schedule.last >= 0 && schedule.last <= 1)) {
    refuse("final_rate=" + shortest(schedule.last), "outside [0, 1]",
           "give `final_rate` from 0 to 1");
  }
  if (!(schedule.decay > 0 && schedule.decay <= 1)) {
    refuse("decay=" + shortest(schedule.decay), "outside (0, 1]",
           "give `decay` above 0, at most 1");
  }
  constexpr double least_decay = std::numeric_limits<double>::min();  // normal: log_in_double()
  if (schedule.kind == ScheduleKind::exponential && schedule.decay < least_decay) {
    refuse("decay=" + shortest(schedule.decay), "below " + shortest(least_decay),
           "give a greater `decay`, or use `schedule=step`");
  }
  if (schedule.every == 0) {
    refuse("decay_every=0", "no number of steps", "give `decay_every` of at least 1");
  }
}

}  // namespace lockstep::optim

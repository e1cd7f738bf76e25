#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/train/recorded_run.hpp"

namespace lockstep::train {

using nlohmann::ordered_json;

namespace {

bool same_bits(const Recorded& a, const Recorded& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  if (x == nullptr || y == nullptr) return a == b;
  return std::bit_cast<std::uint64_t>(*x) == std::bit_cast<std::uint64_t>(*y);
}

const Recorded* find(const Figures& figures, const std::string& name) {
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [&](const auto& figure) { return figure.first == name; });
  return found == figures.end() ? nullptr : &found->second;
}

/// All differences, in a's order, then the names that only b has.
std::vector<Difference> differences(const Figures& a, const Figures& b) {
  const Recorded absent = "absent";
  std::vector<Difference> found;
  for (const auto& [name, value] : a) {
    const Recorded* other = find(b, name);
    if (other != nullptr && same_bits(value, *other)) continue;
    found.push_back({0, name, value, other == nullptr ? absent : *other});
  }
  for (const auto& [name, value] : b) {
    if (find(a, name) == nullptr) found.push_back({0, name, absent, value});
  }
  return found;
}

std::optional<Difference> first_difference(const Figures& a, const Figures& b, std::uint64_t step,
                                           const std::string& prefix) {
  const auto all = differences(a, b);
  if (all.empty()) return std::nullopt;
  return Difference{step, prefix + all[0].what, all[0].a, all[0].b, all.size() - 1};
}

void compare_step(const RecordedStep& a, const RecordedStep& b, Comparison& result) {
  if (result.steps++ == 0) result.first_step = a.step;
  result.last_step = a.step;
  if (!result.figure) result.figure = first_difference(a.figures, b.figures, a.step, "");
  if (a.tensors.empty() || b.tensors.empty()) return;
  ++result.hashed_steps;
  if (!result.tensor) result.tensor = first_difference(a.tensors, b.tensors, a.step, "tensor ");
}

void compare_steps(const RecordedRun& a, const RecordedRun& b, Comparison& result) {
  auto at = b.steps.begin();
  for (const auto& step : a.steps) {
    while (at != b.steps.end() && at->step < step.step) ++at;
    if (at != b.steps.end() && at->step == step.step) compare_step(step, *at, result);
  }
  if (result.steps != 0) return;
  throw DataError(
      "the runs have no step in common: one recorded " + std::to_string(a.steps.front().step) +
          " to " + std::to_string(a.steps.back().step) + ", the other " +
          std::to_string(b.steps.front().step) + " to " + std::to_string(b.steps.back().step),
      "compare runs that cover the same steps");
}

void compare_epochs(const RecordedRun& a, const RecordedRun& b, Comparison& result) {
  for (const auto& epoch : a.epochs) {
    const auto same = std::find_if(b.epochs.begin(), b.epochs.end(), [&](const auto& other) {
      return other.epoch == epoch.epoch && other.last_step == epoch.last_step;
    });
    if (same == b.epochs.end() || epoch.last_step == 0) continue;
    ++result.epochs;
    if (result.epoch) continue;
    const auto prefix = "epoch " + std::to_string(epoch.epoch) + " ";
    result.epoch = first_difference(epoch.figures, same->figures, epoch.last_step, prefix);
  }
}

ordered_json value_json(const Recorded& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

ordered_json difference_json(const Difference* difference) {
  if (difference == nullptr) return nullptr;
  return {{"step", difference->step},
          {"what", difference->what},
          {"a", value_json(difference->a)},
          {"b", value_json(difference->b)}};
}

}  // namespace

const Difference* Comparison::first() const noexcept {
  const Difference* earliest = nullptr;
  for (const auto* kind : {&figure, &tensor, &epoch}) {
    if (*kind && (earliest == nullptr || (*kind)->step < earliest->step)) earliest = &**kind;
  }
  return earliest;
}

Comparison compare(const RecordedRun& a, const RecordedRun& b) {
  Comparison result;
  compare_steps(a, b, result);
  compare_epochs(a, b, result);
  result.settings = differences(a.settings, b.settings);
  std::erase_if(result.settings, [&](const auto& setting) {  // unknown without summary.json
    return find(a.settings, setting.what) == nullptr || find(b.settings, setting.what) == nullptr;
  });
  return result;
}

std::string to_json(const Comparison& comparison) {
  ordered_json settings = ordered_json::object();
  for (const auto& setting : comparison.settings) {
    settings[setting.what] = ordered_json::array({value_json(setting.a), value_json(setting.b)});
  }
  const ordered_json json = {{"same", comparison.first() == nullptr},
                             {"steps_compared", comparison.steps},
                             {"hashed_steps_compared", comparison.hashed_steps},
                             {"epochs_compared", comparison.epochs},
                             {"first_difference", difference_json(comparison.first())},
                             {"first_tensor_difference",
                              difference_json(comparison.tensor ? &*comparison.tensor : nullptr)},
                             {"settings", settings}};
  return json.dump();
}

}  // namespace lockstep::train

#include "lockstep/train/scaling.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/base/text.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {
namespace {

constexpr double float_bytes = sizeof(float);
constexpr std::uint64_t max_parameters = std::uint64_t{1} << 53;  // a double has each of these

/// The examples of the rank that has most.
double rows_of(double batch, double leaf, double ranks) {
  return std::min(batch, std::ceil(std::ceil(batch / leaf) / ranks) * leaf);
}

/// The numbers in a file of `bench step --json`.
class Numbers {
 public:
  explicit Numbers(const std::filesystem::path& file)
      : place_{.path = file, .remedy = "give what `lockstep bench step --json` prints"} {
    json_ = read_object(place_);
    phases_ = &field(json_, "phases", place_);
    peak_ = &field(json_, "peak", place_);
  }

  double phase(const char* name, const char* figure) const {
    return checked(number_in(field(*phases_, name, place_), figure, place_), figure);
  }
  double peak(const char* figure) const { return positive(*peak_, figure); }
  double positive(const char* key) const { return positive(json_, key); }
  std::string text(const char* key) const { return text_in(json_, key, place_); }

  double whole(const char* key, std::uint64_t most) const {
    const auto& value = field(json_, key, place_);
    const auto number = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
    if (number >= 1 && number <= most) return static_cast<double>(number);
    fail(place_, std::string("'") + key + "' is not a whole number of 1 to " + grouped(most));
  }

  /// Throws unless the ranks share a host: times of several have their link in them.
  void require_one_host() const {
    const double hosts = whole("hosts", max_ranks);
    if (hosts == 1) return;
    fail({.path = place_.path, .remedy = "measure it with all ranks on one host"},
         "is of a step on " + grouped(static_cast<std::uint64_t>(hosts)) +
             " hosts, whose link would be counted twice");
  }

  /// Throws unless every rank has a whole replica, of which exchange and publish are known.
  void require_whole_replicas() const {
    if (whole("model_ranks", max_ranks) == 1) return;
    fail({.path = place_.path, .remedy = "measure it without `model` in --mesh"},
         "is of a step of ranks that share a network");
  }

  /// Seconds of exchange and publish on the rank that has least of them, and so waits least for
  /// others.
  double least_communication() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& rank : list_in(json_, "seconds_of_ranks", place_)) {
      least =
          std::min(least, number_in(rank, "exchange", place_) + number_in(rank, "publish", place_));
    }
    return checked(least, "seconds_of_ranks");
  }

  /// True for the exchange of partial sums. Throws unless the step has the canonical reduction.
  bool is_by_sums() const {
    const std::string reduction = text_in(json_, "reduction", place_);
    if (reduction.starts_with("canonical")) return reduction.ends_with("partial sums");
    fail(place_, "is of a step with another reduction than canonical");
  }

 private:
  double checked(double number, const char* key) const {
    if (std::isfinite(number) && number >= 0) return number;
    fail(place_, std::string("'") + key + "' is not a number of at least 0");
  }
  double positive(const nlohmann::ordered_json& object, const char* key) const {
    const double number = checked(number_in(object, key, place_), key);
    if (number > 0) return number;
    fail(place_, std::string("'") + key + "' is not greater than 0");
  }

  JsonPlace place_;
  nlohmann::ordered_json json_;
  const nlohmann::ordered_json* phases_ = nullptr;
  const nlohmann::ordered_json* peak_ = nullptr;
};

}  // namespace

double all_gather_seconds(double hosts, double bytes, const Link& link) {
  if (hosts <= 1) return 0;
  const double ring = (hosts - 1) * (link.latency + bytes / hosts / link.bandwidth);
  const double doubling =
      std::ceil(std::log2(hosts)) * link.latency + (1 - 1 / hosts) * bytes / link.bandwidth;
  return std::min(ring, doubling);
}

double all_to_all_seconds(double hosts, double bytes, const Link& link) {
  return (hosts - 1) * (link.latency + bytes / link.bandwidth);
}

namespace {

/// The choice of chosen_exchange() for a batch (step.hpp).
bool moves_activations(const MeasuredStep& measured, double batch) {
  return !measured.only_sums && batch * measured.exchanged <= 2 * measured.weights;
}

}  // namespace

MeasuredStep read_measured_step(const std::filesystem::path& file) {
  const Numbers numbers(file);
  numbers.require_one_host();
  numbers.require_whole_replicas();
  const bool is_by_sums = numbers.is_by_sums();
  MeasuredStep step;
  step.backend = numbers.text("backend");
  step.ranks = numbers.whole("ranks", max_ranks);
  step.batch = numbers.whole("batch_size", max_batch);
  step.leaf = numbers.whole("leaf", max_batch);
  step.weights = numbers.whole("parameters", max_parameters);
  step.exchanged = numbers.positive("exchanged_values");
  step.only_sums = is_by_sums && moves_activations(step, step.batch);
  step.data = numbers.phase("data", "seconds");
  // dW has as much arithmetic as forward, if no layer is frozen; the rest of backward is dX.
  const double backward = numbers.phase("backward", "seconds");
  const double flops = numbers.phase("backward", "flops");
  step.slices = flops > 0 ? backward * std::min(1.0, numbers.phase("forward", "flops") / flops) : 0;
  step.rows = numbers.phase("forward", "seconds") + backward - step.slices;
  step.update = numbers.phase("update", "seconds");
  step.other = numbers.phase("other", "seconds");
  step.bandwidth = numbers.peak("bytes_per_second") / step.ranks;
  const double bytes =
      (numbers.phase("exchange", "bytes") + numbers.phase("publish", "bytes")) / step.ranks;
  step.copies = bytes > 0 ? numbers.least_communication() / bytes : 1 / step.bandwidth;
  return step;
}

PredictedStep predicted_step(const MeasuredStep& measured, const Layout& layout,
                             const Link& between_hosts) {
  const double ranks = layout.ranks;
  const double hosts = std::ceil(ranks / layout.ranks_a_host);
  const double fewer = measured.ranks / ranks;
  const double rows = rows_of(layout.batch, measured.leaf, ranks) /
                      rows_of(measured.batch, measured.leaf, measured.ranks);
  const double weight_bytes = float_bytes * measured.weights;
  const double activation_bytes = float_bytes * layout.batch * measured.exchanged;

  PredictedStep step;
  step.by_activations = ranks == 1 || moves_activations(measured, layout.batch);
  step.compute = measured.data * rows +
                 std::max(measured.rows * rows, 2 * weight_bytes / measured.bandwidth) +
                 measured.slices * fewer * layout.batch / measured.batch + measured.update * fewer +
                 measured.other;
  if (ranks == 1) return step;
  const double exchanged = step.by_activations ? activation_bytes : weight_bytes;
  const double others = (ranks - 1) / ranks;
  step.communication = 2 * measured.copies * others * (exchanged + weight_bytes) +
                       all_gather_seconds(hosts, weight_bytes, between_hosts);
  const double on_host = std::min(layout.ranks_a_host, ranks);
  step.communication +=
      step.by_activations
          ? all_gather_seconds(hosts, activation_bytes, between_hosts)
          : all_to_all_seconds(hosts, on_host * on_host * weight_bytes / ranks, between_hosts);
  return step;
}

}  // namespace lockstep::train

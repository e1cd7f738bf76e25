#include "apps/fault_injection.hpp"

#include <signal.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep::apps {
namespace {

constexpr const char* variable = "LOCKSTEP_FAULT";

const std::map<std::string_view, FaultKind> kinds = {{"kill", FaultKind::kill},
                                                     {"stop", FaultKind::stop},
                                                     {"slow", FaultKind::slow},
                                                     {"nan", FaultKind::nan},
                                                     {"flip-weight", FaultKind::flip_weight},
                                                     {"flip-product", FaultKind::flip_product}};

const std::map<std::string_view, Phase> phases = {{"data", Phase::data},
                                                  {"step", Phase::step},
                                                  {"evaluation", Phase::evaluation},
                                                  {"checkpoint", Phase::checkpoint}};

bool ends_a_process(FaultKind kind) { return kind == FaultKind::kill || kind == FaultKind::stop; }

bool is_flip(FaultKind kind) {
  return kind == FaultKind::flip_weight || kind == FaultKind::flip_product;
}

bool is_in_products(FaultKind kind) {
  return kind == FaultKind::nan || kind == FaultKind::flip_product;
}

/// The value of `word` in `names`. Throws ConfigError with the names.
template <class Value>
Value value_of(std::string_view word, const std::map<std::string_view, Value>& names) {
  const auto found = names.find(word);
  if (found != names.end()) return found->second;
  throw ConfigError("not one of " + joined(names, ", ", [](auto& one) { return one.first; }));
}

double parse_seconds(const std::string& text) {
  const auto seconds = number_in<double>(text);
  constexpr double most = 1e6;
  if (!seconds || !(*seconds >= 0 && *seconds <= most)) {
    throw ConfigError("not a number of seconds");
  }
  return *seconds;
}

/// Sets `key` of a fault, if the fault has it. Throws ConfigError with the reason only.
void set(Fault& fault, const std::string& key, const std::string& value) {
  constexpr std::uint64_t most_ranks = 1'000'000;
  const FaultKind kind = fault.kind;
  if (key == "rank") {
    fault.rank = static_cast<int>(parse_count(value, 0, most_ranks));
  } else if (key == "step") {
    fault.step = parse_count(value, 1);
  } else if (key == "phase" && ends_a_process(kind)) {
    fault.phase = value_of(value, phases);
  } else if (key == "seconds" && kind == FaultKind::slow) {
    fault.seconds = parse_seconds(value);
  } else if (key == "until" && kind == FaultKind::slow) {
    fault.until = parse_count(value, 1);
  } else if (key == "weight" && kind == FaultKind::flip_weight) {
    fault.weight = parse_count(value, 0);
  } else if (key == "row" && is_in_products(kind)) {
    fault.row = parse_count(value, 0);
  } else if (key == "bit" && is_flip(kind)) {
    fault.bit = parse_count(value, 0, 31);
  } else if (key == "times" && is_flip(kind)) {
    fault.times = value == "always" ? std::nullopt : std::optional(parse_count(value, 1));
  } else {
    throw ConfigError("this fault has no such key");
  }
}

/// The pieces of `text` between separators.
std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  for (;;) {
    const auto end = text.find(separator);
    pieces.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void refuse(const std::string& part, const std::string& reason) {
  throw ConfigError(std::string(variable) + ": " + printable(part) + ": " + reason,
                    "apps/fault_injection.hpp has the syntax: kill:rank=1,step=7,phase=step");
}

Fault parse_fault(const std::string& text) {
  Fault fault;
  const auto colon = text.find(':');
  std::string part = text.substr(0, colon);
  try {
    fault.kind = value_of(std::string_view(part), kinds);
    std::vector<std::string> keys;
    for (const auto& setting :
         split(colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1), ',')) {
      part = setting;
      const auto equals = setting.find('=');
      if (equals == std::string::npos) throw ConfigError("not KEY=VALUE");
      keys.push_back(setting.substr(0, equals));
      set(fault, keys.back(), setting.substr(equals + 1));
    }
    part = text;
    for (const char* required : {"rank", "step"}) {
      if (std::count(keys.begin(), keys.end(), required) != 1) {
        throw ConfigError(std::string(required) + "=N is needed, once");
      }
    }
    if (fault.until < fault.step) throw ConfigError("until is before step");
  } catch (const ConfigError& error) {
    refuse(part, error.problem());
  }
  return fault;
}

void flip(float& value, std::uint64_t bit) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << bit));
}

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  for (const auto& fault : split(text, ';')) faults.push_back(parse_fault(fault));
  return faults;
}

/// Products with the faults that are due.
class FaultInjection::FaultyProducts final : public ForwardingProducts<float> {
 public:
  FaultyProducts(std::unique_ptr<Products<float>> products, FaultInjection& faults)
      : ForwardingProducts(std::move(products)), faults_(faults) {}

  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const Part& part) override {
    ForwardingProducts::forward(x, w, activation, y, part);
    if (const Fault* const fault = faults_.nan_; fault != nullptr && fault->row < y.rows) {
      y.row(fault->row)[0] = std::numeric_limits<float>::quiet_NaN();
    }
    if (const Fault* const fault = faults_.flipped_result_;
        fault != nullptr && fault->row < y.rows) {
      const auto row = y.row(fault->row);
      const auto nonzero = std::find_if(row.begin(), row.end(), [](float v) { return v != 0; });
      flip(nonzero == row.end() ? row[0] : *nonzero, fault->bit);
      faults_.flipped_result_ = nullptr;
    }
  }

 private:
  FaultInjection& faults_;
};

FaultInjection::FaultInjection(comm::Communicator& comm) {
  const char* const text = std::getenv(variable);
  comm::together(comm, [&] {
    if (text == nullptr) return;
    if (comm.rank() == 0) {
      launching::print_warning(std::string(variable) +
                               " is set: faults are injected into this run");
    }
    for (const Fault& fault : parse_faults(text)) {
      if (fault.rank >= comm.size()) {
        refuse("rank=" + std::to_string(fault.rank),
               "there are " + counted(static_cast<std::uint64_t>(comm.size()), "rank"));
      }
      if (fault.rank == comm.world_rank(comm.rank())) faults_.push_back(fault);
    }
  });
}

train::ReplicaOptions FaultInjection::wrap(train::ReplicaOptions options) {
  const auto is_of_cpu = [](const Fault& fault) {
    return is_in_products(fault.kind) || is_flip(fault.kind);
  };
  if (!std::any_of(faults_.begin(), faults_.end(), is_of_cpu)) return options;
  if (options.device != train::Device::cpu) {
    throw ConfigError(std::string(variable) + ": nan, flip-weight and flip-product with a device",
                      "use `device=cpu`");
  }
  options.wrap_products = [this](std::unique_ptr<Products<float>> products) {
    return std::make_unique<FaultyProducts>(std::move(products), *this);
  };
  return options;
}

void FaultInjection::enter(Phase phase, std::uint64_t step, train::Replica& replica) {
  nan_ = nullptr;
  flipped_result_ = nullptr;
  for (Fault& fault : faults_) inject(fault, phase, step, replica);
}

void FaultInjection::inject(Fault& fault, Phase phase, std::uint64_t step,
                            train::Replica& replica) {
  const bool is_permanent = is_flip(fault.kind) && !fault.times;
  const std::uint64_t last = fault.kind == FaultKind::slow ? fault.until
                             : is_permanent ? std::numeric_limits<std::uint64_t>::max()
                                            : fault.step;
  if (phase != fault.phase || step < fault.step || step > last) return;
  if (is_flip(fault.kind) && fault.times && fault.occurred == *fault.times) return;
  ++fault.occurred;
  switch (fault.kind) {
    case FaultKind::kill: ::raise(SIGKILL); break;
    case FaultKind::stop: ::raise(SIGSTOP); break;
    case FaultKind::slow:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      break;
    case FaultKind::nan: nan_ = &fault; break;
    case FaultKind::flip_product: flipped_result_ = &fault; break;
    case FaultKind::flip_weight: {
      const auto weights = replica.network().parameters().values();
      if (fault.weight >= weights.size()) {
        refuse("weight=" + std::to_string(fault.weight),
               "there are " + counted(weights.size(), "stored weight"));
      }
      flip(weights[fault.weight], fault.bit);
      break;
    }
  }
}

}  // namespace lockstep::apps

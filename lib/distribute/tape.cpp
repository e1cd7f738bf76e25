#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/distribute/dtensor.hpp"
#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep::sharding {
namespace {

template <Differentiable T>
struct Operation {
  const char* name;
  GradientSums sums;
  DTensor<T> result;
  std::vector<RecordedInput<T>> inputs;
};

template <Differentiable T>
using Operations = std::vector<Operation<T>>;

}  // namespace

struct TapeState {
  bool persistent = false;
  bool finished = false;
  std::tuple<Operations<float>, Operations<double>> operations = {};  // as executed
};

namespace {

thread_local std::vector<TapeState*> tapes;  // those that record
thread_local int pauses = 0;

// Tensors are identified by their pieces, which are immutable. The tape holds the tensors, so a
// piece's address is not used again.
template <Differentiable T>
const void* id_of(const DTensor<T>& tensor) {
  return &tensor.unpack();
}

using Ids = std::unordered_set<const void*>;

template <Differentiable T>
Ids ids_of(const std::vector<DTensor<T>>& tensors) {
  Ids ids;
  for (const auto& tensor : tensors) ids.insert(id_of(tensor));
  return ids;
}

// The sources and all values that depend on them.
template <Differentiable T>
Ids dependents(const Operations<T>& operations, const std::vector<DTensor<T>>& sources) {
  Ids ids = ids_of(sources);
  for (const auto& operation : operations) {
    for (const auto& input : operation.inputs) {
      if (ids.contains(id_of(input.operand))) ids.insert(id_of(operation.result));
    }
  }
  return ids;
}

// The target and all values on which it depends; throws if one of `dependents` passes through an
// operation without derivative.
template <Differentiable T>
Ids dependencies(const Operations<T>& operations, const DTensor<T>& target, const Ids& dependents) {
  Ids ids = {id_of(target)};
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    if (!ids.contains(id_of(operation->result))) continue;
    for (const auto& input : operation->inputs) {
      if (!input.gradient && dependents.contains(id_of(input.operand))) {
        collective::refuse("gradient: the target depends on a source by " +
                               std::string(operation->name) + " of shape " +
                               to_text(input.operand.shape()) + ", which has no derivative",
                           "give elementwise a derivative, or use operations that have one");
      }
      ids.insert(id_of(input.operand));
    }
  }
  return ids;
}

template <Differentiable T>
void require_sources(const Ids& dependencies, const DTensor<T>& target,
                     const std::vector<DTensor<T>>& sources) {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (dependencies.contains(id_of(sources[i]))) continue;
    collective::refuse(
        "gradient: the target of shape " + to_text(target.shape()) + " does not depend on source " +
            std::to_string(i) + " of shape " + to_text(sources[i].shape()) + " on this tape",
        "make the tape before the operations, and assign to variables after gradient");
  }
}

// The gradients of values, by the pieces of these.
template <Differentiable T>
class Gradients {
 public:
  // In the layout of the value, with all sums complete.
  static DTensor<T> aligned(const DTensor<T>& gradient, const DTensor<T>& value) {
    return gradient.relayout(value.layout().summed());
  }

  void add(const DTensor<T>& value, const DTensor<T>& gradient) {
    const auto [found, is_new] = all_.try_emplace(id_of(value), gradient);
    if (is_new) return;
    const auto sum = aligned(found->second, value);
    const auto addend = aligned(gradient, value);
    found->second = lockstep::add(sum, addend);
  }

  const DTensor<T>* find(const DTensor<T>& value) const {
    const auto found = all_.find(id_of(value));
    return found == all_.end() ? nullptr : &found->second;
  }

  void remove(const DTensor<T>& value) { all_.erase(id_of(value)); }

 private:
  std::unordered_map<const void*, DTensor<T>> all_;
};

template <Differentiable T>
DTensor<T> ones_like(const DTensor<T>& tensor) {
  return Maker::make(tensor.mesh(), tensor.layout().summed(), tensor.shape(),
                     tensor.unpack().map([](T) { return T{1}; }));
}

template <Differentiable T>
std::vector<DTensor<T>> backpropagate(const Operations<T>& operations, const DTensor<T>& target,
                                      const std::vector<DTensor<T>>& sources) {
  const Ids needed = dependents(operations, sources);
  require_sources(dependencies(operations, target, needed), target, sources);
  const Ids kept = ids_of(sources);
  Gradients<T> gradients;
  gradients.add(target, ones_like(target));
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    const auto& result = operation->result;
    const auto* found = gradients.find(result);
    if (found == nullptr || !needed.contains(id_of(result))) continue;
    const bool is_partial = operation->sums == GradientSums::partial;
    const auto gradient = is_partial ? *found : Gradients<T>::aligned(*found, result);
    if (!kept.contains(id_of(result))) gradients.remove(result);
    for (const auto& input : operation->inputs) {
      if (!needed.contains(id_of(input.operand))) continue;
      auto contribution = input.gradient(gradient);
      if (is_partial) contribution = Gradients<T>::aligned(contribution, input.operand);
      gradients.add(input.operand, contribution);
    }
  }
  std::vector<DTensor<T>> results;
  results.reserve(sources.size());
  for (const auto& source : sources) {
    results.push_back(Gradients<T>::aligned(*gradients.find(source), source));
  }
  return results;
}

}  // namespace

bool is_recording() noexcept { return pauses == 0 && !tapes.empty(); }

template <Differentiable T>
void record(const char* operation, GradientSums sums, const DTensor<T>& result,
            std::vector<RecordedInput<T>> inputs) {
  for (auto* tape : tapes) {
    std::get<Operations<T>>(tape->operations).push_back({operation, sums, result, inputs});
  }
}

RecordingPause::RecordingPause() noexcept { ++pauses; }
RecordingPause::~RecordingPause() { --pauses; }

template void record(const char*, GradientSums, const DTensor<float>&,
                     std::vector<RecordedInput<float>>);
template void record(const char*, GradientSums, const DTensor<double>&,
                     std::vector<RecordedInput<double>>);

}  // namespace lockstep::sharding

namespace lockstep {

template <Differentiable T>
DTensor<T> stop_gradient(const DTensor<T>& tensor) {
  return sharding::Maker::make(tensor.mesh(), tensor.layout(), tensor.shape(),
                               Tensor<T>(tensor.unpack()));
}

template DTensor<float> stop_gradient(const DTensor<float>&);
template DTensor<double> stop_gradient(const DTensor<double>&);

Tape::Tape(TapeOptions options)
    : state_(std::make_unique<sharding::TapeState>(sharding::TapeState{options.persistent})) {
  sharding::tapes.push_back(state_.get());
}

Tape::~Tape() { std::erase(sharding::tapes, state_.get()); }

template <Differentiable T>
std::vector<DTensor<T>> Tape::gradient(const DTensor<T>& target,
                                       const std::vector<DTensor<T>>& sources) {
  if (state_->finished) {
    collective::refuse(
        "gradient: this tape has already computed its gradients",
        "ask for all gradients in one call, or make it a `Tape tape({.persistent = true})`");
  }
  const sharding::RecordingPause pause;
  const auto& operations = std::get<sharding::Operations<T>>(state_->operations);
  auto gradients = sharding::backpropagate(operations, target, sources);
  if (!state_->persistent) {
    state_->finished = true;
    state_->operations = {};
    std::erase(sharding::tapes, state_.get());
  }
  return gradients;
}

template std::vector<DTensor<float>> Tape::gradient(const DTensor<float>&,
                                                    const std::vector<DTensor<float>>&);
template std::vector<DTensor<double>> Tape::gradient(const DTensor<double>&,
                                                     const std::vector<DTensor<double>>&);

}  // namespace lockstep

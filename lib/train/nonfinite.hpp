// Finds where in a step a loss or gradient that is not finite arises.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

/// True if no value is infinite or not a number. Local.
bool all_finite(std::span<const float> values) noexcept;

/// Values of some of one rank's examples in a step, after it.
struct ExampleValues {
  const data::Batch& batch;
  /// The features (0) or the output of layer i - 1, a row an example; valid until the next call.
  std::function<Matrix<const float>(std::size_t i)> activation;
  /// The gradient by the output of layer i, likewise.
  std::function<Matrix<const float>(std::size_t i)> gradient;
  std::span<const nn::ExampleResult> results;
  std::size_t first = 0;  ///< the index in the rank's piece of the first example
};

/// A value that is not finite.
struct NonfiniteValue {
  /// Its place in the order of a step: features, each layer's output, losses of examples, gradients
  /// by each layer's output, sums of weight gradients, updated weights. `none`: there is no such
  /// value.
  std::uint64_t order = none;
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  std::string text = {};               ///< "the output of layer 1 (dense 500 relu)"
  std::vector<std::size_t> rows = {};  ///< the examples that have it; empty: a sum over examples
  bool is_bad_input = false;  ///< a layer does not take an example's values: Layer::input_problem()

  /// Keeps the first of both in the order of a step; of two at one place the examples of both.
  void add(const NonfiniteValue& other);
};

/// Returns the first value in the order of a step: of examples; of sums over examples, which
/// `sums` has of this rank's slice (none on a device), and of the weights that were updated with
/// them. `weight`: of all examples of the step. Local.
NonfiniteValue find_nonfinite(const nn::Network<float>& network, const ExampleValues& values);
NonfiniteValue find_nonfinite(const nn::Network<float>& network,
                              std::span<const optim::GradientSums> sums, double weight);

/// What describe_nonfinite() returns.
struct NonfiniteText {
  std::string text;
  bool is_bad_input = false;  ///< NonfiniteValue::is_bad_input
  bool in_features = false;   ///< the data is not finite: no setting of training helps
};

/// Describes the first such value of all ranks: "the loss is not finite: rank 1 on alpha has the
/// first such value in the output of layer 1 (dense 700), for record 17 (counted from 0)". If that
/// is a sum over examples, it also names the example with the greatest loss.
///
/// `what`: StepResult::not_finite. `mine`: the first value of this rank. `results`: of its
/// examples.
///
/// Ranks    collective over the ranks of "batch", which all return the same text.
NonfiniteText describe_nonfinite(const char* what, const NonfiniteValue& mine,
                                 const data::Batch& batch,
                                 std::span<const nn::ExampleResult> results, const Groups& groups);

/// "record 17 (counted from 0)", if the source is known the record's place in its file, or without
/// ids "example 17 of the epoch (counted from 0)", its position there (Plan::positions). `row` is
/// an index in the rank's piece. Local.
std::string example_text(std::size_t row, const data::Batch& batch);

/// The remedy where all values of the data are finite.
inline constexpr const char* lower_rate =
    "lower `learning_rate`, or look for extreme values in the data (`divide_by`)";

/// Throws comm::AgreedError (76): training diverged at `step`, from 1, because of `what`. All ranks
/// call it in the same step. Local.
[[noreturn]] void throw_diverged(std::uint64_t step, const std::string& what,
                                 const std::string& remedy);

}  // namespace lockstep::train

#include "lockstep/train/work.hpp"

#include <algorithm>

#include "lockstep/train/memory.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

constexpr double float_bytes = sizeof(float);

/// Adds the products of all layers to forward and backward.
void add_products(const nn::NetworkShape& shape, double examples, double ranks, StepWork& work) {
  const auto sizes = shape.sizes();
  const auto is_trained = [&](std::size_t i) {
    return nn::trained_weights_of(shape.layers[i], sizes[i].inputs) > 0;
  };
  std::size_t first_trained = 0;
  while (first_trained + 1 < sizes.size() && !is_trained(first_trained)) ++first_trained;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double flops = 2 * examples * nn::multiply_adds_of(shape.layers[i], sizes[i].inputs);
    if (flops == 0) continue;
    const double inputs = examples * static_cast<double>(sizes[i].inputs[0].size());
    const double outputs = examples * static_cast<double>(sizes[i].output.size());
    const double weights = sizes[i].weights;
    work.forward.flops += flops;
    work.forward.bytes += float_bytes * (inputs + outputs + ranks * weights);
    if (is_trained(i)) {
      work.backward.flops += flops;
      work.backward.bytes += float_bytes * (inputs + outputs + weights);
    }
    if (sizes[i].from[0] > first_trained) {  // the output of that layer, or of a later one
      work.backward.flops += flops;
      work.backward.bytes += float_bytes * (2 * inputs + outputs + ranks * weights);
    }
  }
}

}  // namespace

StepWork work_of(const nn::NetworkShape& shape, const data::Plan& plan,
                 const ReplicaOptions& options, double feature_bytes) {
  const ReplicaBuffers buffers = training_buffers(shape, plan, options);
  const auto examples = static_cast<double>(plan.examples(0));
  const auto ranks = static_cast<double>(plan.options().ranks);
  const double weights = shape.weights();
  const auto state = static_cast<double>(optim::moment_names(options.optimizer).size());
  const double update = float_bytes * (3 + 2 * state) * weights;
  const double others = 2 * float_bytes * (ranks - 1);

  StepWork work;
  work.data.bytes = examples * static_cast<double>(shape.features) * (feature_bytes + float_bytes);
  add_products(shape, examples, ranks, work);
  double rows = examples / ranks;  // in the buffers of a rank
  if (options.reduction == Reduction::allreduce) {
    work.exchange.bytes = float_bytes * (ranks - 1 > 0 ? 3 * ranks - 1 : 0) * weights;
    work.update.bytes = ranks * update;
  } else {
    const bool by_sums = buffers.exchange == Exchange::partial_sums;
    const double parts = static_cast<double>(sum_blocks(buffers.exchange, plan)) / 2;
    work.exchange.bytes =
        others * (by_sums ? weights * parts : examples * shape.exchanged_values());
    work.update.bytes = update + float_bytes * ranks * parts * weights;
    work.publish.bytes = others * weights;
    if (!by_sums) rows = examples;
  }
  const double slices = options.reduction == Reduction::allreduce ? 1 : ranks;
  work.resident = float_bytes * (weights * (1 + (1 + state) / slices) + rows * shape.row_values());
  return work;
}

}  // namespace lockstep::train

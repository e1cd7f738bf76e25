#include "lib/train/replica.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "collectives/agreement.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/process.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {
namespace {

const data::Plan& fitting(const data::Plan& plan, const comm::Communicator& comm) {
  if (plan.options().ranks != static_cast<std::uint64_t>(comm.size())) {
    throw std::invalid_argument("Replica: a plan for " + std::to_string(plan.options().ranks) +
                                " ranks, where there are " + std::to_string(comm.size()));
  }
  if (plan.steps() == 0) {
    throw ConfigError("a plan without a step: drop_remainder leaves no batch",
                      "use smaller batches, or keep the remainder");
  }
  return plan;
}

/// What training and evaluation need, whatever the number of records.
std::size_t rows_of(Exchange exchange, const data::Plan& plan, int ranks) {
  return std::max(rows_needed(exchange, plan),
                  evaluation_plan(evaluation_batch, ranks).largest_piece());
}

std::unique_ptr<Products<float>> make_products(const ReplicaOptions& options,
                                               const comm::Communicator& comm) {
  set_product_threads(options.threads > 0 ? options.threads : own_cores(comm));
  return make_strict_products(options.simd);
}

[[noreturn]] void diverged(const char* what) {
  throw comm::AgreedError(ExitCode::diverged,
                          std::string("training diverged: the ") + what + " is not finite",
                          "use a lower learning rate, or look for extreme values in the data");
}

}  // namespace

int own_cores(const comm::Communicator& comm) {
  return lockstep::own_cores(comm.place().local_ranks, std::string(comm.backend()) == "threads");
}

Replica::Replica(const nn::NetworkShape& shape, const data::Plan& plan, const Groups& groups,
                 const ReplicaOptions& options)
    : plan_(fitting(plan, groups.batch)),
      groups_(groups),
      exchange_(chosen_exchange(Exchange::automatic, {options.adam, &plan}, shape)),
      products_(make_products(options, groups.all)),
      network_(shape, rows_of(exchange_, plan, groups.batch.size()), *products_,
               static_cast<std::size_t>(groups.batch.size()), groups.batch.memory(),
               make_layers_of(shape, groups)),
      step_(make_canonical_step(network_, exchange_, {options.adam, &plan}, groups.batch)) {
  if (options.loss != nullptr) network_.set_loss(*options.loss);
  nn::initialise(network_, options.seed);
}

void Replica::fill(Matrix<float> inputs, std::span<const float> features) {
  if (features.size() != inputs.flat().size()) {
    throw std::invalid_argument("Replica: " + std::to_string(features.size()) + " features for " +
                                std::to_string(inputs.rows) + " examples of " +
                                std::to_string(inputs.cols));
  }
  std::copy(features.begin(), features.end(), inputs.flat().begin());
}

nn::Tally Replica::train(std::span<const float> features, std::span<const std::int32_t> labels) {
  const std::uint64_t step = steps_ % plan_.steps();
  const Range piece = plan_.rows(step, static_cast<std::uint64_t>(groups_.batch.rank()));
  if (labels.size() != piece.size()) {
    throw std::invalid_argument("Replica: " + std::to_string(labels.size()) +
                                " labels, where the plan's step has " +
                                std::to_string(piece.size()) + " examples for this rank");
  }
  fill(step_->inputs(piece), features);
  PhaseSeconds seconds;
  const StepResult result = step_->run({.piece = piece,
                                        .labels = labels,
                                        .ids = {},
                                        .global_examples = plan_.examples(step),
                                        .leaf = plan_.leaf(step),
                                        .block = plan_.block(step),
                                        .summed_rows = plan_.summed_rows(step),
                                        .plan = &plan_,
                                        .step = step},
                                       seconds);
  if (!std::isfinite(result.tally.loss_sum)) diverged("loss");
  if (!groups_.all_agree(result.finite)) diverged("gradient");
  ++steps_;
  examples_ += plan_.examples(step);
  return result.tally;
}

Evaluation Replica::evaluate(data::Source& source) {
  data::BatchReader reader(source, evaluation_plan(source.records(), groups_.batch.size()),
                           groups_.batch.rank());
  return train::evaluate(network_, reader, groups_);
}

std::vector<std::int32_t> Replica::predict(std::span<const float> features) {
  const std::size_t width = network_.shape().features;
  if (features.size() % width != 0) fill(network_.inputs({0, 0}), features);
  std::vector<std::int32_t> labels;
  while (!features.empty()) {
    const nn::Rows rows = {0, std::min(network_.rows(), features.size() / width)};
    fill(network_.inputs(rows), features.first(rows.count * width));
    const auto logits = network_.forward(rows);
    for (std::size_t i = 0; i < rows.count; ++i) {
      labels.push_back(static_cast<std::int32_t>(nn::predicted_class<float>(logits.row(i))));
    }
    features = features.subspan(rows.count * width);
  }
  return labels;
}

std::uint64_t Replica::weights_hash() {
  const std::uint64_t hash = whole_hash(network_.parameters(), groups_);
  comm::require_equal(groups_.all, "the replica after step " + std::to_string(steps_),
                      {{"the weights' hash", to_hex(hash)}},
                      "look for faulty memory on the odd rank's host", ExitCode::invariant);
  return hash;
}

std::filesystem::path Replica::save(const std::filesystem::path& folder, CheckpointInfo about) {
  about.step = steps_;
  about.examples = examples_;
  const auto whole = whole_network(network_, *products_, groups_);
  comm::together(groups_.all, [&] {
    if (groups_.all.rank() == 0) save_checkpoint(folder, whole ? *whole : network_, about);
  });
  return folder / checkpoint_name(steps_);
}

}  // namespace lockstep::train

// Which of the two ways a canonical step takes: the same bits, other messages.
#include <algorithm>

#include "lib/base/errors.hpp"
#include "lib/numerics/leaf_tree.hpp"
#include "lib/train/canonical_steps.hpp"

namespace lockstep::train {
namespace {

/// Elements of all rows that a rank needs where it computes its slice alone.
double exchanged_activations(const data::Plan& plan, const nn::NetworkShape& shape) {
  return shape.exchanged_values() * static_cast<double>(plan.summed_rows(0));
}

/// Parts of the tree that the rank with the most of them holds at `step`.
std::size_t most_parts(const data::Plan& plan, std::uint64_t step) {
  const std::uint64_t leaf = plan.leaf(step);
  const std::uint64_t each = (plan.block(step) + leaf - 1) / leaf;
  const std::uint64_t leaves = (plan.summed_rows(step) + leaf - 1) / leaf;
  std::size_t most = 1;
  for (std::uint64_t begin = 0; begin < leaves; begin += each) {
    most = std::max(most, aligned_subtrees(begin, begin + each, leaves).size());
  }
  return most;
}

}  // namespace

Exchange chosen_exchange(Exchange asked, const CanonicalOptions& options,
                         const nn::NetworkShape& shape) {
  const data::Plan& plan = *options.plan;
  if (options.audit_every && asked == Exchange::partial_sums) {
    throw ConfigError("audit-every with exchange sums: an auditor needs the others' activations",
                      "use --exchange activations, or leave the audit out");
  }
  if (options.audit_every && shape.sums_over_batch()) {
    throw ConfigError(
        "audit-every with a layer that sums over the batch, as batch-norm does: its rows cannot "
        "be computed again alone",
        "use layer-norm, or leave the audit out");
  }
  if (asked != Exchange::automatic) return asked;
  if (options.audit_every || plan.options().ranks == 1) return Exchange::activations;
  // A sum is written, sent, read and added; an activation is sent and read.
  constexpr double cost_of_a_sum = 2;
  const double sums = static_cast<double>(most_parts(plan, 0)) * shape.weights() * cost_of_a_sum;
  return exchanged_activations(plan, shape) <= sums ? Exchange::activations
                                                    : Exchange::partial_sums;
}

std::uint64_t sum_blocks(Exchange exchange, const data::Plan& plan) {
  if (exchange != Exchange::partial_sums || plan.steps() == 0) return 0;
  return 2 * std::max(most_parts(plan, 0), most_parts(plan, plan.steps() - 1));
}

std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept {
  const std::uint64_t all = plan.largest_gathered();
  return exchange == Exchange::activations ? all : all / plan.options().ranks;
}

std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const CanonicalOptions& options,
                                          comm::Communicator& comm) {
  return exchange == Exchange::partial_sums ? make_partial_sums_step(network, options, comm)
                                            : make_activations_step(network, options, comm);
}

}  // namespace lockstep::train

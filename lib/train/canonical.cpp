// What ranks exchange in a canonical step, and where the leaves of a batch are summed.
#include "lockstep/train/canonical.hpp"

#include <algorithm>

#include "lockstep/base/errors.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

/// Number of elements that a rank needs, over all rows, to compute its slice of the gradients.
double exchanged_activations(const data::Plan& plan, const nn::NetworkShape& shape) {
  return shape.exchanged_values() * static_cast<double>(plan.summed_rows(0));
}

/// Largest number of tree parts on any rank at `step`.
std::size_t max_parts(const data::Plan& plan, std::uint64_t step) {
  const std::uint64_t leaf = plan.leaf(step);
  const std::uint64_t each = leaves_of(plan.block(step), leaf);
  const std::uint64_t leaves = leaves_of(plan.summed_rows(step), leaf);
  if (plan.options().balance && plan.options().ranks > 1) {
    return parts_at_most(std::min(each, leaves));
  }
  std::size_t max = 1;
  for (std::uint64_t begin = 0; begin < leaves; begin += each) {
    max = std::max(max, aligned_subtrees(begin, begin + each, leaves).size());
  }
  return max;
}

}  // namespace

Exchange chosen_exchange(const nn::NetworkShape& shape, const data::Plan& plan,
                         const ReplicaOptions& options) {
  const Exchange asked = options.exchange;
  if (options.audit_every) {
    const auto refuse = [](const std::string& what, const char* remedy) {
      throw ConfigError("`audit_every` with " + what + ": an auditor needs the others' activations",
                        remedy);
    };
    if (plan.options().balance) refuse("balance", "leave out one of the two");
    if (asked == Exchange::partial_sums) {
      refuse("exchange sums", "use `exchange=activations`, or leave the audit out");
    }
    if (options.micro_batch > 0) refuse("`micro_batch`", "leave out one of the two");
    if (shape.sums_over_batch()) {
      throw ConfigError(
          "`audit_every` with a layer that sums over the batch, as batch-norm does: its rows "
          "cannot be computed again alone",
          "use layer-norm, or leave the audit out");
    }
  }
  if (plan.options().balance && asked == Exchange::activations) {
    throw ConfigError("balance with exchange activations, of which all ranks send as many",
                      "use `exchange=sums`, or leave `balance` out");
  }
  if (options.micro_batch > 0 && asked == Exchange::activations) {
    throw ConfigError(
        "`micro_batch` with exchange activations, for which a rank has all rows of a batch",
        "use `exchange=sums`, or leave `micro_batch` out");
  }
  if (options.micro_batch > 0) return Exchange::partial_sums;
  if (asked != Exchange::automatic) return asked;
  if (options.audit_every || plan.options().ranks == 1) return Exchange::activations;
  if (plan.options().balance) return Exchange::partial_sums;
  // A sum is written, sent, read and added; an activation is sent and read.
  constexpr double cost_of_a_sum = 2;
  const double sums = static_cast<double>(max_parts(plan, 0)) * shape.weights() * cost_of_a_sum;
  return exchanged_activations(plan, shape) <= sums ? Exchange::activations
                                                    : Exchange::partial_sums;
}

std::uint64_t sum_parts(Exchange exchange, const data::Plan& plan) {
  if (exchange != Exchange::partial_sums || plan.steps() == 0) return 0;
  return std::max(max_parts(plan, 0), max_parts(plan, plan.steps() - 1));
}

std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept {
  const std::uint64_t all = plan.largest_gathered();
  return exchange == Exchange::activations ? all : all / plan.options().ranks;
}

LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm) {
  LeafLayout layout;
  layout.leaf = batch.leaf;
  layout.block = batch.block;
  layout.summed_rows = batch.summed_rows;
  layout.shares = batch.plan->shares();
  layout.leaves = leaves_of(batch.summed_rows, batch.leaf);
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Range rows = batch.summed_rows_of(rank);
    const std::uint64_t begin = leaves_of(rows.begin, batch.leaf);
    const std::uint64_t end = leaves_of(rows.end, batch.leaf);
    const auto parts = aligned_subtrees(begin, end, layout.leaves);
    for (std::size_t i = 0; i < parts.size(); ++i) layout.from.push_back(i * ranks + rank);
    all.insert(all.end(), parts.begin(), parts.end());
    layout.max_parts = std::max(layout.max_parts, parts.size());
    if (static_cast<int>(rank) != comm.rank()) continue;
    layout.mine = parts;
    layout.first_leaf = begin;
  }
  layout.sums = sums_of(all);
  return layout;
}

GlobalBatch::GlobalBatch(nn::Network<float>& network, comm::Communicator& comm)
    : network_(network), comm_(comm), needed_(network.sums_over_batch()) {
  network_.set_batch_sums(this);
}

GlobalBatch::~GlobalBatch() { network_.set_batch_sums(nullptr); }

void GlobalBatch::begin(const data::Batch& batch) {
  if (!needed_) return;
  if (!layout_.fits(batch)) layout_ = leaf_layout(batch, comm_);
  examples_ = batch.global_examples;
  first_row_ = batch.piece.begin;
  rows_ = batch.piece.size();
}

void GlobalBatch::do_sum(std::span<double> sums, Terms terms) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  const std::size_t each = layout_.max_parts * sums.size();
  parts_.resize(ranks * each);
  const auto part = [&](std::size_t rank, std::size_t number) {
    return std::span(parts_).subspan(rank * each + number * sums.size(), sums.size());
  };
  const auto leaf = [&](std::uint64_t q, std::span<double> into) {
    std::fill(into.begin(), into.end(), 0.0);
    const std::uint64_t end = first_row_ + rows_;
    const std::uint64_t first = std::min<std::uint64_t>(q * layout_.leaf, end);
    const std::uint64_t last = std::min<std::uint64_t>((q + 1) * layout_.leaf, end);
    if (first < last) terms.add({first - first_row_, last - first_row_}, into);
  };
  const auto me = static_cast<std::size_t>(comm_.rank());
  for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
    nn::sum_subtree(layout_.mine[i], layout_.leaves, part(me, i), scratch_, leaf);
  }
  comm_.all_gather(std::span<double>(parts_));
  const auto gathered = [&](std::size_t index) {
    return part(layout_.from[index] % ranks, layout_.from[index] / ranks);
  };
  for (const TreeSum& sum : layout_.sums) {
    const auto left = gathered(sum.left);
    const auto right = gathered(sum.right);
    for (std::size_t i = 0; i < sums.size(); ++i) left[i] = left[i] + right[i];
  }
  std::copy_n(gathered(0).begin(), sums.size(), sums.begin());
}

}  // namespace lockstep::train

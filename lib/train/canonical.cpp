// Which of the two ways a canonical step takes: the same bits, other messages.

#include "lib/train/canonical.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <type_traits>

#include "lib/base/aligned.hpp"
#include "lib/base/errors.hpp"
#include "lib/numerics/leaf_tree.hpp"
#include "lib/train/integrity.hpp"
#include "lib/train/step.hpp"

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
                      "use `exchange=activations`, or leave the audit out");
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

namespace {

class ActivationsStep final : public Step {
 public:
  ActivationsStep(nn::Network<float>& network, const CanonicalOptions& options,
                  comm::Communicator& comm)
      : network_(network),
        comm_(comm),
        update_(network, options.adam, comm),
        global_(network, comm),
        results_(options.plan->largest_gathered(), comm),
        audit_(network, comm, options.audit_every) {}

  const char* name() const noexcept override { return "canonical, by activations"; }

  Matrix<float> inputs(Range piece) override { return network_.inputs(place(piece)); }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    Lap phase;
    clear(network_, {batch.gap().begin, batch.gap().size()});
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{update_.steps() + 1, 0});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    seconds.compute += phase.take();

    const auto results = results_.gather(network_.results(mine), batch.block);
    const nn::Rows gathered = {0, batch.block * static_cast<std::size_t>(comm_.size())};
    network_.for_each_exchanged(gathered, [&](std::span<float> rows) { comm_.all_gather(rows); });
    seconds.reduce += phase.take();

    const std::uint64_t step = update_.steps() + 1;
    const Range slice = update_.slice();
    if (audit_.due(step)) audit_.check_leaf(step, batch);
    network_.weight_gradients({0, batch.summed_rows}, batch.leaf, slice);
    if (audit_.due(step)) audit_.check_gradients(step, batch, slice);
    seconds.compute += phase.take();

    const auto sums = network_.parameters().gradients().subspan(slice.begin, slice.size());
    const bool finite = update_.run(sums, batch.global_examples, seconds);
    return {nn::sum_over_leaves(results.first(batch.summed_rows), batch.leaf), finite};
  }

 private:
  static nn::Rows place(Range piece) noexcept { return {piece.begin, piece.size()}; }

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  SliceUpdate update_;
  GlobalBatch global_;
  GatheredResults results_;
  Audit audit_;
};

}  // namespace

std::unique_ptr<Step> make_activations_step(nn::Network<float>& network,
                                            const CanonicalOptions& options,
                                            comm::Communicator& comm) {
  return std::make_unique<ActivationsStep>(network, options, comm);
}

namespace {

class PartialSumsStep final : public Step {
 public:
  PartialSumsStep(nn::Network<float>& network, const CanonicalOptions& options,
                  comm::Communicator& comm)
      : network_(network),
        comm_(comm),
        update_(network, options.adam, comm),
        global_(network, comm),
        results_(options.plan->largest_gathered(), comm) {
    reserve(sum_blocks(Exchange::partial_sums, *options.plan) / 2);
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  Matrix<float> inputs(Range piece) override { return network_.inputs(place(piece)); }

  StepResult run(const data::Batch& batch, PhaseSeconds& seconds) override {
    const nn::Rows mine = place(batch.piece);
    const std::size_t summed = batch.piece.size() + batch.gap().size();
    Lap phase;
    if (!layout_.fits(batch)) lay_out(batch);
    global_.begin(batch);
    clear(network_, {mine.count, batch.gap().size()});
    network_.forward(mine, nn::TrainingRows{update_.steps() + 1, batch.piece.begin});
    network_.loss(mine, batch.labels, true);
    network_.backward(mine);
    for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
      network_.weight_gradients(layout_.rows_of(layout_.mine[i], summed), batch.leaf, whole(),
                                own_[i].span());
    }
    seconds.compute += phase.take();

    const auto results = results_.gather(network_.results(mine), batch.block);
    for (std::size_t round = 0; round < layout_.most_parts; ++round) {
      comm_.all_to_all(std::span<const float>(own_[round].span()), received_[round].span());
    }
    seconds.reduce += phase.take();
    sum_slice();
    seconds.update += phase.take();
    const bool finite = update_.run(part(0), batch.global_examples, seconds);
    return {nn::sum_over_leaves(results.first(batch.summed_rows), batch.leaf), finite};
  }

 private:
  static nn::Rows place(Range piece) noexcept { return {0, piece.size()}; }

  Range whole() { return {0, network_.parameters().gradients().size()}; }

  void lay_out(const data::Batch& batch) {
    layout_ = leaf_layout(batch, comm_);
    reserve(layout_.most_parts);
  }

  void reserve(std::size_t parts) {
    while (own_.size() < parts) {
      own_.emplace_back(whole().size(), comm_.memory());
      received_.emplace_back(whole().size(), comm_.memory());
    }
  }

  /// This rank's slice of a part, as its rank sent it.
  std::span<float> part(std::size_t index) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t length = update_.slice().size();
    const std::size_t message = layout_.from[index];
    return received_[message / ranks].span().subspan(message % ranks * length, length);
  }

  /// Sums the tree into part 0, a piece that stays in the cache at a time.
  void sum_slice() {
    constexpr std::size_t piece = 4096;
    const std::size_t length = update_.slice().size();
    for (std::size_t first = 0; first < length; first += piece) {
      const std::size_t count = std::min(piece, length - first);
      for (const TreeSum& sum : layout_.sums) {
        float* const left = part(sum.left).data() + first;
        const float* const right = part(sum.right).data() + first;
        for (std::size_t i = 0; i < count; ++i) left[i] += right[i];
      }
    }
  }

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  SliceUpdate update_;
  GlobalBatch global_;
  GatheredResults results_;
  LeafLayout layout_;
  std::vector<AlignedBuffer<float>> own_;       // this rank's sums, a part each
  std::vector<AlignedBuffer<float>> received_;  // this rank's slice of every rank's, a round each
};

}  // namespace

std::unique_ptr<Step> make_partial_sums_step(nn::Network<float>& network,
                                             const CanonicalOptions& options,
                                             comm::Communicator& comm) {
  return std::make_unique<PartialSumsStep>(network, options, comm);
}

namespace {

std::uint64_t leaf_at(std::uint64_t row, std::uint64_t leaf) { return (row + leaf - 1) / leaf; }

}  // namespace

LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm) {
  LeafLayout layout;
  layout.leaf = batch.leaf;
  layout.block = batch.block;
  layout.summed_rows = batch.summed_rows;
  layout.leaves = leaf_at(batch.summed_rows, batch.leaf);
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t begin = leaf_at(rank * batch.block, batch.leaf);
    const std::uint64_t end = leaf_at((rank + 1) * batch.block, batch.leaf);
    const auto parts = aligned_subtrees(begin, end, layout.leaves);
    for (std::size_t i = 0; i < parts.size(); ++i) layout.from.push_back(i * ranks + rank);
    all.insert(all.end(), parts.begin(), parts.end());
    layout.most_parts = std::max(layout.most_parts, parts.size());
    if (static_cast<int>(rank) != comm.rank()) continue;
    layout.mine = parts;
    layout.first_leaf = begin;
  }
  layout.sums = sums_of(all);
  return layout;
}

GatheredResults::GatheredResults(std::size_t rows, comm::Communicator& comm)
    : comm_(comm), all_(rows, comm.memory()) {}

std::span<const nn::ExampleResult> GatheredResults::gather(std::span<const nn::ExampleResult> mine,
                                                           std::size_t block) {
  static_assert(std::is_standard_layout_v<nn::ExampleResult> &&
                sizeof(nn::ExampleResult) == 2 * sizeof(double));
  const auto all = all_.span().first(block * static_cast<std::size_t>(comm_.size()));
  const auto own = all.subspan(static_cast<std::size_t>(comm_.rank()) * block, block);
  assert(mine.size() <= block);
  const auto rest = std::copy(mine.begin(), mine.end(), own.begin());
  std::fill(rest, own.end(), nn::ExampleResult{});
  comm_.all_gather(std::span(reinterpret_cast<double*>(all.data()), 2 * all.size()));
  return all;
}

nn::Tally sum_over_ranks(nn::Tally mine, comm::Communicator& comm) {
  // Counts are exact in double far beyond any batch, so one message carries both.
  std::array totals = {mine.loss_sum, static_cast<double>(mine.correct)};
  comm.all_reduce(std::span<double>(totals));
  return {totals[0], static_cast<std::uint64_t>(totals[1])};
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
  const std::size_t each = layout_.most_parts * sums.size();
  parts_.resize(ranks * each);
  const auto part = [&](std::size_t rank, std::size_t number) {
    return std::span(parts_).subspan(rank * each + number * sums.size(), sums.size());
  };
  const auto leaf = [&](std::uint64_t q, std::span<double> into) {
    std::fill(into.begin(), into.end(), 0.0);
    const std::uint64_t end = first_row_ + rows_;
    const std::uint64_t first = std::min<std::uint64_t>(q * layout_.leaf, end);
    const std::uint64_t last = std::min<std::uint64_t>((q + 1) * layout_.leaf, end);
    if (first < last) terms.add(first - first_row_, last - first, into);
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

namespace {

Range slice_of(std::size_t block, const comm::Communicator& comm) {
  const std::size_t each = block / static_cast<std::size_t>(comm.size());
  const std::size_t first = each * static_cast<std::size_t>(comm.rank());
  return {first, first + each};
}

}  // namespace

SliceUpdate::SliceUpdate(nn::Network<float>& network, const optim::AdamOptions& options,
                         comm::Communicator& comm)
    : network_(network),
      comm_(comm),
      slice_(slice_of(network.parameters().values().size(), comm)),
      adam_(slice_.size(), options) {}

bool SliceUpdate::run(std::span<const float> gradient_sums, std::uint64_t examples,
                      PhaseSeconds& seconds) {
  Lap phase;
  const auto values = network_.parameters().values();
  const bool finite =
      adam_.update(values.subspan(slice_.begin, slice_.size()), gradient_sums, examples);
  seconds.update += phase.take();
  comm_.all_gather(values);
  const bool all_finite = comm_.all_agree(finite);
  seconds.reduce += phase.take();
  return all_finite;
}

}  // namespace lockstep::train

// The canonical step: bitwise identical for any number of ranks, with one of two exchanges.
#include "lockstep/train/canonical.hpp"

#include <algorithm>
#include <array>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/micro_batches.hpp"
#include "lockstep/train/step.hpp"
#include "lockstep/train/timing.hpp"

namespace lockstep::train {
namespace {

/// Number of elements that a rank needs, over all rows, to compute its slice of the gradients.
double exchanged_activations(const data::Plan& plan, const nn::NetworkShape& shape) {
  return shape.exchanged_values() * static_cast<double>(plan.summed_rows(0));
}

/// Largest number of tree parts on any rank at `step`.
std::size_t max_parts(const data::Plan& plan, std::uint64_t step) {
  const std::uint64_t leaf = plan.leaf(step);
  const std::uint64_t each = (plan.block(step) + leaf - 1) / leaf;
  const std::uint64_t leaves = (plan.summed_rows(step) + leaf - 1) / leaf;
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

Exchange chosen_exchange(Exchange asked, const StepOptions& options,
                         const nn::NetworkShape& shape) {
  const data::Plan& plan = *options.plan;
  if (options.audit_every && plan.options().balance) {
    throw ConfigError("`audit_every` with balance: an auditor needs the others' activations",
                      "leave out one of the two");
  }
  if (options.audit_every && asked == Exchange::partial_sums) {
    throw ConfigError("`audit_every` with exchange sums: an auditor needs the others' activations",
                      "use `exchange=activations`, or leave the audit out");
  }
  if (options.audit_every && options.micro_batch > 0) {
    throw ConfigError("`audit_every` with `micro_batch`: an auditor needs the others' activations",
                      "leave out one of the two");
  }
  if (options.audit_every && shape.sums_over_batch()) {
    throw ConfigError(
        "`audit_every` with a layer that sums over the batch, as batch-norm does: its rows cannot "
        "be computed again alone",
        "use layer-norm, or leave the audit out");
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

std::uint64_t sum_blocks(Exchange exchange, const data::Plan& plan) {
  if (exchange != Exchange::partial_sums || plan.steps() == 0) return 0;
  return 2 * std::max(max_parts(plan, 0), max_parts(plan, plan.steps() - 1));
}

std::uint64_t rows_needed(Exchange exchange, const data::Plan& plan) noexcept {
  const std::uint64_t all = plan.largest_gathered();
  return exchange == Exchange::activations ? all : all / plan.options().ranks;
}

namespace {

std::uint64_t leaf_at(std::uint64_t row, std::uint64_t leaf) { return (row + leaf - 1) / leaf; }

}  // namespace

LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm) {
  LeafLayout layout;
  layout.leaf = batch.leaf;
  layout.block = batch.block;
  layout.summed_rows = batch.summed_rows;
  layout.shares = batch.plan->shares();
  layout.leaves = leaf_at(batch.summed_rows, batch.leaf);
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<Subtree> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Range rows = batch.summed_rows_of(rank);
    const std::uint64_t begin = leaf_at(rows.begin, batch.leaf);
    const std::uint64_t end = leaf_at(rows.end, batch.leaf);
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

/// Sets rows without an example to zero in all buffers that are summed over (see data::Plan).
void clear(nn::Network<float>& network, Range rows) {
  network.for_each_exchanged(rows, [](std::span<float> v) { std::fill(v.begin(), v.end(), 0.0F); });
}

/// Base of both exchanges: computes this rank's rows and updates its slice of the weights.
class CanonicalStep : public Step {
 public:
  std::span<const Range> slice() const noexcept final { return slice_; }
  std::span<const Range> segments() const noexcept final { return segments_; }
  optim::OptimizerState& optimizer() noexcept final { return optimizer_; }
  std::optional<double> gradient_norm() const noexcept final { return optimizer_.gradient_norm(); }

  std::span<const nn::ExampleResult> results(const data::Batch& batch) final {
    return micro_batches_ ? micro_batches_->results(batch.piece.size())
                          : network_.results(rows(batch.piece));
  }

 protected:
  /// Slices have equal lengths, of whole cache lines.
  CanonicalStep(nn::Network<float>& network, std::vector<Range> segments,
                const StepOptions& options, comm::Communicator& comm, Sentinel& sentinel)
      : Step(options, comm, sentinel,
             make_micro_batches(network, options.micro_batch, *options.plan)),
        network_(network),
        segments_(std::move(segments)),
        slice_(ranges_in(segments_, static_cast<std::size_t>(comm.rank()),
                         static_cast<std::size_t>(comm.size()))),
        optimizer_(network.parameters().values().size() / static_cast<std::size_t>(comm.size()),
                   options.optimizer, tensors_in(network.parameters().layout(), slice_)),
        rank_sums_(rank_sums(&comm, options.model)),
        global_(network, comm) {}

  /// `first_row`: row of the global batch that is row 0 of the network's buffers.
  void forward_and_backward(const data::Batch& batch, std::size_t first_row,
                            PhaseSeconds& seconds) {
    Lap phase;
    const Range mine = rows(batch.piece);
    clear(network_, {mine.end, mine.end + batch.padding().size()});
    global_.begin(batch);
    network_.forward(mine, nn::TrainingRows{steps() + 1, first_row});
    network_.loss(mine, targets_of(batch), true);
    seconds.forward += phase.take();
    network_.backward(mine);
  }

  nn::Network<float>& network_;
  const std::vector<Range> segments_;
  const std::vector<Range> slice_;
  bool finite_ = true;  // this rank's last update

 private:
  void update(double weight) final {
    network_.end_training_pass();
    finite_ = optimizer_.update(network_.parameters().values(), gradient_sums(), weight, steps(),
                                rank_sums_);
  }

  optim::Optimizer optimizer_;
  optim::RankSums rank_sums_;
  GlobalBatch global_;
};

class ActivationsStep final : public CanonicalStep {
 public:
  ActivationsStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                  Sentinel& sentinel)
      : CanonicalStep(
            network,
            segments_of(network.parameters().layout(), static_cast<std::size_t>(comm.size())),
            options, comm, sentinel),
        audit_(network, *options.plan, comm, options.audit_every),
        finite_on_(static_cast<std::size_t>(comm.size()), comm.memory()) {
    const auto gradients = network.parameters().gradients();
    for (const Range range : slice()) {
      sums_.push_back({gradients.subspan(range.begin, range.size()), range.begin});
    }
    for (const Range segment : segments()) {
      published_.push_back(std::as_writable_bytes(
          network.parameters().values().subspan(segment.begin, segment.size())));
    }
    published_.push_back(std::as_writable_bytes(finite_on_.span()));
  }

  const char* name() const noexcept override { return "canonical, by activations"; }

  Range rows(Range piece) const noexcept override { return piece; }

  std::span<const optim::GradientSums> gradient_sums() override { return sums_; }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    forward_and_backward(batch, 0, seconds);
  }

  void add_blocks(const data::Batch& batch, Blocks& blocks) override {
    const Range all = {0, batch.block * static_cast<std::size_t>(comm_.size())};
    network_.for_each_exchanged(
        all, [&](std::span<float> values) { blocks.push_back(std::as_writable_bytes(values)); });
    if (!audit_.due(steps() + 1)) return;
    for (const auto block : audit_.put_targets(batch)) blocks.push_back(block);
  }

  void reduce(const data::Batch& batch, PhaseSeconds& seconds) override {
    Lap phase;
    const std::uint64_t step = steps() + 1;
    if (audit_.due(step)) audit_.check_leaf(step, batch);
    for (const Range range : slice()) {
      network_.weight_gradients({0, batch.summed_rows}, batch.leaf, range);
    }
    if (audit_.due(step)) audit_.check_gradients(step, batch, segments());
    seconds.compute += phase.take();
  }

  /// Sends the slice and the flag of each rank in one collective.
  bool publish() override {
    finite_on_.data()[comm_.rank()] = finite_ ? 1 : 0;
    comm_.all_gather(published_);
    return std::all_of(finite_on_.span().begin(), finite_on_.span().end(),
                       [](std::uint64_t finite) { return finite != 0; });
  }

  Audit audit_;
  AlignedBuffer<std::uint64_t> finite_on_;  // each rank's last update
  std::vector<optim::GradientSums> sums_;   // of the slice
  Blocks published_;                        // the segments, and finite_on_
};

class PartialSumsStep final : public CanonicalStep {
 public:
  PartialSumsStep(nn::Network<float>& network, const StepOptions& options, comm::Communicator& comm,
                  Sentinel& sentinel)
      : CanonicalStep(network, {{0, network.parameters().values().size()}}, options, comm,
                      sentinel) {
    reserve(sum_blocks(Exchange::partial_sums, *options.plan) / 2);
  }

  const char* name() const noexcept override { return "canonical, by partial sums"; }

  std::span<const optim::GradientSums> gradient_sums() override {
    sums_ = {part(0), slice()[0].begin};
    return {&sums_, 1};
  }

 private:
  void compute(const data::Batch& batch, PhaseSeconds& seconds) override {
    if (!layout_.fits(batch)) {
      layout_ = leaf_layout(batch, comm_);
      reserve(layout_.max_parts);
    }
    const std::size_t summed = batch.piece.size() + batch.padding().size();
    if (micro_batches_) {
      micro_batches_->begin(batch, steps() + 1);
    } else {
      forward_and_backward(batch, batch.piece.begin, seconds);
    }
    for (std::size_t i = 0; i < layout_.mine.size(); ++i) {
      const Range rows = layout_.rows_of(layout_.mine[i], summed);
      if (micro_batches_) {
        micro_batches_->sum(rows, own_[i].span(), seconds);
      } else {
        network_.weight_gradients(rows, batch.leaf, {0, block_size()}, own_[i].span());
      }
    }
  }

  void reduce(const data::Batch& /*batch*/, PhaseSeconds& seconds) override {
    Lap phase;
    for (std::size_t round = 0; round < layout_.max_parts; ++round) {
      comm_.all_to_all(std::span<const float>(own_[round].span()), received_[round].span());
    }
    seconds.reduce += phase.take();
    sum_slice();
    seconds.update += phase.take();
  }

  /// Sends two messages, like a device: ranks with and without a device may train together.
  bool publish() override {
    comm_.all_gather(network_.parameters().values());
    return comm_.all_agree(finite_);
  }

  std::size_t block_size() { return network_.parameters().gradients().size(); }

  void reserve(std::size_t parts) {
    while (own_.size() < parts) {
      own_.emplace_back(block_size(), comm_.memory());
      received_.emplace_back(block_size(), comm_.memory());
    }
  }

  /// This rank's slice of a part, as received from the rank that holds it.
  std::span<float> part(std::size_t index) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t message = layout_.from[index];
    const std::size_t length = slice()[0].size();
    return received_[message / ranks].span().subspan(message % ranks * length, length);
  }

  /// Sums the tree into part 0, in pieces that fit in the cache.
  void sum_slice() {
    constexpr std::size_t piece = 4096;
    const std::size_t length = slice()[0].size();
    for (std::size_t first = 0; first < length; first += piece) {
      const std::size_t count = std::min(piece, length - first);
      for (const TreeSum& sum : layout_.sums) {
        float* const left = part(sum.left).data() + first;
        const float* const right = part(sum.right).data() + first;
        for (std::size_t i = 0; i < count; ++i) left[i] += right[i];
      }
    }
  }

  LeafLayout layout_;
  optim::GradientSums sums_;
  std::vector<AlignedBuffer<float>> own_;       // this rank's sums, a part each
  std::vector<AlignedBuffer<float>> received_;  // this rank's slice of every rank's, a round each
};

}  // namespace

std::unique_ptr<Step> make_canonical_step(nn::Network<float>& network, Exchange exchange,
                                          const StepOptions& options, comm::Communicator& comm,
                                          Sentinel& sentinel) {
  if (exchange == Exchange::partial_sums) {
    return std::make_unique<PartialSumsStep>(network, options, comm, sentinel);
  }
  return std::make_unique<ActivationsStep>(network, options, comm, sentinel);
}

}  // namespace lockstep::train

// Helpers shared by the canonical steps on the CPU and on devices: the layout of leaves over ranks,
// and sums over the global batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/leaf_tree.hpp"

namespace lockstep::train {

/// The subtrees of a step's leaves on each rank, and how they are summed.
///
/// Ranks exchange their parts in rounds: in round i each rank sends its part i. A message has the
/// index round * ranks + rank.
struct LeafLayout {
  std::uint64_t leaf = 0;
  std::uint64_t block = 0;
  std::uint64_t summed_rows = 0;
  std::vector<std::uint64_t> shares;  ///< Plan::shares()

  std::vector<Subtree> mine;
  std::uint64_t first_leaf = 0;   ///< first leaf of this rank
  std::uint64_t leaves = 0;       ///< number of leaves on all ranks
  std::size_t max_parts = 0;      ///< largest number of parts on any rank
  std::vector<std::size_t> from;  ///< part -> index of the message that contains it
  std::vector<TreeSum> sums;      ///< sums of the parts of all ranks, in order

  /// The rows of `tree`, one of `mine`, among this rank's `summed` rows; the last leaf may be
  /// short.
  Range rows_of(const Subtree& tree, std::size_t summed) const noexcept {
    const std::size_t first = (tree.first - first_leaf) * leaf;
    return {first, std::min<std::size_t>(first + tree.size * leaf, summed)};
  }

  /// True if the layout is valid for `batch`.
  bool fits(const data::Batch& batch) const noexcept {
    return leaf == batch.leaf && block == batch.block && summed_rows == batch.summed_rows &&
           shares == batch.plan->shares();
  }
};

/// Returns the layout of `batch`. Local.
LeafLayout leaf_layout(const data::Batch& batch, const comm::Communicator& comm);

/// Sums over the global batch for a network's layers, during one step.
///
/// Each rank sums its own leaves as far as the tree allows and sends these sums to all ranks, a few
/// doubles per channel; every rank adds them in the tree's order. Leaves of rows without an example
/// (data/plan.hpp) are zero. Both constructor arguments must outlive this object. The constructor
/// registers it with Network::set_batch_sums(); the destructor removes it.
class GlobalBatch final : public nn::BatchSums {
 public:
  GlobalBatch(nn::Network<float>& network, comm::Communicator& comm);
  ~GlobalBatch() override;

  /// Sets the batch of the following sums. Local; does nothing if no layer sums over the batch.
  void begin(const data::Batch& batch);

  std::size_t examples() const noexcept override { return examples_; }

 private:
  void do_sum(std::span<double> sums, Terms terms) override;

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  bool needed_;
  std::size_t examples_ = 0;
  std::size_t first_row_ = 0;  // first row of this rank's piece
  std::size_t rows_ = 0;
  LeafLayout layout_;
  std::vector<double> parts_;  // parts of all ranks: [rank][part]
  std::vector<double> scratch_;
};

}  // namespace lockstep::train

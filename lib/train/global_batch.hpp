// Sums over a step's global batch, of whose examples every rank holds its piece.
#pragma once

#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/leaf_layout.hpp"

namespace lockstep::train {

/// What a network's layers sum over the batch with, during one step.
///
/// Each rank sums its own leaves as far as the tree allows and shows those sums to all, a few
/// doubles a channel; every rank adds them up in the tree's order. Leaves of rows without an
/// example (data/plan.hpp) are zero. Both constructor arguments must outlive it; it takes the
/// network's place for batch sums as long as it lives.
class GlobalBatch final : public nn::BatchSums {
 public:
  GlobalBatch(nn::Network<float>& network, comm::Communicator& comm);
  ~GlobalBatch() override;

  /// From now on sums are over this batch. Local; costs nothing where no layer sums.
  void begin(const data::Batch& batch);

  std::size_t examples() const noexcept override { return examples_; }

 private:
  void do_sum(std::span<double> sums, Terms terms) override;

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  bool needed_;
  std::size_t examples_ = 0;
  std::size_t first_row_ = 0;  // of this rank's piece
  std::size_t rows_ = 0;
  LeafLayout layout_;
  std::vector<double> parts_;  // of all ranks: [rank][part]
  std::vector<double> scratch_;
};

}  // namespace lockstep::train

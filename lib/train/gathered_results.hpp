// What the examples of all ranks added to a step's loss, on every rank.
#pragma once

#include <span>

#include "collectives/communicator.hpp"
#include "lib/base/aligned.hpp"
#include "lib/nn/loss.hpp"

namespace lockstep::train {

/// Gathers the results of every rank's rows, so that each can sum them over leaves.
class GatheredResults {
 public:
  /// For at most `rows` rows in the blocks of all ranks: Plan::largest_gathered(). `comm` must
  /// outlive this.
  GatheredResults(std::size_t rows, comm::Communicator& comm);

  /// All ranks' results, `block` rows a rank; what a rank lacks of its block is zero. Valid until
  /// the next call.
  /// Ranks    collective.
  std::span<const nn::ExampleResult> gather(std::span<const nn::ExampleResult> mine,
                                            std::size_t block);

 private:
  comm::Communicator& comm_;
  AlignedBuffer<nn::ExampleResult> all_;
};

/// The sum of all ranks' tallies, the same on each.
/// Ranks    collective.
nn::Tally sum_over_ranks(nn::Tally mine, comm::Communicator& comm);

}  // namespace lockstep::train

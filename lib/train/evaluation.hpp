// The loss and accuracy of a network over a whole data set, every example counted once.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/ids_digest.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/inference.hpp"
#include "lib/train/mesh.hpp"

namespace lockstep::train {

/// Examples that all ranks together evaluate at once. Not the training batch: no weights change in
/// between, so only speed and memory choose it.
inline constexpr std::uint64_t evaluation_batch = 1024;

/// Sums over all ranks; the same on each, and for any number of them where rows are: the loss is
/// summed over leaves in a tree, batch after batch.
struct Evaluation {
  std::uint64_t examples = 0;
  double loss_sum = 0;
  std::uint64_t correct = 0;
  /// confusion[label * classes + predicted]: examples; empty for more than 256 classes.
  std::vector<std::uint64_t> confusion;
  /// Of the ids that all ranks together evaluated: proved to be every record once.
  std::uint64_t ids_digest = 0;

  double loss() const { return loss_sum / static_cast<double>(examples); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(examples); }
};

/// The plan under which `records` records are evaluated on `ranks` ranks.
data::Plan evaluation_plan(std::uint64_t records, int ranks);

/// Runs a network over every record that the reader's plan deals to this rank, and adds up.
///
/// It must have rows for the plan's largest_piece(); the plan counts the ranks of `groups.batch`.
/// Errors   throws comm::AgreedError (70) where not every record was evaluated exactly once;
///          std::invalid_argument for a label that is none of the network's classes; and what
///          reading and communicating throw.
/// Ranks    collective.
Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, data::BatchReader& reader,
                    const Groups& groups);

/// The same on this processor, by the network's own loss.
Evaluation evaluate(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups);

/// Adds up the digests of all ranks' ids and compares with every one of `records` records once.
/// Returns the digest's value.
///
/// Errors   throws comm::AgreedError (70) where they differ.
/// Ranks    collective.
std::uint64_t certify_ids(data::IdsDigest mine, std::uint64_t records, comm::Communicator& comm);

}  // namespace lockstep::train

// What a network takes every example of a data set for, in global order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/inference.hpp"
#include "lib/train/mesh.hpp"

namespace lockstep::train {

/// One example's.
struct Prediction {
  std::uint64_t id = 0;    ///< of the record in the data set
  std::int32_t label = 0;  ///< the first index of the greatest logit
  float probability = 0;   ///< softmax of that logit
};

/// Takes the predictions of one global batch. The span is valid during the call alone.
using PredictionSink = std::function<void(std::span<const Prediction>)>;

/// Runs the network over every record that `reader`'s plan deals to the ranks, and hands `sink` all
/// predictions on rank 0 of `groups.all`, batch after batch, in global order: ids 0, 1, 2, ...
///
/// Needs memory for one global batch, whatever the number of records. `reader` follows
/// evaluation_plan() of `groups.batch`; the network has rows for its largest_piece(). What `sink`
/// gets does not depend on the number of ranks where the network's products are strict.
/// Errors   throws comm::AgreedError: a prediction that is not finite (76), not every record
///          predicted exactly once (70); and what reading, communicating and `sink` throw.
/// Ranks    collective.
void predict(Inference& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink);

/// The same on this processor.
void predict(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink);

}  // namespace lockstep::train

// The loss and accuracy of a network over a whole data set, every example counted once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/ids_digest.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::train {
// Forward passes of evaluation and prediction, wherever a replica computes them.

/// A trained network that is given rows in memory of the host. Local; one thread.
class Inference {
 public:
  Inference() = default;
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;
  virtual ~Inference() = default;

  virtual const nn::NetworkShape& shape() const noexcept = 0;

  /// Where the features of the next forward() belong.  [rows, features]
  virtual Matrix<float> inputs(std::size_t rows) = 0;

  /// Logits of inputs(rows), valid until the next call.  [rows, classes]
  virtual Matrix<const float> forward(std::size_t rows) = 0;
};

/// On this processor.
class NetworkInference final : public Inference {
 public:
  /// `network` must outlive this.
  explicit NetworkInference(nn::Network<float>& network) : network_(network) {}

  const nn::NetworkShape& shape() const noexcept override { return network_.shape(); }
  Matrix<float> inputs(std::size_t rows) override { return network_.inputs({0, rows}); }
  Matrix<const float> forward(std::size_t rows) override { return network_.forward({0, rows}); }

 private:
  nn::Network<float>& network_;
};

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

// What a network takes every example of a data set for, in global order.

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

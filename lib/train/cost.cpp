#include "lockstep/train/cost.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/evaluation.hpp"
#include "lockstep/train/micro_batches.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

/// Values of an example: a layer's outputs and their gradients.
double values_of(const nn::LayerSize& size) { return 2 * static_cast<double>(size.output.size()); }

}  // namespace

std::vector<double> ReplicaBuffers::bytes_of_layers(const nn::NetworkShape& shape,
                                                    std::uint64_t model_ranks) const {
  const auto sizes = shape.sizes();
  const auto shardings = shardings_of(shape, model_ranks);
  std::vector<double> bytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool is_shared = shardings[i] != Sharding::none;
    const double weights = sizes[i].weights / (is_shared ? static_cast<double>(model_ranks) : 1);
    const double values = is_flatten(shape.layers[i]) ? 0 : values_of(sizes[i]);
    bytes.push_back(sizeof(float) * (blocks * weights + rows_on_host * values));
  }
  return bytes;
}

double ReplicaBuffers::bytes(const nn::NetworkShape& shape, std::uint64_t model_ranks,
                             int threads) const {
  const auto sizes = shape.sizes();
  const auto of_layers = bytes_of_layers(shape, model_ranks);
  double values = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!is_flatten(shape.layers[i])) values += values_of(sizes[i]);
  }
  const double windows = shape.window_values(static_cast<std::size_t>(rows_on_host), leaf,
                                             static_cast<std::size_t>(threads));
  const double others = rows_on_host * (shape.row_values() - values) + windows +
                        read_rows * static_cast<double>(shape.features);
  return std::accumulate(of_layers.begin(), of_layers.end(), sizeof(float) * others);
}

namespace {

/// Throws if there is nothing to train.
void require_trained(const nn::NetworkShape& shape) {
  if (shape.trained_weights() > 0) return;
  throw ConfigError("every layer with weights is frozen: nothing would be trained",
                    "leave `freeze` out of at least one");
}

/// Throws if a batch cannot be computed in micro-batches of this size.
void require_fitting_micro_batch(const nn::NetworkShape& shape, const data::Plan& plan,
                                 std::size_t micro_batch) {
  if (micro_batch == 0) return;
  if (const std::uint64_t leaf = plan.largest_leaf(); leaf > micro_batch) {
    throw ConfigError("`micro_batch` " + std::to_string(micro_batch) +
                          ": gradients are summed by leaves of " + std::to_string(leaf) +
                          " examples, which are computed together",
                      "use `micro_batch=" + std::to_string(leaf) +
                          "` or more, or a smaller `leaf`, which changes the weights");
  }
  const auto sums =
      std::find_if(shape.layers.begin(), shape.layers.end(),
                   [](const nn::LayerSpec& layer) { return nn::sums_over_batch(layer); });
  if (sums == shape.layers.end()) return;
  throw ConfigError("`micro_batch` with " +
                        shape.layer_text(static_cast<std::size_t>(sums - shape.layers.begin())) +
                        ", which sums over the whole batch",
                    "use layer-norm, or leave `micro_batch` out");
}

}  // namespace

ReplicaBuffers training_buffers(const nn::NetworkShape& shape, const data::Plan& plan,
                                const ReplicaOptions& options) {
  require_trained(shape);
  require_fitting_micro_batch(shape, plan, options.micro_batch);
  const bool on_device = options.device == Device::cuda;
  const bool canonical = options.reduction == Reduction::canonical;
  ReplicaBuffers buffers = evaluation_buffers(static_cast<int>(plan.options().ranks), options);
  if (on_device) {
    buffers.exchange = Exchange::partial_sums;
  } else if (canonical) {
    buffers.exchange = chosen_exchange(shape, plan, options);
  }
  const std::size_t piece = canonical ? rows_needed(buffers.exchange, plan) : plan.largest_piece();
  const bool is_cut = needs_micro_batches(options.micro_batch, plan);
  if (is_cut) {
    buffers.rows = std::max(buffers.rows, std::min(piece, options.micro_batch));
    buffers.blocks += static_cast<double>(micro_batch_blocks(options.micro_batch, plan));
  } else {
    buffers.rows = std::max(buffers.rows, piece);
  }
  buffers.rows_on_host = on_device ? 0 : static_cast<double>(buffers.rows);
  buffers.leaf = plan.largest_leaf();
  const auto ranks = static_cast<double>(plan.options().ranks);
  const auto moments = static_cast<double>(optim::moment_names(options.optimizer).size());
  buffers.blocks += moments / (canonical ? ranks : 1);
  const bool one_block = ranks == 1 && !on_device;  // of a part
  if (canonical) {
    buffers.blocks += static_cast<double>(sum_parts(buffers.exchange, plan) * (one_block ? 1 : 2));
  }
  const bool staged = on_device || is_cut;
  const std::size_t slots = options.prefetch + (staged ? 2 : options.prefetch > 0 ? 1 : 0);
  buffers.read_rows += static_cast<double>(slots) * static_cast<double>(plan.largest_piece());
  return buffers;
}

ReplicaBuffers evaluation_buffers(int ranks, const ReplicaOptions& options) {
  // The processor evaluates a piece in parts, so that evaluation needs less than training.
  constexpr std::size_t part = 128;
  ReplicaBuffers buffers;
  buffers.rows = evaluation_plan(evaluation_batch, ranks).largest_piece();
  const std::size_t limit = options.micro_batch > 0          ? options.micro_batch
                            : options.device == Device::cuda ? buffers.rows
                                                             : part;
  if (limit < buffers.rows) {
    buffers.read_rows = static_cast<double>(buffers.rows);
    buffers.rows = limit;
  }
  buffers.rows_on_host = options.device == Device::cuda ? 0 : static_cast<double>(buffers.rows);
  return buffers;
}

SnapshotBlocks snapshot_blocks(const ReplicaOptions& options) {
  const auto moments = static_cast<double>(optim::moment_names(options.optimizer).size());
  return {.on_rank_0 = 1 + moments,
          .on_a_host = options.keeps_snapshots ? double{SharedSnapshot::blocks_a_host} : 0};
}

void require_memory(const nn::NetworkShape& shape, const ReplicaBuffers& buffers,
                    const SnapshotBlocks& snapshots, const Groups& groups, int threads) {
  const comm::Place& place = groups.all.place();
  const double blocks = snapshots.on_a_host + (place.node == 0 ? snapshots.on_rank_0 : 0);
  const double needed = buffers.bytes(shape, groups.model_ranks(), threads) * place.local_ranks +
                        sizeof(float) * blocks * shape.weights();
  const auto there = static_cast<double>(memory_limit_bytes());
  if (needed <= there) return;
  const auto ranks = static_cast<std::uint64_t>(place.local_ranks);
  throw ConfigError("layers: " + counted(ranks, "rank") + " on " + place.host +
                        (ranks == 1 ? " needs " : " need ") + bytes_text(needed) +
                        " of memory; there are " + bytes_text(there),
                    less_memory);
}

namespace {

constexpr double float_bytes = sizeof(float);

/// The number of copies of a layer's inputs, outputs and weights on the ranks of a replica, sharded
/// ones counted together.
struct Copies {
  double inputs;
  double outputs;
  double weights;
};

Copies copies_of(Sharding sharding, double ranks) {
  switch (sharding) {
    case Sharding::none: break;
    case Sharding::columns: return {ranks, 1, 1};
    case Sharding::gathered_columns: return {ranks, ranks, 1};
    case Sharding::rows: return {1, ranks, 1};
  }
  return {ranks, ranks, ranks};
}

/// The work of a network's layers, as `model_ranks` ranks share them.
class LayerWork {
 public:
  LayerWork(const nn::NetworkShape& shape, std::uint64_t model_ranks)
      : shape_(shape),
        sizes_(shape.sizes()),
        shardings_(shardings_of(shape, model_ranks)),
        ranks_(static_cast<double>(model_ranks)) {}

  /// Adds the products to forward and backward. `replicas`: those that have examples.
  void add_products(double examples, double replicas, StepWork& work) const {
    std::size_t first_trained = 0;
    while (first_trained + 1 < sizes_.size() && !is_trained(first_trained)) ++first_trained;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const Copies copies = copies_of(shardings_[i], ranks_);
      const double flops =
          2 * examples * nn::multiply_adds_of(shape_.layers[i], sizes_[i].inputs) * copies.weights;
      if (flops == 0) continue;
      const double inputs =
          examples * static_cast<double>(sizes_[i].inputs[0].size()) * copies.inputs;
      const double outputs =
          examples * static_cast<double>(sizes_[i].output.size()) * copies.outputs;
      const double weights = sizes_[i].weights * copies.weights;
      work.forward.flops += flops;
      work.forward.bytes += float_bytes * (inputs + outputs + replicas * weights);
      if (is_trained(i)) {
        work.backward.flops += flops;
        work.backward.bytes += float_bytes * (inputs + outputs + weights);
      }
      if (sizes_[i].from[0] > first_trained) {  // the output of that layer, or of a later one
        work.backward.flops += flops;
        work.backward.bytes += float_bytes * (2 * inputs + outputs + replicas * weights);
      }
    }
  }

  /// Of all layers, on all ranks of a replica.
  double weights() const {
    double all = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      all += sizes_[i].weights * copies_of(shardings_[i], ranks_).weights;
    }
    return all;
  }

  /// Of an example, which the ranks of a replica send in all: an output that is sharded once as
  /// input of the layer above, and its gradient.
  double exchanged_values() const {
    std::size_t sharded = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!is_trained(i)) continue;
      if (shardings_[i] == Sharding::columns) sharded += sizes_[i].output.size();
      if (shardings_[i] == Sharding::rows) sharded += sizes_[i].inputs[0].size();
    }
    return ranks_ * shape_.exchanged_values() - (ranks_ - 1) * static_cast<double>(sharded);
  }

  /// Of an example, in the buffers of a rank.
  double row_values() const {
    double sharded = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (shardings_[i] == Sharding::columns) sharded += values_of(sizes_[i]);
    }
    return shape_.row_values() - (1 - 1 / ranks_) * sharded;
  }

 private:
  bool is_trained(std::size_t i) const {
    return nn::trained_weights_of(shape_.layers[i], sizes_[i].inputs) > 0;
  }

  const nn::NetworkShape& shape_;
  const std::vector<nn::LayerSize> sizes_;
  const std::vector<Sharding> shardings_;
  const double ranks_;  // of a replica
};

}  // namespace

StepWork work_of(const nn::NetworkShape& shape, const data::Plan& plan,
                 const ReplicaOptions& options, double feature_bytes, std::uint64_t model_ranks) {
  const ReplicaBuffers buffers = training_buffers(shape, plan, options);
  const auto examples = static_cast<double>(plan.examples(0));
  const auto ranks = static_cast<double>(plan.options().ranks);
  const auto model = static_cast<double>(model_ranks);
  const LayerWork layers(shape, model_ranks);
  const double weights = layers.weights();
  const auto state = static_cast<double>(optim::moment_names(options.optimizer).size());
  const double update = float_bytes * (3 + 2 * state) * weights;
  const double others = 2 * float_bytes * (ranks - 1);

  StepWork work;
  work.data.bytes =
      model * examples * static_cast<double>(shape.features) * (feature_bytes + float_bytes);
  layers.add_products(examples, ranks - static_cast<double>(plan.idle_ranks()), work);
  double rows = examples / ranks;  // in the buffers of a rank
  double gradients = 1;            // the part of their block that it touches
  if (options.reduction == Reduction::allreduce) {
    work.exchange.bytes = float_bytes * (ranks - 1 > 0 ? 3 * ranks - 1 : 0) * weights;
    work.update.bytes = ranks * update;
  } else {
    const bool by_sums = buffers.exchange == Exchange::partial_sums;
    const auto parts = static_cast<double>(sum_parts(buffers.exchange, plan));
    work.exchange.bytes =
        others * (by_sums ? weights * parts : examples * layers.exchanged_values());
    work.update.bytes = update + float_bytes * ranks * parts * weights;
    work.publish.bytes = others * weights;
    if (!by_sums) rows = examples;
    gradients = by_sums ? 0 : 1 / ranks;
  }
  if (options.micro_batch > 0) rows = std::min(rows, static_cast<double>(options.micro_batch));
  work.resident = float_bytes *
                  (weights / model * (buffers.blocks - 1 + gradients) + rows * layers.row_values());
  return work;
}

}  // namespace lockstep::train

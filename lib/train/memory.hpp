// The memory of a rank's replica, before it is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/data/plan.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/groups.hpp"
#include "lockstep/train/replica_options.hpp"

namespace lockstep::train {

/// The lengths of the buffers of a rank that trains with a plan, or only evaluates. Bytes are in
/// double, so that no width overflows them.
struct ReplicaBuffers {
  Exchange exchange = Exchange::automatic;  ///< chosen_exchange(), of the canonical reduction
  std::size_t rows = 0;                     ///< of the network's buffers
  double rows_on_host = 0;                  ///< `rows`; 0 with a device
  double blocks = 4;     ///< as long as the weights: these, gradients, two moments and sums
  double read_rows = 0;  ///< of features, read ahead

  /// Bytes for a layer: its blocks, sharded over `model_ranks` if it is dense, and its outputs and
  /// their gradients, as if these were not sharded.
  double bytes(const nn::LayerSpec& layer, const nn::LayerSize& size,
               std::uint64_t model_ranks) const;

  /// Bytes for all layers, the input and what else a network of this shape needs.
  double bytes(const nn::NetworkShape& shape, std::uint64_t model_ranks) const;
};

/// The buffers for training on `plan`, and for evaluation, which need no more.
/// Errors   throws ConfigError: see chosen_exchange().
/// Ranks    local; the same on every rank.
ReplicaBuffers training_buffers(const nn::NetworkShape& shape, const data::Plan& plan,
                                const ReplicaOptions& options);

/// The buffers for evaluation alone, on `ranks` ranks of "batch". Local.
ReplicaBuffers evaluation_buffers(int ranks, const ReplicaOptions& options);

/// Throws ConfigError unless this machine has memory for its ranks' replicas. `on_rank_0` and
/// `on_a_host` are copies of all weights, on rank 0 and on each host. Local.
void require_memory(const nn::NetworkShape& shape, const ReplicaBuffers& buffers, double on_rank_0,
                    double on_a_host, const Groups& groups);

/// The remedy of errors about memory.
inline constexpr const char* less_memory =
    "use narrower layers, a smaller `batch_size` or `prefetch`, or fewer ranks a host";

}  // namespace lockstep::train

// What a rank may take of its machine: cores, memory.
#pragma once

#include <cstdint>

#include "apps/settings.hpp"
#include "collectives/communicator.hpp"
#include "lib/nn/network.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep::apps {

/// Threads of a rank's products: as set, else the cores that are this rank's own. Rank 0 warns of
/// more threads than cores. Local. Throws ConfigError for more than anybody can mean.
int threads_of(const RunConfig& config, const comm::Communicator& comm);

/// Whether products are strict, where `library` would compute the others. Throws ConfigError for
/// those of a library under the canonical reduction. Local.
bool wants_strict(const RunConfig& config, const char* library);

/// The instructions that `config.simd` names. Local.
Simd simd_of(const RunConfig& config);

/// What a rank keeps besides its weights.
struct Buffers {
  std::uint64_t rows = 0;             ///< of the network's buffers
  std::uint64_t prefetched_rows = 0;  ///< of features, read ahead
  std::uint64_t sum_blocks = 0;       ///< of the weights' size: see train::sum_blocks
  std::uint64_t model_ranks = 1;      ///< that share out the weights of dense layers
};

/// Throws ConfigError unless this machine has memory for its ranks' networks of `shape`, trained.
/// `remedy` ends the message. Local.
void require_memory(const nn::NetworkShape& shape, const Buffers& buffers, const comm::Place& place,
                    const char* remedy);

}  // namespace lockstep::apps

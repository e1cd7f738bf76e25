// What the files of Replica share: members that its header leaves out, so that programs compile in
// less memory, and the checks of its options.
#pragma once

#include <memory>

#include "lockstep/base/aligned.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {

/// They use network and device, and are destroyed before them.
struct Replica::Parts {
  /// The layout of the whole network if this rank holds a part; created by make_snapshot().
  std::unique_ptr<nn::ParameterLayout<float>> whole_layout;
  std::unique_ptr<Inference> processor;
  AlignedBuffer<float> staged_features;  ///< of train(step, features, labels) on a device
  AlignedBuffer<std::int32_t> staged_labels;
  AlignedBuffer<float> staged_values;
  std::unique_ptr<Sentinel> sentinel;
  std::unique_ptr<Step> step;
};

bool is_canonical(const ReplicaOptions& options);

/// True if products are strict; `library` is the implementation of the others. Throws ConfigError
/// for the library's with the canonical reduction.
bool is_strict(const ReplicaOptions& options, const char* library);

/// Throws ConfigError for options that do not go together, or not where `model_ranks` ranks share a
/// network. Local.
void require_consistent(const ReplicaOptions& options, std::uint64_t model_ranks);

/// Compares what determines the results of a replica, and what its collectives depend on. `plan`:
/// of training; null: only evaluation.
/// Errors   throws comm::AgreedError (2) on every rank if ranks differ, naming what does.
/// Ranks    collective.
void require_equal_settings(const nn::NetworkShape& shape, const data::Plan* plan,
                            const ReplicaOptions& options, const Groups& groups);

/// Compares the checkpoints that ranks have read; null: none. While a run trains, ranks may find
/// different newest checkpoints of it.
/// Errors   throws comm::AgreedError (2) on every rank if they differ.
/// Ranks    collective.
void require_one_checkpoint(comm::Communicator& comm, const SavedNetwork* saved);

}  // namespace lockstep::train

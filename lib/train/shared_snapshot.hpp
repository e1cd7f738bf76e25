// Shared snapshots: the state of training in memory of a host's ranks, which outlives each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/optim/adam.hpp"
#include "lockstep/train/checkpoint.hpp"

namespace lockstep::train {

/// The state of training after a step, without weights and moments.
struct ReplicaState {
  std::uint64_t steps = 0;     ///< completed
  std::uint64_t examples = 0;  ///< in them
  TrainingPosition position = {};
  optim::AdamState adam = {};
};

/// The two newest snapshots of the weights and of both of Adam's moments, each a flat block as in a
/// ParameterBlock, in one region that all ranks of a host map.
///
/// Each rank writes its slice of a snapshot, over the older one. The newer one is complete by then,
/// if ranks ran a collective since. A snapshot is complete when all ranks of the group that began
/// it have written it; so whenever a rank ends, one of the two is complete, after the first.
class SharedSnapshot {
 public:
  /// Room for blocks of `length` weights and up to `comm.size()` ranks.
  ///
  /// Errors   throws comm::AgreedError (2) if the ranks cannot share memory.
  /// Ranks    collective; all ranks must be on one host.
  SharedSnapshot(comm::Communicator& comm, std::size_t length);

  /// The three blocks of one snapshot, of `length` floats each.
  struct Blocks {
    std::span<float> weights;
    std::span<float> first;
    std::span<float> second;
  };

  /// Begins to write this rank's slice over the older snapshot, and returns where. Local.
  Blocks begin(int rank);

  /// Completes what begin() began, as rank `rank` of `ranks`. Local.
  void commit(int rank, int ranks, const ReplicaState& state);

  /// Remembers the loss of a step; if this rank has completed the step before, in a larger group,
  /// compares it. Local.
  ///
  /// Errors   throws Error (70) if the two differ.
  void require_repeated(std::uint64_t step, double loss);

  /// A complete snapshot.
  struct Complete {
    ReplicaState state;
    Blocks blocks;
  };

  /// The newest complete snapshot; nullopt if there is none. Call it when no rank writes. Local.
  std::optional<Complete> newest() const;

 private:
  struct Record;
  Record& record(std::size_t snapshot, std::size_t rank) const noexcept;
  Blocks blocks(std::size_t snapshot) const noexcept;
  bool is_complete(std::size_t snapshot) const noexcept;
  std::size_t older() const noexcept;

  std::size_t length_;
  std::size_t ranks_;        // of the first group
  std::size_t writing_ = 0;  // between begin() and commit()
  std::optional<comm::SharedRegion> region_;
  std::map<std::uint64_t, double> losses_;  // of steps that may be repeated
};

}  // namespace lockstep::train

// Snapshots: copies of the state of training in memory, which are saved as checkpoints; and shared
// ones, in memory of each host's ranks, which outlive each rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/optim/optimizer.hpp"
#include "lockstep/train/checkpoint.hpp"

namespace lockstep::train {

/// The weights and the optimizer's moments, each a flat block as in a ParameterBlock; empty: the
/// optimizer does not have it.
struct StateBlocks {
  std::span<float> weights;
  std::span<float> first;
  std::span<float> second;

  std::span<float> of(optim::Moment moment) const noexcept {
    return moment == optim::Moment::first ? first : second;
  }
};

/// A copy of a network's weights and its optimizer's state, made between two steps and saved later,
/// while training continues.
class Snapshot {
 public:
  /// `layout` must have no sharded tensor, and outlive the snapshot. `region`, of bytes(): memory
  /// of the ranks of a host, each of which has a snapshot of the same blocks; nullopt: its own.
  /// `optimizer`: null for the weights alone.
  ///
  /// Errors   throws std::bad_alloc; std::invalid_argument for a sharded tensor; ConfigError for
  ///          more tensors than a checkpoint can name.
  Snapshot(const nn::NetworkShape& shape, const nn::Loss<float>& loss,
           const nn::ParameterLayout<float>& layout, const optim::OptimizerOptions* optimizer,
           std::optional<comm::SharedRegion> region = std::nullopt);

  static std::size_t bytes(const nn::ParameterLayout<float>& layout,
                           const optim::OptimizerOptions* optimizer);

  bool is_shared() const noexcept { return region_.has_value(); }

  nn::NetworkShape shape;
  std::string loss;  ///< Loss::name()
  const nn::ParameterLayout<float>& layout;
  StateBlocks blocks;  ///< [layout.length()] each; the moments may be empty
  SavedOptimizer optimizer;
  std::vector<std::string> moments;  ///< optim::moment_names()

 private:
  std::optional<comm::SharedRegion> region_;
  AlignedBuffer<float> own_;
};

/// Writes `checkpoints`/step-NNNNNNNN/ and returns its path; replaces a checkpoint of this step.
/// Disk space for the tensors is reserved first. `state`: null to save the weights alone; its
/// `optimizer` is replaced by the snapshot's.
///
/// Errors   throws OutputError; other checkpoints are not changed, nor is one of this step.
/// Ranks    local; any thread.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const Snapshot& snapshot, const CheckpointInfo& info,
                                      const TrainingState* state);

/// Reads one moment of `optimizer` of every weight from optimizer.safetensors into a block of this
/// layout; of tensors that are sharded over ranks, this rank's shard.
///
/// Errors   throws DataError as SafetensorsReader does. Checksums are not compared: call
///          verify_checkpoint() on one rank.
/// Ranks    local.
void read_moments(const std::filesystem::path& folder, const nn::ParameterLayout<float>& layout,
                  const optim::OptimizerOptions& optimizer, optim::Moment moment,
                  std::span<float> block);

/// The state of training after a step, without weights and moments.
struct ReplicaState {
  std::uint64_t steps = 0;     ///< completed
  std::uint64_t examples = 0;  ///< in them
  TrainingPosition position = {};
  optim::OptimizerScalars optimizer = {};
};

/// What a complete snapshot holds.
struct KeptState {
  ReplicaState state;
  StateBlocks blocks;
};

/// A repeated step has another loss than before (70): thrown on every rank. One of the two passes
/// was wrong, and it is not known which.
class NotRepeated : public comm::AgreedError {
 public:
  NotRepeated(const Error& error, std::uint64_t good_steps)
      : AgreedError(error.code(), error.problem(), error.remedy()), good_steps_(good_steps) {}

  /// The completed steps of the snapshot from which steps were repeated. Checkpoints of later ones,
  /// of either pass, may be wrong.
  std::uint64_t good_steps() const noexcept { return good_steps_; }

 private:
  std::uint64_t good_steps_;
};

/// The two newest snapshots of the weights and of two moments, which an optimizer may not use, each
/// a flat block as in a ParameterBlock, in one region on each host, which all its ranks map.
///
/// The ranks of a host write a part each of a snapshot, in turn over one and the other. All are
/// complete before the next one is begun, if all ranks ran a collective since. A host's snapshot is
/// complete when all ranks of the group that began it there have written it. So whenever ranks end,
/// after the first snapshot, there is one that is complete on each host that is left.
class SharedSnapshot {
 public:
  static constexpr std::size_t blocks_a_host = 6;  ///< of the network's weights, about

  /// Room for blocks of `length` weights and up to `comm.place().local_ranks` ranks of this host.
  ///
  /// Errors   throws comm::AgreedError (2) if the ranks of a host cannot share memory.
  /// Ranks    collective.
  SharedSnapshot(comm::Communicator& comm, std::size_t length);

  /// Begins to write this rank's part over the older snapshot, and returns where: blocks of
  /// `length`; `rank` is that of Place::local_rank. Local.
  StateBlocks begin(int rank);

  /// Completes what begin() began, as rank `rank` of `ranks` on this host. Local.
  void commit(int rank, int ranks, const ReplicaState& state);

  /// Remembers the loss of a step. If a rank of `comm`, that of the last newest(), has completed
  /// the step before, compares the two there.
  ///
  /// Errors   throws NotRepeated if they differ on a rank.
  /// Ranks    collective up to the last step that one of them completed before newest(); then
  ///          local.
  void require_repeated(std::uint64_t step, double loss, comm::Communicator& comm);

  /// The newest snapshot after at most `max_steps` steps that is complete on the hosts of all ranks
  /// of `comm`; nullopt if there is none. The next begin() writes over the other one. Later
  /// snapshots are dropped, and losses of steps after `max_steps`. No rank may write.
  ///
  /// Ranks    collective.
  std::optional<KeptState> newest(comm::Communicator& comm, std::uint64_t max_steps = any_steps);

  static constexpr std::uint64_t any_steps = ~std::uint64_t{0};

 private:
  struct Record;
  Record& record(std::size_t snapshot, std::size_t rank) const noexcept;
  StateBlocks blocks(std::size_t snapshot) const noexcept;
  bool is_complete(std::size_t snapshot) const noexcept;
  std::uint64_t order_of(std::size_t snapshot, std::uint64_t max_steps) const noexcept;

  std::size_t length_;
  std::size_t ranks_;     // of the first group on this host
  std::size_t next_ = 0;  // the snapshot that begin() and commit() write
  comm::SharedRegion region_;
  std::map<std::uint64_t, double> losses_;  // of steps that may be repeated
  // As the ranks of the last newest() agreed:
  std::uint64_t restored_steps_ = 0;
  std::uint64_t repeated_until_ = 0;  // the last step that one of them had completed before
};

}  // namespace lockstep::train

// How a batched data set is shared out among replicas: what all ranks agree on before they read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "collectives/communicator.hpp"
#include "data/plan.hpp"
#include "lib/distribute/dataset.hpp"

namespace lockstep {

/// How distribute_dataset shares out.
struct DistributeOptions {
  data::ShardPolicy policy = data::ShardPolicy::automatic;
  data::Rebatch rebatch = data::Rebatch::ceil;
  /// Under DATA, pieces are whole leaves of so many examples: see data::piece_of. 1 is the guide's
  /// rule; 0 means data::automatic_leaf, as in training.
  std::uint64_t leaf = 1;
  /// Pieces that a thread reads ahead; 0: no thread. None: as many as there are replicas in sync in
  /// an input pipeline, which is 1, or what the data set's own last prefetch says.
  std::optional<std::size_t> prefetch = std::nullopt;
};

/// A rank's part of a data set.
struct Share {
  data::PolicyChoice choice = {};
  data::Rebatch rebatch = data::Rebatch::ceil;
  std::uint64_t leaf = 1;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  std::uint64_t batch_size = 0;
  bool drop_remainder = false;
  /// All that is read, in closed form; none where the number of examples is not known, or batches
  /// do not follow from it alone (transformed batches).
  std::optional<data::Plan> plan = std::nullopt;
  bool endless_batches = false;  ///< the same without an end, under DATA

  /// The pass over the data set that this rank reads.
  Pass pass(std::uint64_t epoch) const noexcept {
    const bool by_files = choice.policy == data::ShardPolicy::file;
    return {epoch, by_files ? rank : 0, by_files ? ranks : 1};
  }

  /// Ranks cannot know alone when the others' streams end.
  bool ends_differ() const noexcept;

  /// Examples of every piece, where that is the same at every step on every rank.
  std::optional<std::size_t> fixed_rows() const;
};

/// Examples of a pass, where they are known.
using CountExamples = std::function<std::optional<std::uint64_t>(const Pass&)>;

/// What this rank reads.
///
/// Errors   throws comm::AgreedError (2): data that is not batched; what data::Plan and
///          data::choose_policy refuse; `balanced` with DATA; ranks whose data or options differ.
/// Ranks    collective.
Share agree_on_share(comm::Communicator& comm, const DatasetFacts& facts,
                     const DistributeOptions& options, const CountExamples& count);

/// The most of all ranks' counts where all know theirs (perhaps `endless`), none where one does
/// not. Collective.
std::optional<std::uint64_t> agree_on_longest(comm::Communicator& comm,
                                              std::optional<std::uint64_t> mine);

/// One message a step, where ends differ.
struct StepNews {
  bool has_examples = false;
  bool goes_on = false;
  bool failed = false;
};

/// What is true of any rank. Collective.
StepNews any_rank(comm::Communicator& comm, const StepNews& mine);

}  // namespace lockstep

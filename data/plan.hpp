// The data plan: which rank reads which record at which step, as a pure function of a few numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/permutation.hpp"
#include "data/sharding.hpp"

namespace lockstep::data {
enum class Shuffle { none, global };

/// What a plan is a function of.
struct PlanOptions {
  std::uint64_t records = 0;
  std::uint64_t batch_size = 128;  ///< the global batch
  std::uint64_t ranks = 1;
  std::uint64_t leaf = 0;  ///< examples per leaf; 0: automatic_leaf of each step
  bool drop_remainder = false;
  Shuffle shuffle = Shuffle::none;
  std::uint64_t seed = 22;
  ShardPolicy policy = ShardPolicy::data;  ///< automatic: see choose_policy()
  Rebatch rebatch = Rebatch::ceil;
  std::vector<std::uint64_t> file_records = {};  ///< of each file; empty: not from files
};

/// The records of every rank at every step.
///
/// A pure function of its options: no I/O, no communication, no state. All members are local and
/// take constant or logarithmic time, but for records(), which lists a piece, and where
/// StreamSteps says so. Under DATA and OFF it takes constant memory a rank, under FILE a few
/// numbers a file besides.
///
/// DATA   The epoch's order is cut into global batches, and each batch into pieces of whole leaves,
///        one a rank (`ceil`). Pieces are disjoint and complete (but for a dropped remainder), and
///        the union of a step's pieces does not depend on the number of ranks.
/// FILE   Every rank has a stream of its own, the records of its files, and takes a piece of it a
///        step (StreamSteps). Disjoint and complete too; which records meet in a step depends
///        on the number of ranks.
/// OFF    The same with all records as the stream of every rank, so each is read once by each rank.
///
/// `drop_remainder` drops what is left of the epoch (DATA) or of a rank's stream (FILE, OFF) behind
/// the last whole global batch. Shuffle `global` permutes the epoch's order by (seed, epoch), under
/// FILE each rank's stream by (seed, epoch, rank).
///
/// Rows. A step's examples are gathered in blocks of one size: rank r's begin at row r * block().
/// Leaves are counted over these rows. Under DATA all blocks are full up to the last example, so
/// row i is example i of the global batch. Under FILE and OFF leaves are cut inside each rank's
/// piece: a block is a whole number of leaves, and the rows between a piece's end and its block's
/// end are zero (features and gradients +0).
///
/// Why these rows change no value. They enter a gradient's chains as a <- fma(0, 0, a) and
/// a <- a + 0, which is `a` itself unless a is -0, and its tree as a + 0. A chain begins with +0,
/// and a sum rounded to nearest is -0 only where both terms are, or where a negative one is too
/// small for a float (underflow); there the zero's sign may become +, and a gradient's zero moves
/// no weight, whatever its sign. Losses are never negative, so their sums are exact. And as the
/// plan alone fixes which rows are zero, the sum is one expression, whoever evaluates it.
class Plan {
 public:
  /// Throws ConfigError: batch_size or ranks is 0; what choose_policy() refuses; `balanced` with
  /// DATA, or with fewer examples in a batch than ranks; more steps or examples than 2^63.
  /// Throws std::invalid_argument where files do not add up to the records.
  explicit Plan(const PlanOptions& options);

  /// As given, but for the policy, which is never automatic.
  const PlanOptions& options() const noexcept { return options_; }

  /// Steps of one epoch; 0 where a dropped remainder leaves none. Each has an example.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of step `step` (from 0) over all ranks: what its gradient is divided by.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// Examples of one epoch over all ranks, and over `rank`'s steps.
  std::uint64_t examples_per_epoch() const noexcept;
  std::uint64_t examples_of(std::uint64_t rank) const noexcept;

  /// Steps at which `rank` has an example.
  std::uint64_t filled_steps(std::uint64_t rank) const noexcept;

  /// Examples per leaf in `step`: the leaf that was asked for, under FILE and OFF at most the
  /// step's largest piece.
  std::uint64_t leaf(std::uint64_t step) const noexcept;

  /// Examples of `rank` at `step`.
  std::uint64_t piece_size(std::uint64_t step, std::uint64_t rank) const noexcept {
    return positions(step, rank).size();
  }

  /// Positions that `rank` reads at `step`: in the epoch's order (DATA), or in its stream. If there
  /// are none, its begin is unspecified.
  Range positions(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// The records of `rank` at `step` of `epoch` (from 0), in order, into `ids` (resized).
  /// Throws ConfigError for a rank that there is not.
  void records(std::uint64_t epoch, std::uint64_t step, std::uint64_t rank,
               std::vector<std::uint64_t>& ids) const;

  /// The record that `rank` reads at `position` (as positions() counts) in `epoch`.
  std::uint64_t record(std::uint64_t epoch, std::uint64_t rank,
                       std::uint64_t position) const noexcept;

  /// Rows of a rank's block at `step`: the largest piece, under FILE and OFF in whole leaves.
  std::uint64_t block(std::uint64_t step) const noexcept;

  /// Rows that hold the piece of `rank`: from rank * block(step) on.
  Range rows(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Rows, from 0 on, over which the gradient is summed: the examples (DATA), or all blocks.
  std::uint64_t summed_rows(std::uint64_t step) const noexcept;

  /// The most examples that any rank holds in any step: what buffers must fit.
  std::uint64_t largest_piece() const noexcept;

  /// At least the rows of all blocks in any step: what buffers must fit that gather them.
  std::uint64_t largest_gathered() const noexcept;

  /// Ranks without an example in the first step.
  std::uint64_t idle_ranks() const noexcept;

  /// Hash of all options that shape the plan: equal where all of them are.
  std::uint64_t digest() const;

 private:
  Permutation order(std::uint64_t epoch, std::uint64_t rank) const noexcept;
  std::uint64_t record_in(const Permutation& order, std::uint64_t rank,
                          std::uint64_t position) const noexcept;
  bool by_streams() const noexcept { return streams_.has_value(); }
  std::uint64_t whole_batches(std::uint64_t records) const noexcept;
  void make_streams();

  PlanOptions options_;
  std::uint64_t steps_ = 0;
  std::optional<FileStreams> files_;    // FILE
  std::optional<StreamSteps> streams_;  // FILE and OFF
};

/// How often the records of the data set are read in one epoch.
///
/// Disjoint means that none is read twice (most <= 1), complete that none is left out (least >= 1).
struct Multiplicity {
  std::uint64_t least = 0;    ///< 0 where records are omitted
  std::uint64_t most = 0;     ///< 1 under DATA and FILE, the number of ranks under OFF
  std::uint64_t omitted = 0;  ///< records that nobody reads

  bool disjoint() const noexcept { return most <= 1; }
  bool complete() const noexcept { return omitted == 0; }
  bool operator==(const Multiplicity&) const = default;
};

/// The sums of one epoch, in closed form: over ranks, never over steps.
struct PlanFacts {
  std::uint64_t steps = 0;
  std::uint64_t examples = 0;                   ///< reads, over all ranks
  std::vector<std::uint64_t> records_per_rank;  ///< reads of each rank
  std::uint64_t empty_batches = 0;              ///< pairs of step and rank without an example
  /// Of the examples that would fit if every rank held the largest piece in every step, the share
  /// that is missing: 1 - examples / (steps * ranks * largest piece).
  double idle_share = 0;
  Multiplicity multiplicity;
};

/// Time and memory in proportion to the ranks.
PlanFacts facts_of(const Plan& plan);

/// A check of multiplicity and sums against the ids themselves.
struct PlanProof {
  bool enumerated = false;  ///< by listing every id of the epoch; else by the closed form alone
  std::uint64_t reads = 0;  ///< ids listed, or counted by the closed form
  std::string text;         ///< one sentence with the numbers
};

/// The most reads, and pairs of step and rank, that prove() lists.
inline constexpr std::uint64_t most_enumerated = 1 << 21;

/// Lists the ids of `epoch` where the plan is small enough, and counts how often each occurs.
///
/// Errors   throws std::logic_error where listing and closed form differ: a fault of ours.
PlanProof prove(const Plan& plan, const PlanFacts& facts, std::uint64_t epoch = 0);

}  // namespace lockstep::data

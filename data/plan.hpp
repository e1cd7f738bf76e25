// The data plan: a pure function from (epoch, step, rank) to the records that the rank reads, made
// of a shuffled order and of the rules in sharding.hpp; and the digest that verifies that all ranks
// together have read every record once.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/data/sharding.hpp"

namespace lockstep::data {
// A shuffled order of [0, n) in constant memory.

/// A keyed bijection of [0, n): position in an epoch -> record.
///
/// Random access: any rank evaluates any position of any epoch directly, for any n.
/// Source   a balanced Feistel network of four Philox rounds over the least even number of bits
///          that holds n, with cycle walking (Black & Rogaway 2002, "Ciphers with arbitrary finite
///          domains", methods 2 and 3).
class Permutation {
 public:
  /// The order of epoch `epoch` (from 0) under `seed`. n may be 0.
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept;

  /// The record at `position`, which must be below n (asserted).
  std::uint64_t operator()(std::uint64_t position) const noexcept;

 private:
  std::uint64_t once(std::uint64_t value) const noexcept;

  std::uint64_t n_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  int half_bits_ = 1;
};

/// The seed of a worker's order under FILE. For worker 0 it is `seed`, so a single worker reads in
/// the same order as under DATA.
std::uint64_t worker_seed(std::uint64_t seed, std::uint64_t worker) noexcept;

// The plan.

enum class Shuffle { none, global };

/// The inputs of a plan.
struct PlanOptions {
  std::uint64_t records = 0;
  std::uint64_t batch_size = 128;  ///< the global batch
  std::uint64_t ranks = 1;
  std::uint64_t leaf = 0;                 ///< examples per leaf; 0: automatic_leaf of each step
  std::uint64_t max_leaf = float32_leaf;  ///< `most` of automatic_leaf; for bf16: bf16_leaf
  bool drop_remainder = false;
  Shuffle shuffle = Shuffle::none;
  std::uint64_t seed = 22;
  ShardPolicy policy = ShardPolicy::data;  ///< automatic: see choose_policy()
  Rebatch rebatch = Rebatch::ceil;
  std::vector<std::uint64_t> file_records = {};  ///< records of each file; empty: not from files
  bool balance = false;                          ///< ranks may get unequal shares: set_shares()
};

/// The records of every rank at every step.
///
/// A pure function of its options: no I/O, no communication, no state. All members are local and
/// take constant or logarithmic time, except records(), which is linear in the piece, and
/// largest_leaf() and those of StreamSteps, with a documented cost. Memory per rank is constant
/// under DATA; OFF and `balance` add a number or two per rank, FILE a few per file.
///
/// DATA   The epoch's order is split into global batches, and each batch into one piece of whole
///        leaves per rank (`ceil`). Pieces are disjoint and complete (except a dropped remainder),
///        and the union of a step's pieces does not depend on the number of ranks.
/// FILE   Each rank has its own stream, the records of its files, and reads one piece of it per
///        step (StreamSteps). Also disjoint and complete, but the set of records in a step depends
///        on the number of ranks.
/// OFF    Like FILE, but every rank's stream is all records: each rank reads each record once.
///
/// `drop_remainder` drops the records of the epoch (DATA) or of a rank's stream (FILE, OFF) after
/// the last full global batch. With `balance` the caller may change how many leaves of a batch each
/// rank computes; records, leaves and batches stay as they are. Shuffle `global` permutes the
/// epoch's order by (seed, epoch), under FILE each rank's stream by (seed, epoch, rank).
///
/// Rows. Leaves are counted over the rows of a step. Under DATA row i is example i of the global
/// batch. Under FILE and OFF leaves are cut within each rank's piece: rank r has block() rows, a
/// whole number of leaves, from row r * block(), and the rows between the end of its piece and the
/// end of its block are zero (features and gradients +0).
///
/// A step's examples are gathered in blocks of block() rows, of which the piece of a rank fills the
/// first ones. Under DATA without `balance` all blocks are full up to the last example, so what is
/// gathered is in the order of rows.
///
/// Zero rows do not change results. They enter a gradient's chains as a <- fma(0, 0, a) and
/// a <- a + 0, which equal `a` unless a is -0, and the summation tree as a + 0. A chain begins with
/// +0, and a sum rounded to nearest is -0 only if both terms are -0, or if a negative result
/// underflows; then the sign of the zero may become +, which does not change the weight update.
/// A row without an example adds a loss of +0, which changes no bit of a sum. The plan alone
/// determines which rows are zero, so every rank evaluates the same expression.
class Plan {
 public:
  /// Throws ConfigError if batch_size or ranks is 0, if choose_policy() throws, for `balanced` with
  /// DATA or with a batch smaller than the ranks, for `balance` with FILE or OFF, and for more
  /// steps or examples than 2^63. Throws std::invalid_argument if the records of the files do not
  /// add up to `records`.
  explicit Plan(const PlanOptions& options);

  // Defaulted in the library: every program copies plans, and need not compile how.
  Plan(const Plan& other);
  Plan(Plan&& other) noexcept;
  Plan& operator=(const Plan& other);
  Plan& operator=(Plan&& other) noexcept;
  ~Plan();

  /// The options, with the automatic policy resolved.
  const PlanOptions& options() const noexcept { return options_; }

  /// With `balance`: the leaves of the first step that each rank computes, at first as equal as
  /// possible. Other steps are divided in the same proportion. Otherwise empty.
  const std::vector<std::uint64_t>& shares() const noexcept { return shares_; }

  /// The most leaves of one rank: twice an equal share. Buffers are large enough for it.
  std::uint64_t largest_share() const noexcept;

  /// Changes shares(). Throws std::invalid_argument without `balance`, and unless there is one
  /// share for each rank, none above largest_share(), that add up to the leaves of the first step.
  void set_shares(std::vector<std::uint64_t> shares);

  /// Steps per epoch; 0 if drop_remainder drops everything. Each step has at least one example.
  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of step `step` (from 0) over all ranks: the divisor of its gradient.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// Examples of one epoch over all ranks, and over `rank`'s steps.
  std::uint64_t examples_per_epoch() const noexcept;
  std::uint64_t examples_of(std::uint64_t rank) const noexcept;

  /// Steps at which `rank` has an example.
  std::uint64_t filled_steps(std::uint64_t rank) const noexcept;

  /// Examples per leaf in `step`: the requested leaf, but no more than the step's examples, under
  /// FILE and OFF than its largest piece.
  std::uint64_t leaf(std::uint64_t step) const noexcept;

  /// The most examples per leaf of any step. With `balanced` the time is at most quadratic in the
  /// number of ranks.
  std::uint64_t largest_leaf() const noexcept;

  /// Examples of `rank` at `step`.
  std::uint64_t piece_size(std::uint64_t step, std::uint64_t rank) const noexcept {
    return positions(step, rank).size();
  }

  /// Positions that `rank` reads at `step`, in the epoch's order (DATA) or in its stream. If empty,
  /// begin is unspecified.
  Range positions(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Writes the records of `rank` at `step` of `epoch` (from 0), in order, to `ids` (resized).
  /// Throws ConfigError if `rank` is not in the plan, or `step` not below steps().
  void records(std::uint64_t epoch, std::uint64_t step, std::uint64_t rank,
               std::vector<std::uint64_t>& ids) const;

  /// The record that `rank` reads at `position` (see positions()) in `epoch`.
  std::uint64_t record(std::uint64_t epoch, std::uint64_t rank,
                       std::uint64_t position) const noexcept;

  /// Rows of a rank's block at `step`: at least the largest piece, under FILE and OFF whole leaves.
  std::uint64_t block(std::uint64_t step) const noexcept;

  /// Rows that hold the piece of `rank`.
  Range rows(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// The gradient is summed over rows [0, summed_rows): the examples (DATA) or all blocks.
  std::uint64_t summed_rows(std::uint64_t step) const noexcept;

  /// The most examples of any rank in any step: the minimum buffer size.
  std::uint64_t largest_piece() const noexcept;

  /// At least the rows of all blocks in any step: the size of buffers that gather them.
  std::uint64_t largest_gathered() const noexcept;

  /// Ranks without an example in the first step.
  std::uint64_t idle_ranks() const noexcept;

  /// Hash of all options that determine the plan: equal if all of them are equal.
  std::uint64_t digest() const;

 private:
  Permutation order(std::uint64_t epoch, std::uint64_t rank) const noexcept;
  std::uint64_t record_in(const Permutation& order, std::uint64_t rank,
                          std::uint64_t position) const noexcept;
  bool by_streams() const noexcept { return streams_.has_value(); }
  std::uint64_t whole_batches(std::uint64_t records) const noexcept;
  void make_streams();
  void make_shares();
  std::uint64_t leaves(std::uint64_t step) const noexcept;

  PlanOptions options_;
  std::uint64_t steps_ = 0;
  std::optional<FileStreams> files_;    // FILE
  std::optional<StreamSteps> streams_;  // FILE and OFF
  std::vector<std::uint64_t> shares_;   // with `balance`
  std::vector<std::uint64_t> before_;   // the sum of the shares of the ranks before
};

/// How often the records of the data set are read in one epoch.
///
/// Disjoint: no record is read twice (max <= 1). Complete: no record is omitted.
struct Multiplicity {
  std::uint64_t min = 0;      ///< 0 if records are omitted
  std::uint64_t max = 0;      ///< 1 under DATA and FILE, the number of ranks under OFF
  std::uint64_t omitted = 0;  ///< records that no rank reads

  bool disjoint() const noexcept { return max <= 1; }
  bool complete() const noexcept { return omitted == 0; }
  bool operator==(const Multiplicity&) const = default;
};

/// Totals of one epoch, by closed formulas that iterate over ranks, not steps.
struct PlanFacts {
  std::uint64_t examples = 0;                   ///< reads, over all ranks
  std::vector<std::uint64_t> records_per_rank;  ///< reads of each rank
  std::uint64_t empty_batches = 0;              ///< pairs of step and rank without an example
  /// The unused share of the capacity if every rank had the largest piece in every step:
  /// 1 - examples / (steps * ranks * largest piece).
  double idle_share = 0;
  Multiplicity multiplicity;
};

/// Time and memory are proportional to the number of ranks.
PlanFacts facts_of(const Plan& plan);

/// The result of checking multiplicity and totals against the ids.
struct PlanProof {
  bool enumerated = false;  ///< every id of the epoch was listed; else only the formula was used
  std::string text;         ///< one sentence with the numbers
};

/// The most reads, and (step, rank) pairs, that prove() lists.
inline constexpr std::uint64_t max_enumerated = 1 << 21;

/// Lists the ids of `epoch`, if the plan is small enough, and counts how often each occurs.
///
/// Errors   throws std::logic_error if enumeration disagrees with the formula: an internal error.
PlanProof prove(const Plan& plan, const PlanFacts& facts, std::uint64_t epoch = 0);

/// The number of ids added and the sum of a 64-bit mix of each. The sum is independent of order, so
/// the digests of all ranks add up to the digest of all ids.
///
/// Proves   the mix is a bijection, so a single missing, duplicated or replaced id always changes
///          the sum; any other non-adversarial set of ids passes with probability 2^-64.
/// Limits   it does not identify the wrong id; it is not collision-resistant against deliberate
///          construction; it covers ids, not the records read under them.
class IdsDigest {
 public:
  void add(std::uint64_t id) noexcept {
    ++parts_[0];
    parts_[1] += mixed(id);
  }
  void add(std::span<const std::uint64_t> ids) noexcept {
    for (const std::uint64_t id : ids) add(id);
  }

  std::uint64_t count() const noexcept { return parts_[0]; }

  /// Count and sum; ranks are combined by adding these modulo 2^64.
  std::span<std::uint64_t, 2> parts() noexcept { return parts_; }

  /// A hash of count and sum.
  std::uint64_t value() const noexcept { return mixed(parts_[1] + mixed(parts_[0])); }

  bool operator==(const IdsDigest&) const = default;

 private:
  /// Finaliser of SplitMix64, a permutation of 64-bit numbers.
  /// Source   Steele et al. 2014, "Fast splittable pseudorandom number generators", OOPSLA.
  static constexpr std::uint64_t mixed(std::uint64_t id) noexcept {
    id += 0x9E3779B97F4A7C15U;
    id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9U;
    id = (id ^ (id >> 27)) * 0x94D049BB133111EBU;
    return id ^ (id >> 31);
  }

  std::array<std::uint64_t, 2> parts_{};
};

/// The digest of 0, 1, ..., records - 1, each once. Takes about 1 ns per record.
inline IdsDigest digest_of_all(std::uint64_t records) noexcept {
  IdsDigest digest;
  for (std::uint64_t id = 0; id < records; ++id) digest.add(id);
  return digest;
}

}  // namespace lockstep::data

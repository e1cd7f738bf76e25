// The rules that deal records to ranks: sharding policies, pieces of a batch, the steps of ranks
// with streams of their own, and the files of each stream.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/range.hpp"

namespace lockstep::data {

// clang-format off
/// How records are distributed over workers. A worker is a rank.
enum class ShardPolicy {
  automatic,  ///< FILE if there are enough files for all workers; see choose_policy()
  file,       ///< whole files, round-robin: worker w of N reads files w, w + N, ...
  data,       ///< each worker reads a piece of every global batch
  off,        ///< every worker reads all records
};

/// How a worker's batch is split into pieces.
enum class Rebatch { ceil, balanced };
// clang-format on

/// Names in settings and reports: "auto", "file", "data", "off"; "ceil", "balanced".
const char* name_of(ShardPolicy policy) noexcept;
const char* name_of(Rebatch rule) noexcept;

/// The inverse of name_of. Throws ConfigError for other names.
ShardPolicy policy_named(std::string_view name);
Rebatch rebatch_named(std::string_view name);

/// The policy of a plan, with texts for reports.
struct PolicyChoice {
  ShardPolicy policy = ShardPolicy::data;  ///< never automatic
  std::string reason;                      ///< its meaning for this data: a clause for reports
  std::string warning;                     ///< to be printed once; empty: none
};

/// Resolves the policy `asked` for data in `files` files (0: the data does not come from files).
///
/// AUTO means FILE if there are at least as many files as workers, and DATA, with a warning, if the
/// data does not come from files. OFF warns. With one worker, sharding has no effect: no policy
/// throws or warns.
///
/// Errors   throws ConfigError for no workers; for AUTO and FILE with fewer files than workers;
///          for FILE if the data does not come from files.
PolicyChoice choose_policy(ShardPolicy asked, std::uint64_t files, std::uint64_t workers);

/// Throws ConfigError unless 0 <= worker < workers.
void require_worker(std::uint64_t worker, std::uint64_t workers);

/// The most examples of an automatic leaf, by the precision of the products: a chunk of a chain in
/// bf16, and a tile of AMX, has 32 terms.
constexpr std::uint64_t float32_leaf = 16;
constexpr std::uint64_t bf16_leaf = 32;

/// Examples per leaf for `leaf=auto` in a step of `examples`: the greatest power of two that is at
/// most examples / 8 and at most `most`; at least 1.
std::uint64_t automatic_leaf(std::uint64_t examples, std::uint64_t most) noexcept;

/// Piece `index` when `examples`, in leaves of `leaf`, are split into `pieces` contiguous runs of
/// ceil(leaves / pieces) leaves each; trailing pieces have fewer or none. For leaf 1 it is the
/// guide's rule `ceil`. All arguments but `examples` and `index` are at least 1.
Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t index,
               std::uint64_t pieces) noexcept;

/// The piece of the shares [shares.begin, shares.end) of `all`, when `examples` are split into
/// whole leaves of `leaf` in proportion to shares. Consecutive shares give consecutive pieces.
/// `all` must be below 2^32.
Range part_of(std::uint64_t examples, std::uint64_t leaf, Range shares, std::uint64_t all) noexcept;

/// The number of pieces with an example; they are the first ones.
std::uint64_t filled_pieces(std::uint64_t examples, std::uint64_t leaf,
                            std::uint64_t pieces) noexcept;

/// Rule `balanced`: splits each worker's own stream into pieces, one per step.
///
/// With N pieces per batch of B, sizes are floor(B / N) or one more, and any N consecutive pieces
/// sum to B. Worker 0 begins with the larger sizes; worker w begins at position
/// w * replicas_per_worker of this sequence of sizes, so the pieces of one step also sum to B. A
/// piece may span the boundary of two batches.
/// Source   TensorFlow, input_lib.py, batch_sizes_for_worker.
class BalancedPieces {
 public:
  /// Throws ConfigError if an argument is 0.
  BalancedPieces(std::uint64_t batch, std::uint64_t workers, std::uint64_t replicas_per_worker = 1);

  /// Pieces per batch: workers times replicas.
  std::uint64_t pieces() const noexcept { return pieces_; }

  /// The range of piece `index` (from 0, unbounded) of `worker` in that worker's stream.
  Range piece(std::uint64_t worker, std::uint64_t index) const noexcept;

  /// The first pieces() sizes of `worker`. Throws ConfigError if `worker` is out of range.
  std::vector<std::uint64_t> sizes(std::uint64_t worker) const;

  /// The number of pieces in a stream of `examples`, counting a partial last one. Requires
  /// batch >= pieces(), so that no piece is empty.
  std::uint64_t filled(std::uint64_t worker, std::uint64_t examples) const noexcept;

 private:
  std::uint64_t before(std::uint64_t index) const noexcept;

  std::uint64_t batch_;
  std::uint64_t workers_;
  std::uint64_t replicas_;
  std::uint64_t pieces_;
};

// The steps of an epoch in which every rank reads its own stream (FILE and OFF).

/// Every rank splits its stream into pieces and reads one per step until all streams are read.
///
/// `ceil`: the stream is split into global batches, and each batch into as many pieces as there are
/// ranks, so a round of that many steps reads one batch of every rank. `balanced`: see
/// BalancedPieces. Steps at which no rank has an example are omitted.
///
/// Stores the lengths of the streams. Queries take logarithmic time, except examples() and
/// largest_piece() in a round in which some streams end: these iterate over the distinct lengths of
/// those streams or, under `balanced`, over all ranks.
class StreamSteps {
 public:
  /// `lengths`: examples of each rank's stream.
  /// Errors   throws ConfigError for a batch of 0, no ranks, more steps than 2^63, or, under
  ///          `balanced`, a batch smaller than the number of ranks.
  StreamSteps(std::vector<std::uint64_t> lengths, std::uint64_t batch_size, Rebatch rule);

  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of each rank's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// The range of the piece of `rank` at `step` in its stream. If empty, begin is unspecified.
  Range piece(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Examples of `step` over all ranks.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// The most examples of one rank at `step`, and at any step.
  std::uint64_t largest_piece(std::uint64_t step) const noexcept;
  std::uint64_t largest_piece() const noexcept;

  /// Steps at which `rank` has an example.
  std::uint64_t filled_steps(std::uint64_t rank) const noexcept;

 private:
  /// Step `index` of a round; a round has one step per rank before empty steps are omitted.
  struct Place {
    std::uint64_t round = 0;
    std::uint64_t index = 0;
  };
  /// Ranks whose streams have equal length.
  struct Group {
    std::uint64_t length = 0;
    std::uint64_t ranks = 0;
    std::uint64_t not_shorter = 0;  ///< ranks with streams of this length or longer
  };
  /// A round (of rule `ceil`) whose number of steps differs from that of a full batch.
  struct OddRound {
    std::uint64_t round = 0;
    std::uint64_t first_step = 0;
    std::uint64_t steps = 0;
  };

  std::uint64_t ranks() const noexcept { return lengths_.size(); }
  void make_groups();
  void find_odd_rounds();
  Place place(std::uint64_t step) const noexcept;
  bool full_everywhere(std::uint64_t step) const noexcept;

  /// Calls visit(size, ranks) for the pieces at `step`: each size with its number of ranks.
  template <class Visit>
  void for_each_size(std::uint64_t step, Visit visit) const;

  std::vector<std::uint64_t> lengths_;
  std::uint64_t batch_size_;
  Rebatch rule_;
  BalancedPieces balanced_;
  std::uint64_t steps_ = 0;
  std::uint64_t full_steps_ = 0;      // steps of a round with full batches only
  std::vector<Group> groups_;         // by increasing length
  std::vector<OddRound> odd_rounds_;  // by round
};

// Streams of policy FILE: files assigned to workers round-robin.

/// The stream of worker w of N: the records of files w, w + N, w + 2N, ... in that order.
///
/// Stores two prefix sums per file; finds a record by bisection.
class FileStreams {
 public:
  /// `file_records`: records of each file, in global order.
  FileStreams(std::span<const std::uint64_t> file_records, std::uint64_t workers);

  /// Records of each worker's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// The record (in global order) at `position`, below the length, of the stream of `worker`.
  std::uint64_t record(std::uint64_t worker, std::uint64_t position) const noexcept;

 private:
  std::uint64_t workers_;
  std::vector<std::uint64_t> first_;   // first record of each file
  std::vector<std::uint64_t> before_;  // records before each file in its worker's stream
  std::vector<std::uint64_t> lengths_;
};

}  // namespace lockstep::data

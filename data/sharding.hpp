// Sharding policies and how batches are cut into pieces: the arithmetic that Plan is made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/range.hpp"

namespace lockstep::data {
// clang-format off
/// How records are dealt to workers. A worker is a rank.
enum class ShardPolicy {
  automatic,  ///< FILE where there are files for all workers; see choose_policy()
  file,       ///< whole files, dealt round-robin: worker w of N reads files w, w + N, ...
  data,       ///< a piece of every global batch for each worker
  off,        ///< every worker reads all records
};

/// How a worker's batch is cut into pieces.
enum class Rebatch { ceil, balanced };
// clang-format on

/// "auto", "file", "data", "off"; "ceil", "balanced": what settings and reports say.
const char* name_of(ShardPolicy policy) noexcept;
const char* name_of(Rebatch rule) noexcept;

/// Their inverse. Throws ConfigError for other words.
ShardPolicy policy_named(std::string_view name);
Rebatch rebatch_named(std::string_view name);

/// The policy that a plan follows, and what to tell about it.
struct PolicyChoice {
  ShardPolicy policy = ShardPolicy::data;  ///< never automatic
  std::string reason;                      ///< what it means here, in a sentence's words
  std::string warning;                     ///< to be shown once; empty: none
};

/// What `asked` means for data in `files` files (0: it does not come from files).
///
/// AUTO means FILE where there are at least as many files as workers, and DATA, with a warning,
/// where the data does not come from files. OFF warns. With one worker sharding does nothing:
/// nothing is refused and nothing warned of.
///
/// Errors   throws ConfigError for no workers; for AUTO and FILE with fewer files than workers;
///          for FILE where the data does not come from files.
PolicyChoice choose_policy(ShardPolicy asked, std::uint64_t files, std::uint64_t workers);

/// Throws ConfigError unless 0 <= worker < workers.
void require_worker(std::uint64_t worker, std::uint64_t workers);

/// a / b, rounded up. b at least 1.
std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) noexcept;

/// Examples per leaf that `leaf=auto` means for a step of `examples`: the greatest power of two
/// that is at most an eighth of them, between 1 and 16.
std::uint64_t automatic_leaf(std::uint64_t examples) noexcept;

/// Piece `index` when `examples` are cut in leaves of `leaf` into `pieces`: contiguous runs of
/// ceil(leaves / pieces) leaves each, trailing ones fewer or none. For leaf 1 it is the guide's
/// rule `ceil`. All arguments at least 1, but for `examples` and `index`.
Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t index,
               std::uint64_t pieces) noexcept;

/// How many of them hold an example: the first so many do.
std::uint64_t filled_pieces(std::uint64_t examples, std::uint64_t leaf,
                            std::uint64_t pieces) noexcept;

/// Rule `balanced`: how each worker cuts a stream of its own into pieces, one a step.
///
/// With N pieces a batch of B, the sizes are floor(B / N) and one more, B in any N that follow each
/// other. Worker 0 begins with the greater ones, and every other worker begins where the one before
/// stood a step of all its replicas later; so the pieces of one step add up to B as well. A piece
/// may reach across the ends of batches.
/// Source   TensorFlow, input_lib.py, batch_sizes_for_worker.
class BalancedPieces {
 public:
  /// Throws ConfigError where an argument is 0.
  BalancedPieces(std::uint64_t batch, std::uint64_t workers, std::uint64_t replicas_per_worker = 1);

  /// Pieces of one batch: workers times replicas.
  std::uint64_t pieces() const noexcept { return pieces_; }

  /// Where the piece `index` (from 0, without end) of `worker` lies in that worker's stream.
  Range piece(std::uint64_t worker, std::uint64_t index) const noexcept;

  /// The first pieces() sizes of `worker`. Throws ConfigError for a worker that there is not.
  std::vector<std::uint64_t> sizes(std::uint64_t worker) const;

  /// How many pieces a stream of `examples` fills, the last one perhaps in part. For batch >=
  /// pieces(), where none is empty.
  std::uint64_t filled(std::uint64_t worker, std::uint64_t examples) const noexcept;

 private:
  std::uint64_t before(std::uint64_t index) const noexcept;

  std::uint64_t batch_;
  std::uint64_t workers_;
  std::uint64_t replicas_;
  std::uint64_t pieces_;
};

// The steps of an epoch in which every rank works through a stream of its own (FILE and OFF).

/// Every rank cuts its stream into pieces and takes one a step, until no rank has any left.
///
/// `ceil`: the stream is batched by the global batch, and each batch cut into as many pieces as
/// there are ranks; so a round of that many steps uses up one batch of every rank. `balanced`: see
/// BalancedPieces. A step at which no rank would have an example is no step: it is left out.
///
/// Holds the streams' lengths. Queries take logarithmic time, but for examples() and
/// largest_piece() in a round that is the last of some ranks: those look at these ranks, once for
/// each length, or, under `balanced`, at all ranks.
class StreamSteps {
 public:
  /// `lengths`: examples of each rank's stream.
  /// Errors   throws ConfigError for a batch of 0, no ranks, a batch smaller than the ranks under
  ///          `balanced`, or more steps than 2^63.
  StreamSteps(std::vector<std::uint64_t> lengths, std::uint64_t batch_size, Rebatch rule);

  std::uint64_t steps() const noexcept { return steps_; }

  /// Examples of each rank's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// Where the piece of `rank` at `step` lies in its stream. If it is empty, its begin is
  /// unspecified.
  Range piece(std::uint64_t step, std::uint64_t rank) const noexcept;

  /// Examples of `step` over all ranks.
  std::uint64_t examples(std::uint64_t step) const noexcept;

  /// The most examples that one rank holds at `step`, and at any step.
  std::uint64_t largest_piece(std::uint64_t step) const noexcept;
  std::uint64_t largest_piece() const noexcept;

  /// Steps at which `rank` has an example.
  std::uint64_t filled_steps(std::uint64_t rank) const noexcept;

 private:
  /// Step `index` of a round of as many steps as there are ranks, before any is left out.
  struct Place {
    std::uint64_t round = 0;
    std::uint64_t index = 0;
  };
  /// Ranks whose streams are equally long.
  struct Group {
    std::uint64_t length = 0;
    std::uint64_t ranks = 0;
    std::uint64_t not_shorter = 0;  ///< ranks of this group and of those with longer streams
  };
  /// A round (of rule `ceil`) that does not have the steps of a full batch's pieces.
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

  /// Calls visit(size, ranks) for the pieces at `step`: every size with a number of ranks.
  template <class Visit>
  void for_each_size(std::uint64_t step, Visit visit) const;

  std::vector<std::uint64_t> lengths_;
  std::uint64_t batch_size_;
  Rebatch rule_;
  BalancedPieces balanced_;
  std::uint64_t steps_ = 0;
  std::uint64_t full_steps_ = 0;      // of a round in which full batches alone are cut
  std::vector<Group> groups_;         // from the shortest to the longest
  std::vector<OddRound> odd_rounds_;  // in their order
};

// Policy FILE's streams: the files of a data set dealt round-robin to workers.

/// Worker w of N reads the records of files w, w + N, w + 2N, ... in that order: its stream.
///
/// Two sums a file are kept; a record is found by bisection.
class FileStreams {
 public:
  /// `file_records`: records of each file, in global order.
  FileStreams(std::span<const std::uint64_t> file_records, std::uint64_t workers);

  /// Records of each worker's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// The record (in global order) at `position` of the stream of `worker`; below its length.
  std::uint64_t record(std::uint64_t worker, std::uint64_t position) const noexcept;

 private:
  std::uint64_t workers_;
  std::vector<std::uint64_t> first_;   // of each file: its first record
  std::vector<std::uint64_t> before_;  // of each file: records before it in its worker's stream
  std::vector<std::uint64_t> lengths_;
};

}  // namespace lockstep::data

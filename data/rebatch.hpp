// How a batch is cut into pieces, one for each of N workers or steps: arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// A run of consecutive positions.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const noexcept { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// a / b, rounded up. b at least 1.
std::uint64_t ceil_divide(std::uint64_t a, std::uint64_t b) noexcept;

/// Examples per leaf that `--leaf auto` means for a step of `examples`: the greatest power of two
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

}  // namespace lockstep::data

// One rank's batches, read from a source as the plan says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "data/plan.hpp"
#include "data/source.hpp"
#include "data/transform.hpp"

namespace lockstep::data {

/// One rank's piece of one step's examples. Views into the reader, valid until its next read.
struct Batch {
  Range piece;                           ///< its rows among those of all ranks: [begin, end)
  std::span<const std::int32_t> labels;  ///< [piece.size()]
  std::span<const std::uint64_t> ids;    ///< [piece.size()] records in the data set
  std::uint64_t global_examples = 0;     ///< of this step over all ranks
  std::uint64_t leaf = 1;                ///< examples per leaf in this step
  std::uint64_t block = 0;               ///< rows of each rank: its own begin at rank * block
  std::uint64_t summed_rows = 0;         ///< rows, from 0 on, over which gradients are summed
  const Plan* plan = nullptr;            ///< the reader's
  std::uint64_t step = 0;                ///< of the epoch, from 0

  /// Where the examples of `rank` stand among the rows.
  Range rows_of(std::uint64_t rank) const noexcept { return plan->rows(step, rank); }

  /// The rows behind the piece that are summed over and hold no example: see Plan.
  Range gap() const noexcept {
    return {piece.end, std::max(piece.end, std::min(piece.begin + block, summed_rows))};
  }
};

/// Reads the batches of one rank. Local; one thread.
class BatchReader {
 public:
  /// `source` must outlive the reader and hold the plan's number of records; so must `transform`,
  /// which changes the features, unless it is null.
  /// Throws ConfigError for a rank that the plan does not have.
  BatchReader(Source& source, const Plan& plan, int rank, Transform* transform = nullptr);

  /// What features are divided by: Source::divisor().
  float divisor() const noexcept { return source_.divisor(); }

  /// Whether read_bytes() may be called: the source's features are bytes, and nothing changes them.
  bool gives_bytes() const noexcept {
    return source_.element() == Element::byte && transform_ == nullptr;
  }

  /// Features per record.
  std::size_t features() const noexcept { return source_.features(); }

  const Plan& plan() const noexcept { return plan_; }

  /// The rows of this rank's piece at `step`.
  Range piece(std::uint64_t step) const noexcept { return plan_.rows(step, rank_); }

  /// Reads the piece at `step` of `epoch` (both from 0). Its features go to `x`, which holds
  /// piece(step).size() rows of features. Throws what Source::read throws.
  Batch read(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

  /// As read(), with the features as they are stored: see Source::read_bytes. Throws
  /// std::logic_error unless gives_bytes().
  Batch read_bytes(std::uint64_t epoch, std::uint64_t step, std::span<std::uint8_t> x);

 private:
  /// The piece's ids go to ids_; returns where its labels go.
  std::span<std::int32_t> look_up(std::uint64_t epoch, std::uint64_t step);

  Batch batch_at(std::uint64_t step) const noexcept;

  Source& source_;
  Transform* transform_;
  Plan plan_;
  std::uint64_t rank_;
  std::vector<std::uint64_t> ids_;
  std::vector<std::int32_t> labels_;
};

}  // namespace lockstep::data

// One rank's batches, read from a source as the plan says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/plan.hpp"
#include "data/source.hpp"

namespace lockstep::data {

/// One rank's piece of one global batch. Views into the reader, valid until its next read.
struct Batch {
  Range piece;                           ///< of the global batch: examples [begin, end)
  std::span<const std::int32_t> labels;  ///< [piece.size()]
  std::span<const std::uint64_t> ids;    ///< [piece.size()] records in the data set
  std::uint64_t global_examples = 0;     ///< of this step over all ranks
  std::uint64_t leaf = 1;                ///< examples per leaf in this step
  std::uint64_t block = 0;               ///< examples of the first rank's piece, the largest
};

/// Reads the batches of one rank. Local; one thread.
class BatchReader {
 public:
  /// `source` must outlive the reader and hold the plan's number of records.
  BatchReader(Source& source, const Plan& plan, int rank);

  const Plan& plan() const noexcept { return plan_; }

  /// This rank's piece of the global batch at `step`.
  Range piece(std::uint64_t step) const noexcept { return plan_.piece(step, rank_); }

  /// Reads the piece at `step` of `epoch` (both from 0). Its features go to `x`, which holds
  /// piece(step).size() rows of features. Throws what Source::read throws.
  Batch read(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

 private:
  Source& source_;
  Plan plan_;
  std::uint64_t rank_;
  std::vector<std::uint64_t> ids_;
  std::vector<std::int32_t> labels_;
};

}  // namespace lockstep::data

// One rank's batches, read from a source as the plan says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/plan.hpp"
#include "data/source.hpp"
#include "lib/base/aligned.hpp"

namespace lockstep::data {

/// One rank's piece of one global batch; views into the reader, valid until its next read.
///
/// B examples (maybe 0), D features each.
struct Batch {
  std::span<const float> x;              ///< [B, D] row-major
  std::span<const std::int32_t> labels;  ///< [B]
  std::span<const std::uint64_t> ids;    ///< [B] records in the data set
  std::uint64_t global_examples = 0;     ///< of this step over all ranks
};

/// Reads the batches of one rank. Memory for the largest piece is taken once. Local; one thread.
class BatchReader {
 public:
  /// `source` must outlive the reader and hold the plan's number of records.
  BatchReader(Source& source, const Plan& plan, int rank);

  const Plan& plan() const noexcept { return plan_; }

  /// This rank's piece at `step` of `epoch` (both from 0). Throws what Source::read throws.
  Batch read(std::uint64_t epoch, std::uint64_t step);

 private:
  Source& source_;
  Plan plan_;
  std::uint64_t rank_;
  std::vector<std::uint64_t> ids_;
  AlignedBuffer<float> x_;
  std::vector<std::int32_t> labels_;
};

}  // namespace lockstep::data

// One rank's batches, read from a source as the plan says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "data/plan.hpp"
#include "data/read_ahead.hpp"
#include "data/source.hpp"
#include "data/transform.hpp"
#include "lib/base/aligned.hpp"

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

  /// Reads the records at `positions` of this rank's order in `epoch`, as Plan::positions counts
  /// them. Their features go to `x`, [positions.size(), features()]. Returns their labels, valid
  /// until the next read. Throws what Source::read throws.
  std::span<const std::int32_t> read_positions(std::uint64_t epoch, Range positions,
                                               std::span<float> x);

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

// Batches read ahead of their consumer, by a thread in the background.

/// What a slot of Prefetch holds of a batch's features.
enum class Features {
  floats,  ///< divided, as the network sees them
  bytes,   ///< as they are stored, where BatchReader::gives_bytes(); else floats
};

/// How batches are kept for a consumer that copies them from where they were read.
struct Staging {
  Features features = Features::floats;
  /// Of features and labels; outlives the Prefetch.
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
};

/// A batch, and its features where they were read: [piece.size(), features] in one of the two
/// views, the other is empty. `batch.labels` stand in the same kind of memory.
struct StagedBatch {
  Batch batch;
  std::span<const float> floats;
  std::span<const std::uint8_t> bytes;  ///< undivided: see Prefetch::divisor()
};

/// Reads what a BatchReader reads, up to `depth` batches ahead: the steps of an epoch in order, and
/// then those of the next, but none beyond the first `batches` of all, unless it is asked for. To
/// read any other step restarts there.
///
/// All memory is taken in the constructor, a batch of features for each of depth + 1 slots; a step
/// allocates nothing. The consumer is one thread; a thread of this object (ReadAhead) reads, and it
/// alone touches the reader and its source while this object lives. Depth 0: no thread, no memory,
/// and the consumer's thread reads.
///
/// Staging  with it there is one slot more, also at depth 0, so that the last batch stays in place
///          while the next one is taken: a device may still be copying it.
///
/// Speed    batch 128 on two cores, drawn digits or IDX in the page cache, least of five runs: on
///          two ranks, depths 1, 2 and 4 take a step as long as depth 0 or a tenth of a millisecond
///          less; on one rank 0.1 to 0.4 ms less of 3.6 to 3.9. So 2 is the command's default,
///          whatever the source.
class Prefetch {
 public:
  /// `reader` must outlive this object. Throws std::bad_alloc.
  Prefetch(BatchReader& reader, std::size_t depth,
           std::uint64_t batches = std::numeric_limits<std::uint64_t>::max());

  /// The same, with slots for take() and ready(). Throws what `staging.memory` throws, too.
  Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches, const Staging& staging);

  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  const Plan& plan() const noexcept { return reader_.plan(); }
  Range piece(std::uint64_t step) const noexcept { return reader_.piece(step); }

  /// Features per record.
  std::size_t features() const noexcept { return reader_.features(); }

  /// What held bytes are to be divided by, in float32: Source::divisor().
  float divisor() const noexcept { return reader_.divisor(); }

  /// BatchReader::read: the same batch, and the same exceptions, thrown when the batch that met
  /// them is asked for. The views are valid until the next call.
  Batch read(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

  /// Whether slots hold bytes: what Features::bytes came to.
  bool holds_bytes() const noexcept { return scale_.has_value(); }

  /// read() without the copy: throws alike, and std::logic_error without Staging. The views are
  /// valid until the call after the next one, each of read() or take().
  StagedBatch take(std::uint64_t epoch, std::uint64_t step);

  /// What take() of the same step will return, if that is read already: the same memory, so that a
  /// copy of it may begin. Never waits for a batch; errors come out of take(). None without
  /// Staging, and at depth 0.
  ///
  /// The views are valid as long as those of take(), if the consumer goes on step by step. To read
  /// any other step drops all that was read ahead: copies must have ended before that.
  std::optional<StagedBatch> ready(std::uint64_t epoch, std::uint64_t step) noexcept;

 private:
  /// A batch, and what it was read into.
  struct Slot {
    AlignedBuffer<float> floats;  // or
    AlignedBuffer<std::uint8_t> bytes;
    AlignedBuffer<std::int32_t> labels;
    std::vector<std::uint64_t> ids;
    Batch batch;
  };

  void make_slots(std::size_t count, std::size_t depth, std::uint64_t batches,
                  std::pmr::memory_resource& memory);
  StagedBatch view(const Slot& slot) const noexcept;
  std::uint64_t index_of(std::uint64_t epoch, std::uint64_t step) const noexcept {
    return epoch * plan().steps() + step;
  }
  void fill(Slot& slot, std::uint64_t index);

  BatchReader& reader_;
  bool staged_ = false;
  std::optional<ByteScale> scale_;        // of slots that hold bytes
  std::optional<ReadAhead<Slot>> ahead_;  // none where batches are read straight into `x`
};

}  // namespace lockstep::data

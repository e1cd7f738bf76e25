// Batches read ahead of their consumer, by a thread in the background.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "data/batches.hpp"
#include "data/byte_scale.hpp"
#include "lib/base/aligned.hpp"

namespace lockstep::data {

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
/// then those of the next, but none beyond the first `batches` of all, unless it is asked for. A
/// consumer that goes elsewhere is followed at once.
///
/// All memory is taken in the constructor, a batch of features for each of depth + 1 slots; a step
/// allocates nothing. The consumer is one thread; a thread of this object's own reads, and alone
/// touches the reader and its source while this object lives. Depth 0: no thread, no memory, and
/// the consumer reads by itself.
///
/// Staging  with it there is one slot more, also at depth 0, so that the last batch stays where it
///          is while the next one is taken: a device may still be copying it.
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

  /// Stops the thread; waits for the batch that it is reading, and for no more.
  ~Prefetch();
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

  /// What take() of the same position will return, if that is read already: the same memory, so
  /// that a copy of it may begin. Takes nothing, never waits for a batch, and is silent about
  /// errors, which come out of take(). None without Staging, and at depth 0.
  ///
  /// The views are valid as long as those of take(), if the consumer goes on step by step. To go
  /// anywhere else drops all that was read ahead: copies must have ended before that.
  std::optional<StagedBatch> ready(std::uint64_t epoch, std::uint64_t step) noexcept;

 private:
  struct Position {
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;
    bool operator==(const Position&) const = default;
  };

  /// A batch, and what it was read into.
  struct Slot {
    AlignedBuffer<float> floats;  // or
    AlignedBuffer<std::uint8_t> bytes;
    AlignedBuffer<std::int32_t> labels;
    std::vector<std::uint64_t> ids;
    Position position;
    Batch batch;
  };

  void make_slots(std::size_t count, std::pmr::memory_resource& memory);
  StagedBatch view(const Slot& slot) const noexcept;

  Position after(Position position) const noexcept;
  bool is_foreseen(Position position) const noexcept;
  void seek(Position position);
  Slot& fill_next(Position position);
  Slot& wait_for_batch(Position position);
  void read_ahead();
  void fill(Slot& slot, Position position);

  BatchReader& reader_;
  std::size_t depth_;
  std::uint64_t batches_;
  bool staged_ = false;
  std::optional<ByteScale> scale_;  // of slots that hold bytes
  std::vector<Slot> slots_;

  // Under the mutex. Slots [first_, first_ + full_) hold batches in order, the first of them that
  // of next_; the slot before first_ is in the consumer's hands, staged the two before it. At depth
  // 0 it is the consumer who fills slot first_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t first_ = 0;
  std::size_t full_ = 0;
  std::optional<Position> next_;  // the consumer's, as far as we know
  Position ahead_;                // the thread's
  bool asked_ = false;            // the consumer waits
  std::uint64_t journey_ = 0;     // counts seeks: what was begun before one is dropped after it
  std::exception_ptr error_;      // met at ahead_, where the thread rests
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace lockstep::data

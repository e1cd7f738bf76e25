// Reads one rank's batches from a source, according to the plan.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/read_ahead.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
class Transform;  // transform.hpp
/// One rank's examples of one step. Views into the reader, valid until its next read.
struct Batch {
  Range piece;                           ///< this rank's rows among the rows of all ranks
  std::span<const std::int32_t> labels;  ///< [piece.size()]
  std::span<const std::uint64_t> ids;    ///< [piece.size()] record indices in the data set
  std::span<const float> values = {};    ///< [piece.size(), Source::targets()] row-major
  std::span<const float> weights = {};   ///< [piece.size()] of the examples; empty: each is 1
  std::uint64_t global_examples = 0;     ///< examples of this step over all ranks
  std::uint64_t leaf = 1;                ///< examples per leaf in this step
  std::uint64_t block = 0;               ///< rows of each rank in gathers: Plan::block()
  std::uint64_t summed_rows = 0;         ///< gradients are summed over rows [0, summed_rows)
  const Plan* plan = nullptr;            ///< the reader's plan
  std::uint64_t step = 0;                ///< index in the epoch, from 0
  std::uint64_t rank = 0;                ///< which has this piece
  const Source* source = nullptr;        ///< of the records; null: unknown

  /// The rows that hold the examples of rank `of`.
  Range rows_of(std::uint64_t of) const noexcept { return plan->rows(step, of); }

  /// The rows that rank `of` sums over: with shares those of its piece, else of its whole block.
  Range summed_rows_of(std::uint64_t of) const noexcept {
    if (!plan->shares().empty()) return rows_of(of);
    return {std::min(of * block, summed_rows), std::min((of + 1) * block, summed_rows)};
  }

  /// The rows after the piece that this rank sums over but that hold no example: see Plan.
  Range padding() const noexcept { return {piece.end, summed_rows_of(rank).end}; }
};

/// The batch of `rank` at `step` of an epoch of `plan`.
Batch batch_at(const Plan& plan, std::uint64_t step, std::uint64_t rank,
               std::span<const std::int32_t> labels, std::span<const std::uint64_t> ids) noexcept;

/// The targets of some records: labels, [records], and `values`, [records, Source::targets()]; and
/// their weights, [records], or none.
struct RecordTargets {
  std::span<const std::int32_t> labels;
  std::span<const float> values;
  std::span<const float> weights;
};

/// Reads the batches of one rank. Local; not thread-safe.
class BatchReader {
 public:
  /// `source` must hold the plan's number of records. `transform`, unless null, is applied to the
  /// features. Both must outlive the reader.
  /// Throws ConfigError if `rank` is not in the plan, and std::invalid_argument if the source has
  /// another number of records than the plan.
  BatchReader(Source& source, const Plan& plan, int rank, Transform* transform = nullptr);

  /// The divisor of the features: Source::divisor().
  float divisor() const noexcept { return source_.divisor(); }

  /// True if read_bytes() may be called: the source stores bytes, and there is no transform.
  bool gives_bytes() const noexcept {
    return source_.element() == Element::byte && transform_ == nullptr;
  }

  /// True if records have weights: Source::has_weights().
  bool has_weights() const noexcept { return source_.has_weights(); }

  /// Features per record, and values to predict: Source::targets().
  std::size_t features() const noexcept { return source_.features(); }
  std::size_t targets() const noexcept { return source_.targets(); }

  const Plan& plan() const noexcept { return plan_; }

  /// Changes the shares of the reader's plan: Plan::set_shares(). No Prefetch may read with it.
  void set_shares(std::vector<std::uint64_t> shares) { plan_.set_shares(std::move(shares)); }

  /// The rows of this rank's piece at `step`.
  Range piece(std::uint64_t step) const noexcept { return plan_.rows(step, rank_); }

  /// Reads the piece at `step` of `epoch` (both from 0) and writes its features to `x`,
  /// [piece(step).size(), features()]. Throws what Source::read throws.
  Batch read(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

  /// Reads the records at `positions` (see Plan::positions) of this rank's order in `epoch` and
  /// writes their features to `x`, [positions.size(), features()]. Returns their targets, valid
  /// until the next read. Throws what Source::read throws.
  RecordTargets read_positions(std::uint64_t epoch, Range positions, std::span<float> x);

  /// Like read(), but returns the features as stored: see Source::read_bytes. Throws
  /// std::logic_error unless gives_bytes().
  Batch read_bytes(std::uint64_t epoch, std::uint64_t step, std::span<std::uint8_t> x);

 private:
  /// Writes the piece's ids to ids_, its targets to values_ and its weights to weights_; returns
  /// the buffer for its labels.
  std::span<std::int32_t> look_up(std::uint64_t epoch, std::uint64_t step);

  /// The same for the records of ids_.
  std::span<std::int32_t> look_up_targets();

  /// Reads the records of ids_, while no other reader of the source does.
  void read_records(std::span<float> x, std::span<std::int32_t> labels);

  /// The batch that was read last.
  Batch last_batch(std::uint64_t step) const noexcept {
    Batch batch = batch_at(plan_, step, rank_, std::span(labels_).first(ids_.size()), ids_);
    batch.values = std::span(values_).first(ids_.size() * source_.targets());
    if (source_.has_weights()) batch.weights = std::span(weights_).first(ids_.size());
    batch.source = &source_;
    return batch;
  }

  Source& source_;
  Transform* transform_;
  Plan plan_;
  std::uint64_t rank_;
  std::vector<std::uint64_t> ids_;
  std::vector<std::int32_t> labels_;
  std::vector<float> values_;
  std::vector<float> weights_;
};

// Prefetching of batches in a background thread.

/// A batch and a view of its features, [piece.size(), features], in the buffer they were read into.
/// Of `floats` and `bytes` one is empty. Labels, values and weights of `batch` are in memory of the
/// same resource.
struct StagedBatch {
  Batch batch;
  std::span<const float> floats;
  std::span<const std::uint8_t> bytes;  ///< undivided: see Prefetch::divisor()
};

/// Reads batches of a BatchReader, epoch after epoch, in step order, for one consumer thread:
/// either into its memory with read(), or into slots of this object with take(). Up to `depth`
/// batches are prefetched by a thread of this object (ReadAhead); those after the first `batches`
/// of the run are read only on request. A non-sequential read restarts prefetching at that step.
///
/// The constructor allocates all memory; a step allocates nothing. Only one thread reads at a time,
/// this object's or the consumer's; no other may use the reader during the object's lifetime.
/// Depth 0: no thread; the consumer's reads.
///
/// read()   To pass a batch on costs a copy of its features and two changes of threads, which on
///          cores that are all busy is more than reading a record from a mapped file. So the
///          consumer reads, as at depth 0, until that has taken 5 ms in all beyond 20 us a batch
///          and 2 ns a feature; from then on the thread does. Quick batches make up for slow ones,
///          such as the first of a mapped file. IDX and NPY in the page cache take 0.3 to 0.8 ns a
///          feature, CSV and pictures 4 and more. On two busy cores of an EPYC, MNIST on two ranks,
///          reading for a step of 32, 128 and 512 then takes 0.008, 0.027 and 0.13 ms instead of
///          0.023, 0.051 and 0.18.
/// take()   There is one slot more, also at depth 0, so that the previous batch stays valid while a
///          device copies it. Slots hold bytes if BatchReader::gives_bytes(), else floats.
class Prefetch {
 public:
  /// For read(). `reader` must outlive this object. Throws std::bad_alloc.
  Prefetch(BatchReader& reader, std::size_t depth,
           std::uint64_t batches = std::numeric_limits<std::uint64_t>::max());

  /// For take() and ready(). `memory`, of which features, labels, values and weights are, must
  /// outlive this object; throws what it throws.
  Prefetch(BatchReader& reader, std::size_t depth, std::uint64_t batches,
           std::pmr::memory_resource& memory);

  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  const Plan& plan() const noexcept { return reader_.plan(); }
  Range piece(std::uint64_t step) const noexcept { return reader_.piece(step); }

  /// Features per record.
  std::size_t features() const noexcept { return reader_.features(); }

  /// The float32 divisor for features held as bytes: Source::divisor().
  float divisor() const noexcept { return reader_.divisor(); }

  /// Returns the same batch as BatchReader::read. Exceptions of a prefetched batch are thrown when
  /// that batch is requested. The views are valid until the next call.
  Batch read(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

  /// Starts the thread, which otherwise the first read starts. Throws what ReadAhead::start()
  /// throws.
  void start() {
    if (ahead_) ahead_->start();
  }

  /// read() without the copy. Throws what read() throws. The views are valid until the second
  /// following call.
  StagedBatch take(std::uint64_t epoch, std::uint64_t step);

  /// The batch that take() of the same step will return, if it is already read: the same memory,
  /// so that a copy can start early. Never blocks; errors are thrown by take(). Empty at depth 0.
  ///
  /// With sequential reads the views are valid as long as those of take(). A non-sequential read
  /// drops all prefetched batches: copies from them must be complete before it.
  std::optional<StagedBatch> ready(std::uint64_t epoch, std::uint64_t step) noexcept;

 private:
  /// A batch and its buffers.
  struct Slot {
    AlignedBuffer<float> floats;  // or
    AlignedBuffer<std::uint8_t> bytes;
    AlignedBuffer<std::int32_t> labels;
    AlignedBuffer<float> values;
    AlignedBuffer<float> weights;
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
  Batch read_here(std::uint64_t epoch, std::uint64_t step, std::span<float> x);

  BatchReader& reader_;
  bool reads_here_ = false;           // the consumer's thread reads
  std::chrono::nanoseconds lost_{0};  // by its reads that were not quick
  const bool holds_bytes_ = false;    // in slots
  std::vector<Slot> slots_;           // empty: the consumer reads
  std::optional<ReadAhead> ahead_;    // last member: its thread uses the slots
};

}  // namespace lockstep::data

// A data set whose batches are divided among replicas.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/dataset.hpp"
#include "lockstep/distribute/readers.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep {
/// Options of distribute_dataset.
struct DistributeOptions {
  data::ShardPolicy policy = data::ShardPolicy::automatic;
  data::Rebatch rebatch = data::Rebatch::ceil;
  /// Under DATA, pieces are whole leaves of `leaf` examples: see data::piece_of. 0, as in the
  /// command: data::automatic_leaf, which is 1 for batches below 16 examples. With 1 each piece has
  /// ceil(examples / replicas) examples, as in the distribution guide, for any batch.
  std::uint64_t leaf = 0;
  /// Pieces that a thread reads ahead; 0: no thread. nullopt: the depth of the data set's last
  /// prefetch if it ends in one; 0 if a prefetch stands before other transformations; else 1 (the
  /// replicas of an input pipeline).
  std::optional<std::size_t> prefetch = std::nullopt;
};

/// Why a distributed data set has no plan to train by.
struct WhyNoPlan {
  std::string problem;
  std::string remedy;
};

/// The part of a data set that a rank reads.
struct Share {
  data::PolicyChoice choice = {};
  data::Rebatch rebatch = data::Rebatch::ceil;
  std::uint64_t leaf = 0;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  std::uint64_t batch_size = 0;
  bool drop_remainder = false;
  /// All that is read, in closed form; nullopt if the number of examples is unknown, or if it does
  /// not determine the batches (transformed batches).
  std::optional<data::Plan> plan = std::nullopt;
  bool endless_batches = false;  ///< as `plan`, for an endless data set under DATA
  /// The plan to train by: `plan`; or that of batches which are transformed and keep their numbers
  /// of examples; or the plan of one step, of which all are full batches. nullopt: see why_no_plan.
  std::optional<data::Plan> training_plan = std::nullopt;
  WhyNoPlan why_no_plan = {};

  /// The pass over the data set that this rank reads.
  Pass pass(std::uint64_t epoch) const noexcept {
    const bool by_files = choice.policy == data::ShardPolicy::file;
    return {epoch, by_files ? rank : 0, by_files ? ranks : 1};
  }

  /// True if a rank cannot determine locally when the other ranks' streams end.
  bool ends_differ() const noexcept;

  /// The number of examples per piece, if it is equal at every step on every rank.
  std::optional<std::size_t> fixed_rows() const;

  /// True if the plan has no example for a worker, and some for another.
  bool some_empty() const;
};

/// The numbers of examples of a pass, as far as they are known.
struct ExampleCounts {
  std::optional<std::uint64_t> by_position = std::nullopt;  ///< Reader::examples
  std::optional<std::uint64_t> before_map = std::nullopt;   ///< Reader::examples_before_map
};
using CountExamples = std::function<ExampleCounts(const Pass&)>;

/// Determines this rank's part of a data set.
///
/// Errors   throws comm::AgreedError (2): data or options that data::Plan
///          or data::choose_policy reject; `balanced` with DATA; ranks with different data or
///          options.
/// Ranks    collective.
Share agree_on_share(comm::Communicator& comm, const DatasetFacts& facts,
                     const DistributeOptions& options, const CountExamples& count);

/// The numbers of elements of all ranks' streams.
struct StreamLengths {
  std::uint64_t longest = 0;  ///< possibly `endless`
  bool some_empty = false;    ///< a rank has no element, another has
};

/// nullopt if any rank's count is unknown. Collective.
std::optional<StreamLengths> agree_on_lengths(comm::Communicator& comm,
                                              std::optional<std::uint64_t> mine);

/// The message that ranks exchange each step if their streams may end at different steps.
struct StepNews {
  bool has_examples = false;
  bool has_more = false;
  bool failed = false;
  bool lacks_shape = false;  ///< has not had an example yet
};

/// The logical OR over all ranks, field by field. Collective.
StepNews any_rank(comm::Communicator& comm, const StepNews& mine);

}  // namespace lockstep

namespace lockstep::pieces {
// Readers of one rank's pieces, one per step. Internal: the API is distributed_dataset.hpp.

/// Returns this rank's piece of each step, in order; nullopt at the end of its stream. Local.
template <class T>
using Pieces = std::function<std::optional<T>()>;

/// With a plan: reads only this rank's examples.
template <BatchLike T>
Pieces<T> planned(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  return [shared, plan = *share.plan, rank = share.rank,
          step = std::uint64_t{0}]() mutable -> std::optional<T> {
    if (step == plan.steps()) return std::nullopt;
    const Range mine = plan.positions(step++, rank);
    return shared->rows(mine.size() > 0 ? mine : Range{0, 0});
  };
}

inline Range piece_of_batch(std::uint64_t examples, const Share& share) {
  const std::uint64_t leaf = share.leaf > 0 ? share.leaf : data::automatic_leaf(examples);
  return data::piece_of(examples, leaf, share.rank, share.ranks);
}

/// Under DATA, endless data: reads only this rank's examples.
template <BatchLike T>
Pieces<T> endless_batches(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  const Range mine = piece_of_batch(share.batch_size, share);
  return [shared, mine, size = share.batch_size,
          first = std::uint64_t{0}]() mutable -> std::optional<T> {
    const std::uint64_t at = std::exchange(first, first + size);
    return shared->rows({at + mine.begin, at + mine.end});
  };
}

/// Under DATA, sequential data: every rank reads all batches and keeps its pieces.
template <BatchLike T>
Pieces<T> kept(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  return [shared, share]() -> std::optional<T> {
    const auto batch = shared->next();
    if (!batch) return std::nullopt;
    const Range mine = piece_of_batch(rows_of(batch->value), share);
    return cut(batch->value, mine.begin, mine.end);
  };
}

/// Under FILE and OFF, rule `ceil`: cuts each batch of this rank's stream into as many pieces as
/// there are replicas. Trailing pieces may be empty; with `all_alike` they are empty on all ranks
/// and are skipped.
template <BatchLike T>
Pieces<T> own(ReaderPtr<T> reader, const Share& share, bool all_alike) {
  struct State {
    ReaderPtr<T> reader;
    std::optional<Item<T>> batch;
    std::uint64_t piece = 0;
  };
  const auto state = std::make_shared<State>(State{std::move(reader), {}, share.ranks});
  return [state, all_alike, ranks = share.ranks]() -> std::optional<T> {
    while (true) {
      if (state->piece == ranks) {
        state->batch = state->reader->next();
        if (!state->batch) return std::nullopt;
        state->piece = 0;
      }
      const T& batch = state->batch->value;
      const auto mine = data::piece_of(rows_of(batch), 1, state->piece++, ranks);
      if (mine.size() > 0 || !all_alike) return cut(batch, mine.begin, mine.end);
    }
  };
}

/// Under FILE and OFF, rule `balanced`: pieces span batch boundaries.
template <BatchLike T>
class Balanced {
 public:
  Balanced(ReaderPtr<T> reader, const Share& share)
      : reader_(std::move(reader)),
        sizes_(data::BalancedPieces(share.batch_size, share.ranks).sizes(share.rank)) {}

  std::optional<T> next() {
    const std::uint64_t wanted = sizes_[turn_++ % sizes_.size()];
    std::vector<T> parts;
    for (std::uint64_t have = 0; have < wanted; have += rows_of(parts.back())) {
      if (at_ == end_ && !read()) break;
      const std::uint64_t some = std::min(wanted - have, end_ - at_);
      parts.push_back(cut(batch_->value, at_, at_ + some));
      at_ += some;
    }
    if (parts.empty()) return std::nullopt;
    return join_batches(parts);
  }

 private:
  bool read() {
    do {
      batch_ = reader_->next();
      if (!batch_) return false;
      at_ = 0;
      end_ = rows_of(batch_->value);
    } while (end_ == 0);
    return true;
  }

  ReaderPtr<T> reader_;
  std::vector<std::uint64_t> sizes_;
  std::size_t turn_ = 0;
  std::optional<Item<T>> batch_;
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
};

template <BatchLike T>
Pieces<T> balanced(ReaderPtr<T> reader, const Share& share) {
  const auto state = std::make_shared<Balanced<T>>(std::move(reader), share);
  return [state] { return state->next(); };
}

/// The pieces of `epoch` for this share.
template <BatchLike T>
Pieces<T> of(const Dataset<T>& dataset, const Share& share, std::uint64_t epoch) {
  auto reader = dataset.open_plain(share.pass(epoch));
  if (share.plan) return planned(std::move(reader), share);
  if (share.endless_batches) return endless_batches(std::move(reader), share);
  if (share.choice.policy == data::ShardPolicy::data) return kept(std::move(reader), share);
  if (share.rebatch == data::Rebatch::balanced) return balanced(std::move(reader), share);
  const bool all_alike = share.choice.policy == data::ShardPolicy::off || share.ranks == 1;
  return own(std::move(reader), share, all_alike);
}

/// What is known of a data set's batches after the first one, in all epochs.
template <BatchLike T>
struct Memory {
  std::optional<T> empty;      ///< a batch of 0 examples; set once an example was read
  bool shapes_agreed = false;  ///< all ranks called agree_on_shapes
};

/// This rank's pieces of one epoch, read ahead. The first can be looked at before it is taken.
template <BatchLike T>
class Stream {
 public:
  Stream(Pieces<T> pieces, std::size_t prefetch, std::shared_ptr<Memory<T>> memory)
      : ahead_(std::move(pieces), prefetch), memory_(std::move(memory)) {}

  /// The next piece; nullopt at the end.
  std::optional<T> next() {
    if (!std::exchange(started_, true)) look();
    if (first_) return std::exchange(first_, std::nullopt);
    return read();
  }

  /// The spec of the pieces; reads the first one if nothing was read.
  ElementSpec spec(std::optional<std::size_t> rows) {
    if (!memory_->empty && !std::exchange(started_, true)) look();
    return spec_of(memory_->empty ? *memory_->empty : first_ ? *first_ : T{}, rows);
  }

  bool knows_shape() const noexcept { return memory_->empty.has_value(); }
  bool shapes_agreed() const noexcept { return memory_->shapes_agreed; }

  /// Ranks without an example take shape and names of an empty batch from the first rank with one.
  /// Collective.
  void agree_on_shapes(comm::Communicator& comm) {
    auto empty = memory_->empty.value_or(T{});
    if (collective::agree_on_structure(comm, empty, knows_shape())) memory_->empty = empty;
    memory_->shapes_agreed = true;
  }

  /// `piece`, or a batch of 0 examples after the end of this rank's stream.
  T filled(std::optional<T> piece) const {
    if (piece && (rows_of(*piece) > 0 || !memory_->empty)) return std::move(*piece);
    return memory_->empty.value_or(T{});
  }

 private:
  std::optional<T> read() {
    auto piece = ahead_.next();
    if (piece && !memory_->empty && rows_of(*piece) > 0) memory_->empty = cut(*piece, 0, 0);
    return piece;
  }
  void look() { first_ = read(); }

  Prefetcher<T> ahead_;
  std::shared_ptr<Memory<T>> memory_;
  bool started_ = false;
  std::optional<T> first_;
};

}  // namespace lockstep::pieces

namespace lockstep {
/// next() was called past the end: ends a loop, not a failure. Exit code 1 if it is not caught.
struct OutOfRange : Error {
  OutOfRange()
      : Error(ExitCode::internal, "no replica has data for another step",
              "catch it and go on with the next epoch, or use next_as_optional()") {}
};

/// One epoch of a distributed data set.
///
/// The iteration ends at the first step without data on any replica; a replica without data for a
/// step that others have gets a batch of 0 examples. With a plan (DistributedDataset::plan), if all
/// ranks read the same stream, or if sizes were compared beforehand, the end is determined locally.
/// Otherwise (policy FILE, rule `balanced`, or data sets from a function, all of unknown length)
/// each step costs one message of four bytes. A rank that never has an example is told the shape of
/// an empty batch by the others, once.
///
/// Errors   next() and next_as_optional() throw the reader's errors: on the rank that read, or, if
///          each step costs a message, as one comm::AgreedError on all ranks.
/// Ranks    collective: all ranks read the same steps. One thread.
template <BatchLike T>
class DistributedIterator {
 public:
  /// How the end of the epoch is determined.
  enum class Ending {
    alone,    ///< from this rank's own stream
    counted,  ///< after `steps` steps
    asked,    ///< by a message per step
  };

  /// What the Strategy knows of all epochs.
  struct Steps {
    Ending ending = Ending::alone;
    std::uint64_t count = 0;                         ///< if `counted`
    std::optional<std::size_t> rows = std::nullopt;  ///< Share::fixed_rows
    std::uint64_t in_plan = 0;                       ///< steps of the training plan; 0: none
    bool some_empty = false;  ///< a rank never has an example: shapes are exchanged at step 0
  };

  DistributedIterator(comm::Communicator& comm, std::shared_ptr<pieces::Stream<T>> stream,
                      const Steps& steps)
      : comm_(&comm), stream_(std::move(stream)), steps_(steps) {}

  /// The next step's batch. Throws OutOfRange past the end, on every call.
  PerReplica<T> next() {
    auto batch = next_as_optional();
    if (!batch) throw OutOfRange();
    return std::move(*batch);
  }

  /// The next step's batch; nullopt past the end.
  std::optional<PerReplica<T>> next_as_optional() {
    if (ended_) return std::nullopt;
    auto piece = steps_.ending == Ending::asked ? next_asked() : next_known();
    ended_ = !piece;
    if (ended_) return std::nullopt;
    PerReplica<T> batch(std::move(*piece));
    if (steps_.in_plan > 0) batch.step_ = read_++ % steps_.in_plan;
    return batch;
  }

  /// Type and shape of this replica's values: see DistributedDataset::element_spec. Reads the first
  /// batch if none was read, and keeps it for next(). Local.
  ElementSpec element_spec() const { return stream_->spec(steps_.rows); }

 private:
  std::optional<T> next_known() {
    if (steps_.ending == Ending::alone && !steps_.some_empty) return stream_->next();
    if (steps_.ending == Ending::counted) {
      if (step_ == steps_.count) return std::nullopt;
      if (steps_.count != endless) ++step_;
    }
    auto piece = stream_->next();
    if (!piece && steps_.ending == Ending::alone) return std::nullopt;
    if (steps_.some_empty && !stream_->shapes_agreed()) stream_->agree_on_shapes(*comm_);
    return stream_->filled(std::move(piece));
  }

  /// Skips steps at which no replica has an example.
  std::optional<T> next_asked() {
    while (true) {
      std::exception_ptr failure;
      std::optional<T> piece;
      try {
        piece = stream_->next();
      } catch (...) {
        failure = std::current_exception();
      }
      const bool examples = piece && rows_of(*piece) > 0;
      const auto news = any_rank(
          *comm_, {examples, piece.has_value(), failure != nullptr, !stream_->knows_shape()});
      if (news.failed) {
        comm::together(*comm_, [&] {
          if (failure) std::rethrow_exception(failure);
        });
      }
      if (news.has_examples && news.lacks_shape) stream_->agree_on_shapes(*comm_);
      if (news.has_examples) return stream_->filled(std::move(piece));
      if (!news.has_more) return std::nullopt;
    }
  }

  comm::Communicator* comm_;
  std::shared_ptr<pieces::Stream<T>> stream_;
  Steps steps_;
  std::uint64_t step_ = 0;
  std::uint64_t read_ = 0;
  bool ended_ = false;
};

/// A distributed data set. It can be iterated; the transformations of Dataset are not available.
///
/// Each iteration is a new epoch, counted from 0, unless an epoch is passed to make_iterator. The
/// Strategy that created it must outlive it.
template <BatchLike T>
class DistributedDataset {
 public:
  using Element = PerReplica<T>;

  /// The Strategy's decisions, and the function that opens a pass.
  struct Parts {
    std::function<pieces::Pieces<T>(std::uint64_t epoch)> open;
    std::size_t prefetch = 0;
    typename DistributedIterator<T>::Steps steps = {};
    std::optional<data::Plan> plan;  ///< to train by
    WhyNoPlan why_no_plan;
    data::PolicyChoice choice;
  };

  DistributedDataset(comm::Communicator& comm, Parts parts)
      : comm_(&comm), parts_(std::move(parts)) {}

  /// An input range of the next epoch:  for (auto& batch : dataset), or for (auto& [x, y] :
  /// dataset) with batches of two parts, which are copied. Reads the first batch: collective, as is
  /// each increment.
  InputIterator<PerReplica<T>> begin() const {
    return InputIterator<PerReplica<T>>(
        [steps = make_iterator()]() mutable { return steps.next_as_optional(); });
  }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Iterator over the next epoch, or over the given one (its successor is then the next). Local.
  DistributedIterator<T> make_iterator() const { return make_iterator(state_->epoch); }
  DistributedIterator<T> make_iterator(std::uint64_t epoch) const {
    auto stream = std::exchange(state_->waiting, nullptr);
    if (!stream || state_->epoch != epoch) stream = open(epoch);
    state_->latest = stream;
    state_->epoch = epoch + 1;
    return {*comm_, std::move(stream), parts_.steps};
  }

  /// Type and shape of this replica's values, one spec per part. Axis 0 counts examples; its length
  /// is unknown unless all pieces of all steps have the same length. On a rank without data the
  /// shape is (0) until the first step.
  ///
  /// Reads the first batch of the next epoch, unless one was read before, and keeps it for the
  /// iteration of that epoch: no element is lost or read twice. Local.
  ElementSpec element_spec() const {
    if (auto latest = state_->latest.lock()) return latest->spec(parts_.steps.rows);
    if (!state_->waiting && !state_->memory->empty) state_->waiting = open(state_->epoch);
    if (state_->waiting) return state_->waiting->spec(parts_.steps.rows);
    return spec_of(*state_->memory->empty, parts_.steps.rows);
  }

  /// The examples of each rank and step: positions in the data set's order. train::Replica trains
  /// by it. It is known for batches of a data set of known size, also if map was applied to them
  /// (which must then keep their numbers of examples). Under DATA it is known, too, if all batches
  /// are full (an endless data set, or drop_remainder): then it has one step, which repeats.
  /// Errors   plan() throws ConfigError with the reason if the data set has none. Local.
  const data::Plan& plan() const {
    if (has_plan()) return *parts_.plan;
    throw ConfigError("the distributed data set has no plan: " + parts_.why_no_plan.problem,
                      parts_.why_no_plan.remedy);
  }
  bool has_plan() const noexcept { return parts_.plan.has_value(); }

  /// The ranks of the Strategy. Local.
  comm::Communicator& communicator() const noexcept { return *comm_; }

  /// The sharding policy, and the reason for it. DATA for a data set from a function, which shards
  /// its data itself.
  data::ShardPolicy policy() const noexcept { return parts_.choice.policy; }
  const std::string& reason() const noexcept { return parts_.choice.reason; }

  /// The warning that was reported (base/errors.hpp); may be empty.
  const std::string& warning() const noexcept { return parts_.choice.warning; }

 private:
  /// The epochs that were opened; shared by copies of this data set.
  struct State {
    std::shared_ptr<pieces::Memory<T>> memory = std::make_shared<pieces::Memory<T>>();
    std::uint64_t epoch = 0;                     // the next one
    std::shared_ptr<pieces::Stream<T>> waiting;  // of `epoch`, opened by element_spec()
    std::weak_ptr<pieces::Stream<T>> latest;     // of the last iterator
  };

  std::shared_ptr<pieces::Stream<T>> open(std::uint64_t epoch) const {
    return std::make_shared<pieces::Stream<T>>(parts_.open(epoch), parts_.prefetch, state_->memory);
  }

  comm::Communicator* comm_;
  Parts parts_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lockstep

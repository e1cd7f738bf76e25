// A data set whose elements are spread over replicas.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/plan.hpp"
#include "lib/distribute/dataset.hpp"
#include "lib/distribute/readers.hpp"
#include "lib/distribute/tensor.hpp"
#include "lib/distribute/values.hpp"

namespace lockstep {
/// How distribute_dataset shares out.
struct DistributeOptions {
  data::ShardPolicy policy = data::ShardPolicy::automatic;
  data::Rebatch rebatch = data::Rebatch::ceil;
  /// Under DATA, pieces are whole leaves of so many examples: see data::piece_of. 1 is the guide's
  /// rule; 0 means data::automatic_leaf, as in training.
  std::uint64_t leaf = 1;
  /// Pieces that a thread reads ahead; 0: no thread. None: as many as there are replicas in sync in
  /// an input pipeline, which is 1, or what the data set's own last prefetch says.
  std::optional<std::size_t> prefetch = std::nullopt;
};

/// A rank's part of a data set.
struct Share {
  data::PolicyChoice choice = {};
  data::Rebatch rebatch = data::Rebatch::ceil;
  std::uint64_t leaf = 1;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  std::uint64_t batch_size = 0;
  bool drop_remainder = false;
  /// All that is read, in closed form; none where the number of examples is not known, or batches
  /// do not follow from it alone (transformed batches).
  std::optional<data::Plan> plan = std::nullopt;
  bool endless_batches = false;  ///< the same without an end, under DATA

  /// The pass over the data set that this rank reads.
  Pass pass(std::uint64_t epoch) const noexcept {
    const bool by_files = choice.policy == data::ShardPolicy::file;
    return {epoch, by_files ? rank : 0, by_files ? ranks : 1};
  }

  /// Ranks cannot know alone when the others' streams end.
  bool ends_differ() const noexcept;

  /// Examples of every piece, where that is the same at every step on every rank.
  std::optional<std::size_t> fixed_rows() const;
};

/// Examples of a pass, where they are known.
using CountExamples = std::function<std::optional<std::uint64_t>(const Pass&)>;

/// What this rank reads.
///
/// Errors   throws comm::AgreedError (2): data that is not batched; what data::Plan and
///          data::choose_policy refuse; `balanced` with DATA; ranks whose data or options differ.
/// Ranks    collective.
Share agree_on_share(comm::Communicator& comm, const DatasetFacts& facts,
                     const DistributeOptions& options, const CountExamples& count);

/// The most of all ranks' counts where all know theirs (perhaps `endless`), none where one does
/// not. Collective.
std::optional<std::uint64_t> agree_on_longest(comm::Communicator& comm,
                                              std::optional<std::uint64_t> mine);

/// One message a step, where ends differ.
struct StepNews {
  bool has_examples = false;
  bool goes_on = false;
  bool failed = false;
};

/// What is true of any rank. Collective.
StepNews any_rank(comm::Communicator& comm, const StepNews& mine);

}  // namespace lockstep

namespace lockstep::pieces {
// One rank's pieces of a data set's batches, one a step. Users meet distributed_dataset.hpp alone.

/// This rank's piece of each step, in order; none at the end of its own stream. Local.
template <class T>
using Pieces = std::function<std::optional<T>()>;

/// By the plan: only what is this rank's is read.
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

/// Under DATA, without an end: only what is this rank's is read.
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

/// Under DATA, of a stream: every rank reads all batches and keeps its pieces.
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

/// Under FILE and OFF, rule `ceil`: each batch of this rank's own stream in as many pieces as there
/// are replicas, of which the last may be empty. `all_alike`: so they are on all ranks, and left
/// out.
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

/// Under FILE and OFF, rule `balanced`: pieces reach across the ends of batches.
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
    return join(parts);
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

/// The pieces of `epoch`, as the share says.
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

}  // namespace lockstep::pieces

namespace lockstep {
/// next() was asked for more than there is; the end of a loop, not a fault. Exit code 1 where
/// nobody catches it.
struct OutOfRange : Error {
  OutOfRange()
      : Error(ExitCode::internal, "no replica has data for another step",
              "catch it and go on with the next epoch, or use next_as_optional()") {}
};

/// One epoch of a distributed data set.
///
/// A step ends the iteration where no replica has data for it; a replica that has none while others
/// do gets a batch of 0 examples. Under the plan (DistributedDataset::plan), where all read the
/// same stream, and where sizes were compared beforehand, every rank knows the end by itself.
/// Otherwise (policy FILE, rule `balanced`, or data sets from a function, all of unknown length)
/// each step costs one message of three bytes.
///
/// Errors   next() and next_as_optional() throw what reading throws: on the rank that read, or, as
///          one comm::AgreedError, on all of them, where each step costs a message.
/// Ranks    collective: all ranks ask for the same steps. One thread.
template <BatchLike T>
class DistributedIterator {
 public:
  /// How this rank learns that no replica has data left.
  enum class Ending {
    alone,    ///< its own pieces end when all do
    counted,  ///< after `steps`
    asked,    ///< by a message a step
  };

  DistributedIterator(comm::Communicator& comm, pieces::Pieces<T> pieces, std::size_t prefetch,
                      Ending ending, std::uint64_t steps)
      : comm_(&comm),
        ahead_(std::make_unique<Prefetcher<T>>(std::move(pieces), prefetch)),
        ending_(ending),
        steps_(steps) {}

  /// The next step's batch. Throws OutOfRange past the end, as often as it is called there.
  PerReplica<T> next() {
    auto batch = next_as_optional();
    if (!batch) throw OutOfRange();
    return std::move(*batch);
  }

  /// The same; nothing past the end.
  std::optional<PerReplica<T>> next_as_optional() {
    if (ended_) return std::nullopt;
    auto piece = ending_ == Ending::asked ? next_asked() : next_known();
    ended_ = !piece;
    if (ended_) return std::nullopt;
    return PerReplica<T>(std::move(*piece));
  }

 private:
  std::optional<T> next_known() {
    if (ending_ == Ending::alone) return ahead_->next();
    if (step_ == steps_) return std::nullopt;
    if (steps_ != endless) ++step_;
    return filled(ahead_->next());
  }

  /// Steps at which no replica has an example are left out.
  std::optional<T> next_asked() {
    while (true) {
      std::exception_ptr failure;
      std::optional<T> piece;
      try {
        piece = ahead_->next();
      } catch (...) {
        failure = std::current_exception();
      }
      const bool examples = piece && rows_of(*piece) > 0;
      const auto news = any_rank(*comm_, {examples, piece.has_value(), failure != nullptr});
      if (news.failed) {
        comm::together(*comm_, [&] {
          if (failure) std::rethrow_exception(failure);
        });
      }
      if (news.has_examples) return filled(std::move(piece));
      if (!news.goes_on) return std::nullopt;
    }
  }

  /// Where this replica's own stream has ended: a batch without examples.
  T filled(std::optional<T> piece) {
    if (!piece) return empty_.value_or(T{});
    if (!empty_) empty_ = cut(*piece, 0, 0);
    return std::move(*piece);
  }

  comm::Communicator* comm_;
  std::unique_ptr<Prefetcher<T>> ahead_;
  Ending ending_;
  std::uint64_t steps_;
  std::uint64_t step_ = 0;
  bool ended_ = false;
  std::optional<T> empty_;
};

/// Iterated, and nothing else: no transformation of a Dataset exists here.
///
/// Every iteration is an epoch of its own, counted from 0, unless make_iterator is told which. The
/// Strategy that made it must outlive it.
template <BatchLike T>
class DistributedDataset {
 public:
  using Element = PerReplica<T>;
  class Iterator;
  struct End {};

  /// What the Strategy decided, and how a pass is begun.
  struct Parts {
    std::function<pieces::Pieces<T>(std::uint64_t epoch)> open;
    std::function<ElementSpec()> spec;
    std::size_t prefetch = 0;
    typename DistributedIterator<T>::Ending ending = DistributedIterator<T>::Ending::alone;
    std::uint64_t steps = 0;  ///< where they are counted
    std::optional<data::Plan> plan;
    data::PolicyChoice choice;
  };

  DistributedDataset(comm::Communicator& comm, Parts parts)
      : comm_(&comm), parts_(std::move(parts)) {}

  /// for (auto& batch : dataset): the next epoch. Reads the first batch: collective.
  Iterator begin() { return Iterator(make_iterator()); }
  End end() const noexcept { return {}; }

  /// The next epoch, or the one that is named (the next is then the one behind it). Local.
  DistributedIterator<T> make_iterator() { return make_iterator(epoch_); }
  DistributedIterator<T> make_iterator(std::uint64_t epoch) {
    epoch_ = epoch + 1;
    return {*comm_, parts_.open(epoch), parts_.prefetch, parts_.ending, parts_.steps};
  }

  /// Type and shape of this replica's values, a spec for each part; axis 0 counts examples, and is
  /// unknown unless all pieces of all steps hold as many. A rank without data knows the number of
  /// axes no better than shape (0). Reads the first example. Local.
  ElementSpec element_spec() const { return parts_.spec(); }

  /// Who reads what, where it is known in closed form: positions in the data set's order.
  const std::optional<data::Plan>& plan() const noexcept { return parts_.plan; }

  /// The policy that is followed, and why. DATA for a data set from a function, which shards
  /// itself.
  data::ShardPolicy policy() const noexcept { return parts_.choice.policy; }
  const std::string& reason() const noexcept { return parts_.choice.reason; }

  /// What a person should be told once; empty: nothing. Libraries do not print.
  const std::string& warning() const noexcept { return parts_.choice.warning; }

 private:
  comm::Communicator* comm_;
  Parts parts_;
  std::uint64_t epoch_ = 0;
};

/// An input iterator over one epoch; moving on is collective.
template <BatchLike T>
class DistributedDataset<T>::Iterator {
 public:
  explicit Iterator(DistributedIterator<T> steps)
      : steps_(std::move(steps)), batch_(steps_.next_as_optional()) {}

  PerReplica<T>& operator*() { return *batch_; }
  Iterator& operator++() {
    batch_ = steps_.next_as_optional();
    return *this;
  }
  bool operator==(End) const noexcept { return !batch_; }

 private:
  DistributedIterator<T> steps_;
  std::optional<PerReplica<T>> batch_;
};

}  // namespace lockstep

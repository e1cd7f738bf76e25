// A data set whose elements are spread over replicas.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/distribute/pieces.hpp"
#include "lib/distribute/prefetch.hpp"
#include "lib/distribute/values.hpp"

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

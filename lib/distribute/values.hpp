// Values that live on replicas. None of them is made by hand: a Strategy does.
//
// Every replica runs the same program on a rank of its own and holds its own component.
#pragma once

#include <concepts>
#include <utility>

#include "lib/distribute/exchange.hpp"
#include "lib/distribute/structure.hpp"

namespace lockstep {

class Strategy;
template <BatchLike T>
class DistributedIterator;

/// A value for each replica, which may differ: what iteration and run() give.
///
/// Opened by reduce, gather, local_results and run alone.
template <class T>
class PerReplica {
 public:
  using Value = T;

 private:
  friend class Strategy;
  template <BatchLike U>
  friend class DistributedIterator;

  explicit PerReplica(T value) : value_(std::move(value)) {}

  T value_;  // this replica's
};

/// What a variable can hold.
template <class T>
concept Variable = Number<T> ||
    (IsTensor<T>::value&& requires { requires Number<typename T::Value>; });

/// A variable with the same value on all replicas, which is kept so: weights.
template <Variable T>
class Mirrored {
 public:
  using Value = T;

  Mirrored(Mirrored&&) noexcept = default;
  Mirrored& operator=(Mirrored&&) noexcept = default;
  Mirrored(const Mirrored&) = delete;
  Mirrored& operator=(const Mirrored&) = delete;

  /// This replica's copy. Local; any time.
  const T& read() const noexcept { return value_; }

  /// Sets all copies to `value`, which must be the same bits on all replicas.
  /// Errors   throws comm::AgreedError (70) where it is not, naming the odd rank; the variable is
  ///          then as it was.
  /// Ranks    collective.
  void assign(T value) {
    require_same(value, "the value assigned to a mirrored variable");
    value_ = std::move(value);
  }

  /// Compares the bits of all copies.
  /// Errors   throws comm::AgreedError (70) on every rank where they differ, naming the odd rank.
  /// Ranks    collective.
  void verify() const { require_same(value_, "a mirrored variable"); }

 private:
  friend class Strategy;
  friend struct MirroredTest;

  Mirrored(comm::Communicator& comm, T value) : comm_(&comm), value_(std::move(value)) {}

  void require_same(const T& value, const char* what) const {
    std::string packed;
    if constexpr (Number<T>) {
      packed = exchange::pack({}, &value, sizeof(value));
    } else {
      packed = exchange::pack(value.shape(), value.values().data(), value.values().size_bytes());
    }
    comm::require_equal(*comm_, what, {{"hash of its bits", exchange::bits_of(packed)}},
                        "look for a replica that computed it alone, or for faulty memory",
                        ExitCode::invariant);
  }

  comm::Communicator* comm_;
  T value_;
};

/// A number that each replica accumulates for itself, and that is put together when it is read:
/// sums of losses, counts.
template <Number T>
class SyncOnRead {
 public:
  using Value = T;

  SyncOnRead(SyncOnRead&&) noexcept = default;
  SyncOnRead& operator=(SyncOnRead&&) noexcept = default;
  SyncOnRead(const SyncOnRead&) = delete;
  SyncOnRead& operator=(const SyncOnRead&) = delete;

  /// To this replica's component. Local.
  void add(T amount) noexcept { value_ = static_cast<T>(value_ + amount); }

  /// This replica's component becomes 0. Local.
  void reset() noexcept { value_ = 0; }

  /// The sum or the mean of the components, the same on every replica; added in rank order, in
  /// double or in whole numbers that wrap around. A mean over examples is the quotient of two sums.
  /// Ranks    collective.
  T read() const {
    using Wide = exchange::Wide<T>;
    const auto sum = exchange::add_up(*comm_, Tensor<Wide>(static_cast<Wide>(value_)));
    return exchange::narrowed<T>(sum, op_ == ReduceOp::mean ? comm_->size() : 1).item();
  }

 private:
  friend class Strategy;

  SyncOnRead(comm::Communicator& comm, ReduceOp op) : comm_(&comm), op_(op) {
    exchange::require_divisible<T>(op);
  }

  comm::Communicator* comm_;
  ReduceOp op_;
  T value_ = 0;
};

}  // namespace lockstep

// Values that live on replicas. None of them is made by hand: a Strategy does.
//
// Every replica runs the same program on a rank of its own and holds its own component.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/distribute/tensor.hpp"

namespace lockstep {
// Tensors of all replicas, put together.

enum class ReduceOp { sum, mean };

namespace exchange {

/// What sums are taken in: double, or whole numbers that wrap around.
template <Number T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;

/// The lengths of a tensor's axes and its bytes, as text of any bytes; and the way back.
std::string pack(const Shape& shape, const void* values, std::size_t bytes);
Shape unpack_shape(const std::string& packed);
const char* unpack_values(const std::string& packed);

/// A tensor seen from one axis: [outer, length, inner].
struct AxisView {
  std::size_t outer = 1;
  std::size_t length = 0;
  std::size_t inner = 1;
};
AxisView view_axis(const Shape& shape, std::size_t axis);

/// Throws comm::AgreedError (2); every rank must find the same.
[[noreturn]] void refuse(const std::string& problem, const std::string& remedy);

/// Throws unless all shapes are equal but on `axis`; all ranks hold the same shapes.
void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis);

/// Every rank's tensor in rank order. Collective.
template <Number T>
std::vector<Tensor<T>> all_tensors(comm::Communicator& comm, const Tensor<T>& mine) {
  std::vector<Tensor<T>> all;
  const auto values = mine.values();
  for (const auto& packed :
       comm::gather_text(comm, pack(mine.shape(), values.data(), values.size_bytes()))) {
    Shape shape = unpack_shape(packed);
    std::vector<T> copy(elements_of(shape));
    if (!copy.empty()) std::memcpy(copy.data(), unpack_values(packed), copy.size() * sizeof(T));
    all.emplace_back(std::move(shape), std::move(copy));
  }
  return all;
}

/// Those that hold values; where none does, the first.
template <class T>
void drop_empty(std::vector<Tensor<T>>& all) {
  const Tensor<T> first = all.front();
  std::erase_if(all, [](const auto& tensor) { return tensor.values().empty(); });
  if (all.empty()) all.push_back(first);
}

template <class T>
void require_alike(const std::vector<Tensor<T>>& all, std::optional<std::size_t> axis) {
  std::vector<Shape> shapes;
  shapes.reserve(all.size());
  for (const auto& tensor : all) shapes.push_back(tensor.shape());
  require_alike(shapes, axis);
}

/// Sums along `axis`, which goes; each sum in order.
template <Number T>
Tensor<Wide<T>> sum_along(const Tensor<T>& tensor, std::size_t axis) {
  const AxisView view = view_axis(tensor.shape(), axis);
  std::vector<Wide<T>> sums(view.outer * view.inner);
  auto value = tensor.values().begin();
  for (std::size_t o = 0; o < view.outer; ++o) {
    for (std::size_t l = 0; l < view.length; ++l) {
      for (std::size_t i = 0; i < view.inner; ++i) {
        sums[o * view.inner + i] += static_cast<Wide<T>>(*value++);
      }
    }
  }
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  return {std::move(shape), std::move(sums)};
}

template <Number T>
Tensor<T> narrowed(const Tensor<Wide<T>>& sums, double divisor) {
  return sums.map([&](Wide<T> sum) {
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(sum / divisor);
    return static_cast<T>(sum);
  });
}

/// The sums of all ranks' tensors in rank order, in double or whole numbers. Collective.
template <Number T>
Tensor<T> add_up(comm::Communicator& comm, const Tensor<T>& mine) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  require_alike(all, std::nullopt);
  Tensor<T> total = std::move(all.front());
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t v = 0; v < total.values().size(); ++v) {
      total.values()[v] += all[i].values()[v];
    }
  }
  return total;
}

template <Number T>
void require_divisible(ReduceOp op) {
  if (op == ReduceOp::sum || std::is_floating_point_v<T>) return;
  refuse("a mean of whole numbers would be rounded", "map them to double first");
}

/// Over the replicas and along `axis`. Collective.
template <Number T>
Tensor<T> reduce_along(comm::Communicator& comm, ReduceOp op, const Tensor<T>& mine,
                       std::size_t axis) {
  require_divisible<T>(op);
  Tensor<Wide<T>> sums;
  std::uint64_t count = 0;
  comm::together(comm, [&] {
    if (mine.values().empty()) return;
    sums = sum_along(mine, axis);
    count = view_axis(mine.shape(), axis).length;
  });
  comm.all_reduce(std::span(&count, 1));
  if (op == ReduceOp::mean && count == 0) {
    refuse("the mean of no values", "reduce a batch that holds an example");
  }
  if (count == 0) return narrowed<T>(Tensor<Wide<T>>(Wide<T>{}), 1);
  return narrowed<T>(add_up(comm, sums), op == ReduceOp::mean ? static_cast<double>(count) : 1);
}

/// Over the replicas, value by value. Collective.
template <Number T>
Tensor<T> reduce_values(comm::Communicator& comm, ReduceOp op, Tensor<T> mine) {
  require_divisible<T>(op);
  comm::require_equal(comm, "the value to be reduced", {{"shape", to_text(mine.shape())}},
                      "reduce values of one shape, or along axis 0");
  if constexpr (std::is_floating_point_v<T> && sizeof(T) <= sizeof(double)) {
    comm.all_reduce(mine.values());
    if (op == ReduceOp::sum) return mine;
    return mine.map([&](T sum) { return sum / static_cast<T>(comm.size()); });
  } else {
    auto wide = mine.map([](T value) { return static_cast<std::uint64_t>(value); });
    comm.all_reduce(wide.values());
    return wide.map([](std::uint64_t sum) { return static_cast<T>(sum); });
  }
}

/// One behind the other along `axis`, in rank order. Collective.
template <Number T>
Tensor<T> gather_along(comm::Communicator& comm, const Tensor<T>& mine, std::size_t axis) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  require_alike(all, axis);
  Shape shape = all.front().shape();
  shape[axis] = 0;
  for (const auto& tensor : all) shape[axis] += tensor.shape()[axis];
  std::vector<T> values;
  values.reserve(elements_of(shape));
  const std::size_t outer = view_axis(shape, axis).outer;
  for (std::size_t o = 0; o < outer; ++o) {
    for (const auto& tensor : all) {
      const auto run = tensor.values().size() / outer;
      const auto part = tensor.values().subspan(o * run, run);
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  return {std::move(shape), std::move(values)};
}

/// The hash of the bits, in words. Local.
std::string bits_of(const std::string& packed);

}  // namespace exchange

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

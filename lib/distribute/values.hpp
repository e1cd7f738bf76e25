// Values with a component on each replica: per-replica, mirrored and sync-on-read values, and the
// collectives that combine the components. Created by a Strategy.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/distribute/tensor_math.hpp"

namespace lockstep {

/// How the components of replicas are combined.
enum class ReduceOp { sum, mean };

namespace collective {
using sharding::Wide;

/// The element types that ranks can send.
template <class T>
concept Sendable = Number<T> || std::same_as<T, std::string>;

/// A tensor's shape and values as a string of bytes; take_shape() reads the shape back, unpack()
/// the tensor.
std::string pack(const Shape& shape, const void* values, std::size_t bytes);
template <Sendable T>
std::string pack(const Tensor<T>& tensor) {
  const auto values = tensor.values();
  if constexpr (Number<T>) {
    return pack(tensor.shape(), values.data(), values.size_bytes());
  } else {
    std::string packed = pack(tensor.shape(), nullptr, 0);
    for (const T& text : values) packed += pack({text.size()}, text.data(), text.size());
    return packed;
  }
}

/// The hash of a tensor's shape and bits, as hexadecimal text. Local.
template <Number T>
std::string bits_of(const Tensor<T>& tensor) {
  return to_hex(hash_of(pack(tensor)));
}

/// Throws comm::AgreedError (2). Every rank must call it, with the same text.
[[noreturn]] void refuse(const std::string& problem, const std::string& remedy);

/// Throws comm::AgreedError (2) unless all shapes are equal, `axis` excepted. Collective, with the
/// same shapes on all ranks.
void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis);

/// The front of `rest`, which it is removed from: a packed shape; a text packed as its length.
Shape take_shape(std::string_view& rest);
std::string take_text(std::string_view& rest);

/// The tensor that pack() made the bytes of.
template <Sendable T>
Tensor<T> unpack(std::string_view bytes) {
  Shape shape = take_shape(bytes);
  std::vector<T> values(elements_of(shape));
  if constexpr (Number<T>) {
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  } else {
    for (T& text : values) text = take_text(bytes);
  }
  return {std::move(shape), std::move(values)};
}

/// The tensors of all ranks, in rank order. Collective.
template <Sendable T>
std::vector<Tensor<T>> all_tensors(comm::Communicator& comm, const Tensor<T>& mine) {
  std::vector<Tensor<T>> all;
  for (const auto& theirs : comm::gather_text(comm, pack(mine))) {
    all.push_back(unpack<T>(theirs));
  }
  return all;
}

/// The tensor of rank 0, on every rank; those of others are ignored. Collective.
template <Number T>
Tensor<T> broadcast_tensor(comm::Communicator& comm, const Tensor<T>& mine) {
  return unpack<T>(comm::broadcast_text(comm, comm.rank() == 0 ? pack(mine) : std::string()));
}

/// Removes the tensors without values; if none has values, those with fewer axes than another: a
/// replica that never had an example may not know the shape of its batches.
template <class T>
void drop_empty(std::vector<Tensor<T>>& all) {
  const auto has_values = [](const auto& tensor) { return !tensor.values().empty(); };
  if (std::any_of(all.begin(), all.end(), has_values)) {
    std::erase_if(all, std::not_fn(has_values));
    return;
  }
  std::size_t axes = 0;
  for (const auto& tensor : all) axes = std::max(axes, tensor.shape().size());
  std::erase_if(all, [axes](const auto& tensor) { return tensor.shape().size() < axes; });
}

template <class T>
void require_alike(const std::vector<Tensor<T>>& all, std::optional<std::size_t> axis) {
  std::vector<Shape> shapes;
  shapes.reserve(all.size());
  for (const auto& tensor : all) shapes.push_back(tensor.shape());
  require_alike(shapes, axis);
}

/// The sum of tensors, at least one, in order. Collective, with the same tensors on all ranks.
template <Number T>
Tensor<T> add_up(std::vector<Tensor<T>> all) {
  require_alike(all, std::nullopt);
  Tensor<T> total = std::move(all.front());
  const auto sums = total.values();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto addends = std::as_const(all[i]).values();
    std::transform(sums.begin(), sums.end(), addends.begin(), sums.begin(), std::plus<T>());
  }
  return total;
}

/// Throws comm::AgreedError (2) for the mean of an integer type.
template <Number T>
void require_divisible(ReduceOp op) {
  if (op == ReduceOp::sum || std::is_floating_point_v<T>) return;
  refuse("a mean of whole numbers would be rounded", "map them to double first");
}

/// reduce_along() where no replica has a value. Collective.
template <Number T>
Tensor<T> reduce_no_values(comm::Communicator& comm, ReduceOp op, const Tensor<T>& mine,
                           std::ptrdiff_t wanted) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  const std::size_t axis = sharding::axis_from_0(wanted, all.front().shape().size());
  require_alike(all, axis);
  const auto zeros = sharding::sum_along(all.front(), axis);
  if (op == ReduceOp::mean && !zeros.values().empty()) {
    refuse("the mean of no values", "reduce a batch that holds an example");
  }
  return sharding::narrowed<T>(zeros, 1);
}

/// The reduction over all replicas and along `axis`. Collective.
template <Number T>
Tensor<T> reduce_along(comm::Communicator& comm, ReduceOp op, const Tensor<T>& mine,
                       std::ptrdiff_t wanted) {
  require_divisible<T>(op);
  Tensor<Wide<T>> sums;
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(comm.size()));
  comm::together(comm, [&] {
    if (mine.values().empty()) return;  // without examples
    const std::size_t axis = sharding::axis_from_0(wanted, mine.shape().size());
    sums = sharding::sum_along(mine, axis);
    counts[static_cast<std::size_t>(comm.rank())] = sharding::view_axis(mine.shape(), axis).length;
  });
  comm.all_gather(std::span(counts));
  const std::uint64_t count = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  if (count == 0) return reduce_no_values(comm, op, mine, wanted);
  auto all = all_tensors(comm, sums);
  auto each = counts.begin();
  std::erase_if(all, [&](const auto&) { return *each++ == 0; });
  return sharding::narrowed<T>(add_up(std::move(all)),
                               op == ReduceOp::mean ? static_cast<double>(count) : 1);
}

/// The element-wise reduction over all replicas. Collective.
template <Number T>
Tensor<T> reduce_values(comm::Communicator& comm, ReduceOp op, Tensor<T> mine) {
  require_divisible<T>(op);
  comm::require_equal(comm, "the value to be reduced", {{"shape", to_text(mine.shape())}},
                      "reduce values of one shape, or along axis 0");
  if constexpr (std::is_floating_point_v<T>) {
    comm.all_reduce(mine.values());
    if (op == ReduceOp::sum) return mine;
    return mine.map([&](T sum) { return sum / static_cast<T>(comm.size()); });
  } else {
    auto wide = mine.map([](T value) { return static_cast<std::uint64_t>(value); });
    comm.all_reduce(wide.values());
    return wide.map([](std::uint64_t sum) { return static_cast<T>(sum); });
  }
}

/// All replicas' tensors concatenated along `axis` in rank order. Collective.
template <Sendable T>
Tensor<T> gather_along(comm::Communicator& comm, const Tensor<T>& mine, std::ptrdiff_t wanted) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  const std::size_t axis = sharding::axis_from_0(wanted, all.front().shape().size());
  require_alike(all, axis);
  return sharding::concatenate(all, axis);
}

/// The shapes of a batch's parts, and the names of its maps; and a batch of 0 examples like it.
template <BatchLike T>
std::string pack_structure(const T& batch) {
  std::string packed;
  if constexpr (NamedParts<T>) {
    packed = pack({batch.size()}, nullptr, 0);
    for (const auto& [name, part] : batch) {
      packed += pack({name.size()}, name.data(), name.size()) + pack_structure(part);
    }
  } else if constexpr (Nested<T>) {
    structure::each_part(batch, [&](const auto& part) { packed += pack_structure(part); });
  } else if constexpr (OneOfTensors<T>) {
    packed = pack({batch.index()}, nullptr, 0);
    std::visit([&](const auto& tensor) { packed += pack_structure(tensor); }, batch);
  } else {
    packed = pack(batch.shape(), nullptr, 0);
  }
  return packed;
}

template <BatchLike T>
T unpack_structure(std::string_view& rest) {
  if constexpr (NamedParts<T>) {
    T batch;
    for (std::size_t parts = take_shape(rest).front(); parts > 0; --parts) {
      std::string name = take_text(rest);
      batch.emplace(std::move(name), unpack_structure<typename T::mapped_type>(rest));
    }
    return batch;
  } else if constexpr (Nested<T>) {
    T batch;
    structure::each_part(
        batch, [&](auto& part) { part = unpack_structure<std::decay_t<decltype(part)>>(rest); });
    return batch;
  } else if constexpr (OneOfTensors<T>) {
    const std::size_t held = take_shape(rest).front();
    T batch;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto take = [&]<std::size_t K>() {
        if (K == held) batch = unpack_structure<std::variant_alternative_t<K, T>>(rest);
      };
      (take.template operator()<I>(), ...);
    }
    (std::make_index_sequence<std::variant_size_v<T>>());
    return batch;
  } else {
    Shape shape = take_shape(rest);
    shape.front() = 0;
    return T(std::move(shape), {});
  }
}

}  // namespace collective

class Strategy;
template <BatchLike T>
class DistributedIterator;
namespace train {
class Replica;
}

/// One value per replica; values may differ. Returned by iteration and Strategy::run.
///
/// Argument of Strategy::reduce, gather, local_results and run. With a pair or tuple on each
/// replica, `auto [x, y] = value` copies its parts to per-replica values x and y.
template <class T>
class PerReplica {
 public:
  using Value = T;

  /// Part I of each replica's pair or tuple, copied. Local.
  template <std::size_t I>
  auto get() const {
    return PerReplica<std::tuple_element_t<I, T>>(std::get<I>(value_));
  }

 private:
  friend class Strategy;
  friend class train::Replica;
  template <class U>
  friend class PerReplica;
  template <BatchLike U>
  friend class DistributedIterator;

  explicit PerReplica(T value) : value_(std::move(value)) {}

  T value_;                            // of this replica
  std::optional<std::uint64_t> step_;  // in the data set's plan; of a batch of an iteration
};

/// What reduce and gather take from each replica: a number, a tensor, a variant of tensors, or a
/// pair, tuple or map of such values.
template <class T>
struct IsCombinablePart : std::bool_constant<Number<T> || OneOfTensors<T>> {};
template <class T>
struct IsCombinablePart<Tensor<T>> : std::bool_constant<collective::Sendable<T>> {};
template <class T>
using IsCombinable = EachPart<IsCombinablePart, T>;

/// A per-replica value, or a structure of such values.
template <class T>
struct IsPerReplicaPart : std::false_type {};
template <class T>
struct IsPerReplicaPart<PerReplica<T>> : std::true_type {};
template <class T>
using IsPerReplica = EachPart<IsPerReplicaPart, T>;

/// The types that a variable can hold: numbers and tensors of numbers.
template <class T>
concept Variable = Number<T> ||
    (IsTensor<T>::value&& requires { requires Number<typename T::Value>; });

/// A variable with bit-identical copies on all replicas, such as weights.
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
  /// Errors   throws comm::AgreedError (70) if it is not, naming the rank that differs, and (2) for
  ///          a value of another shape; the variable is then unchanged.
  /// Ranks    collective.
  void assign(T value) {
    require_same(value, "the value assigned to a mirrored variable");
    require_shape_of(value, "a value");
    value_ = std::move(value);
  }

  /// Adds `amount` to all copies, or subtracts it, element by element; integers wrap around. As
  /// assign(): `amount` must be the same bits on all replicas. To add each replica's own amount,
  /// add their sum: Strategy::reduce.
  /// Errors   as assign().
  /// Ranks    collective.
  void assign_add(const T& amount) { combine(amount, sharding::plus<Component>); }
  void assign_sub(const T& amount) { combine(amount, sharding::minus<Component>); }

  /// Compares the bits of all copies.
  /// Errors   throws comm::AgreedError (70) on every rank if they differ, naming the rank.
  /// Ranks    collective.
  void verify() const { require_same(value_, "a mirrored variable"); }

 private:
  friend class Strategy;
  friend struct MirroredTest;

  Mirrored(comm::Communicator& comm, T value) : comm_(&comm), value_(std::move(value)) {}

  struct Itself {
    using Value = T;
  };
  using Component = typename std::conditional_t<Number<T>, Itself, T>::Value;

  template <class Combine>
  void combine(const T& amount, Combine function) {
    require_same(amount, "the amount added to a mirrored variable");
    require_shape_of(amount, "an amount");
    if constexpr (Number<T>) {
      value_ = function(value_, amount);
    } else {
      const auto addends = amount.values();
      const auto values = value_.values();
      std::transform(values.begin(), values.end(), addends.begin(), values.begin(), function);
    }
  }

  /// `value` is the same on all replicas.
  void require_shape_of(const T& value, const std::string& what) const {
    if constexpr (!Number<T>) {
      if (value.shape() == value_.shape()) return;
      collective::refuse(what + " of shape " + to_text(value.shape()) +
                             " for a variable of shape " + to_text(value_.shape()),
                         "give one number for each of the variable");
    }
  }

  void require_same(const T& value, const char* what) const {
    std::string bits;
    if constexpr (Number<T>) {
      bits = collective::bits_of(Tensor<T>(value));
    } else {
      bits = collective::bits_of(value);
    }
    comm::require_equal(*comm_, what, {{"hash of its bits", bits}},
                        "look for a replica that computed it alone, or for faulty memory",
                        ExitCode::invariant);
  }

  comm::Communicator* comm_;
  T value_;
};

/// A number that each replica accumulates locally and that is reduced on read, such as a sum of
/// losses or a count.
template <Number T>
class SyncOnRead {
 public:
  using Value = T;

  SyncOnRead(SyncOnRead&&) noexcept = default;
  SyncOnRead& operator=(SyncOnRead&&) noexcept = default;
  SyncOnRead(const SyncOnRead&) = delete;
  SyncOnRead& operator=(const SyncOnRead&) = delete;

  /// Adds `amount` to this replica's component. Local.
  void add(T amount) noexcept { value_ = sharding::plus(value_, amount); }

  /// Sets this replica's component to 0. Local.
  void reset() noexcept { value_ = 0; }

  /// The sum or the mean of the components, the same on every replica; added in rank order, in
  /// double or in 64-bit integers that wrap around. For a mean over examples, divide two sums.
  /// Ranks    collective.
  T read() const {
    using Wide = collective::Wide<T>;
    const auto sum = collective::add_up(
        collective::all_tensors(*comm_, Tensor<Wide>(static_cast<Wide>(value_))));
    return sharding::narrowed<T>(sum, op_ == ReduceOp::mean ? comm_->size() : 1).item();
  }

 private:
  friend class Strategy;

  SyncOnRead(comm::Communicator& comm, ReduceOp op) : comm_(&comm), op_(op) {
    collective::require_divisible<T>(op);
  }

  comm::Communicator* comm_;
  ReduceOp op_;
  T value_ = 0;
};

}  // namespace lockstep

template <lockstep::Nested T>
struct std::tuple_size<lockstep::PerReplica<T>> : std::tuple_size<T> {};
template <std::size_t I, lockstep::Nested T>
struct std::tuple_element<I, lockstep::PerReplica<T>> {
  using type = lockstep::PerReplica<std::tuple_element_t<I, T>>;
};

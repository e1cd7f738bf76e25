// Synchronous data parallelism: a Strategy distributes data sets, runs functions on all replicas
// and reduces or gathers their results.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/distribute/devices.hpp"
#include "lockstep/distribute/distributed_dataset.hpp"
#include "lockstep/distribute/sources.hpp"

namespace lockstep {

/// The argument of a function that makes one worker's data set. A worker is a rank with one
/// replica.
struct InputContext {
  std::uint64_t num_input_pipelines = 1;   ///< workers
  std::uint64_t input_pipeline_id = 0;     ///< this worker's index
  std::uint64_t num_replicas_in_sync = 1;  ///< of all workers

  /// The batch size of one replica. Throws ConfigError if the global batch does not divide.
  std::uint64_t per_replica_batch_size(std::uint64_t global) const;
};

/// The argument of a function that makes one replica's value.
struct ValueContext {
  std::uint64_t replica_id_in_sync_group = 0;  ///< this replica's index
  std::uint64_t num_replicas_in_sync = 1;
};

/// What Strategy::reduce and gather take: the compiler's errors are sentences for anything else.
template <class T>
struct HoldsCombinable : std::false_type {};
template <class T>
struct HoldsCombinable<PerReplica<T>> : IsCombinable<T> {};
template <Structured T>
struct HoldsCombinable<T> : IsPerReplica<T> {};
template <class Value, class... Axis>
concept TakesAxes = HoldsCombinable<Value>::value && sizeof...(Axis) <= 1 &&
                    (std::is_integral_v<Axis> && ...);

/// Replicas in sync, one on each rank of a communicator.
///
///   Strategy strategy(comm);
///   auto data = strategy.distribute_dataset(range_dataset(24).batch(6));
///   for (auto& batch : data) {
///     auto doubled = strategy.run([](const auto& x) { return twice(x); }, batch);
///     auto total = strategy.reduce(ReduceOp::sum, doubled, 0);
///   }
///
/// There is no scope(): a variable belongs to the strategy whose create_variable made it, data sets
/// and functions to the strategy they are passed to. Code inside `with strategy.scope():` in
/// TensorFlow is written here with `strategy.` before these calls.
///
/// All ranks run the same program; each holds its own component of per-replica values. Functions
/// marked collective are called by all ranks in the same order, with equal data and options.
/// Errors   errors detected on all ranks are comm::AgreedError.
/// Threads  that of the communicator, which must outlive the strategy and the objects it creates.
class Strategy {
 public:
  /// `device`: the name of this replica's device in cluster(). `assignment`: which devices compute
  /// which replica; built from resolve_cluster(comm, device).
  /// Errors   throws the same comm::AgreedError (2) on all ranks: assignments that differ, naming
  ///          the rank; an assignment whose replica r has devices of other ranks than r; a number
  ///          of replicas other than the number of ranks.
  /// Ranks    collective.
  explicit Strategy(comm::Communicator& comm, const std::string& device = "cpu",
                    std::optional<DeviceAssignment> assignment = std::nullopt);
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// The number of replicas, one per rank; and the index of this rank's replica. Local.
  int num_replicas_in_sync() const noexcept { return comm_.size(); }
  int replica_id() const noexcept { return comm_.rank(); }

  /// Hosts, ranks and devices of the job. Local.
  const Cluster& cluster() const noexcept { return cluster_; }

  /// The assignment passed to the constructor. Local.
  const std::optional<DeviceAssignment>& device_assignment() const noexcept { return assignment_; }

  /// Returns `value` unchanged. A rank computes with all of its devices, so this only checks the id
  /// of the logical device. Local.
  /// Errors   throws ConfigError unless the id is below the number of a replica's partitions: that
  ///          of the device assignment, 1 without one.
  template <class T>
  T assign_to_logical_device(T value, int logical_device_id) const {
    require_logical_device(logical_device_id);
    return value;
  }

  /// Distributes a data set that is batched by the global batch size. Without batch, each element
  /// is a batch of its axis 0: an element [4] on two replicas becomes [2] and [2], as in
  /// tf.distribute.
  ///
  /// DATA   each batch is cut into one piece per replica, in order (data::piece_of).
  /// FILE   each replica reads its own files (Pass); each of its batches is cut into as many pieces
  ///        as there are replicas, and a step takes one piece.
  /// OFF    as FILE, but each replica reads all data.
  /// AUTO   see data::choose_policy.
  ///
  /// Replica 0 reports the policy's warning (base/errors.hpp); run_replicas prints it.
  ///
  /// If the data set ends in batch (and prefetch) and its elements allow random access, it follows
  /// a data::Plan and each rank reads its own examples only. Batches that are transformed further
  /// are read whole by every rank that cuts them.
  /// Errors   throws comm::AgreedError (2): data or options that data::Plan or data::choose_policy
  ///          reject; `balanced` with DATA; ranks with different data or options. Functions, and
  ///          elements of from_elements and generators, are not compared. The same (65) for files
  ///          that cannot be read.
  /// Ranks    collective.
  template <BatchLike T>
  DistributedDataset<T> distribute_dataset(const Dataset<T>& dataset,
                                           const DistributeOptions& options = {}) {
    return DistributedDataset<T>(pieces::distribute(comm_, pieces::any_dataset(dataset), options));
  }

  template <class T>
  auto distribute_dataset(const Dataset<T>& /*dataset*/,
                          const DistributeOptions& /*options*/ = {}) {
    static_assert(BatchLike<T>,
                  "distribute_dataset: the elements are not tensors with examples along axis 0; "
                  "call batch(global batch size) before");
  }

  /// Calls `make(InputContext)` once for this worker's data set. `make` must batch and shard the
  /// data, and must not communicate; no prefetch is added. Leaves are automatic, of at most
  /// data::float32_leaf examples in any precision.
  ///
  /// Errors   throws the same comm::AgreedError on all ranks if `make` fails on one.
  /// Ranks    collective. Sizes are compared; if one is unknown, each step costs a message.
  template <class Make>
  auto distribute_datasets_from_function(Make make) {
    static_assert(std::is_invocable_v<Make, InputContext>,
                  "distribute_datasets_from_function: the function does not take an InputContext");
    using Made = std::decay_t<std::invoke_result_t<Make, InputContext>>;
    static_assert(
        requires { requires BatchLike<typename Made::Element>; },
        "distribute_datasets_from_function: the function does not return a Dataset of "
        "batches; call batch(per-replica batch size) in it");
    using T = typename Made::Element;
    return DistributedDataset<T>(
        pieces::distribute_made(comm_, [&] { return pieces::any_dataset(make(input_context())); }));
  }

  /// The per-replica value of `make(ValueContext)`. Local.
  template <class Make>
  auto distribute_values_from_function(Make make) const {
    static_assert(std::is_invocable_v<Make, ValueContext>,
                  "distribute_values_from_function: the function does not take a ValueContext");
    using T = std::decay_t<std::invoke_result_t<Make, ValueContext>>;
    return PerReplica<T>(make(ValueContext{static_cast<std::uint64_t>(comm_.rank()),
                                           static_cast<std::uint64_t>(comm_.size())}));
  }

  /// Calls `function(arguments...)` on every replica. PerReplica and Mirrored arguments, also
  /// inside pairs, tuples and maps, are replaced by this replica's component; others are passed
  /// unchanged. If the function does not take the arguments so, each pair and tuple among them is
  /// passed as its parts: run(f, pair, x) calls f(pair, x) or f(pair.first, pair.second, x).
  ///
  /// Returns the results as a PerReplica, or nothing if the function returns nothing.
  /// Ranks    local, unless the function communicates.
  template <class Function, class... Arguments>
  auto run(Function&& function, const Arguments&... arguments) const {
    using Result = decltype(apply(function, open(arguments)...));
    if constexpr (std::is_void_v<Result>) {
      apply(function, open(arguments)...);
    } else {
      return PerReplica<std::decay_t<Result>>(apply(function, open(arguments)...));
    }
  }

  /// The element-wise sum or mean over the replicas, the same on every replica; the order of the
  /// sums is that of Communicator::all_reduce.
  /// Errors   throws comm::AgreedError (2) for different shapes and for the mean of an integer
  ///          type.
  /// Ranks    collective.
  template <Number T>
  Tensor<T> reduce(ReduceOp op, const PerReplica<Tensor<T>>& value) const {
    return collective::reduce_values(comm_, op, value.value_);
  }
  template <Number T>
  T reduce(ReduceOp op, const PerReplica<T>& value) const {
    return collective::reduce_values(comm_, op, Tensor<T>(value.value_)).item();
  }

  /// The reduction over all replicas and along `axis` (-1: the last one), which is removed. Every
  /// example counts once, also in the mean; replicas without examples are skipped. Each replica
  /// sums in double in the order of the indices; the replicas' sums are added by rank and rounded
  /// once.
  /// Errors   throws comm::AgreedError (2): the mean of no values; an axis that does not exist;
  ///          different shapes.
  /// Ranks    collective.
  template <Number T>
  Tensor<T> reduce(ReduceOp op, const PerReplica<Tensor<T>>& value, std::ptrdiff_t axis) const {
    return collective::reduce_along(comm_, op, value.value_, axis);
  }

  /// The same of a variant of tensors, which has the same type on every replica.
  /// Errors   also throws comm::AgreedError (2) for different types, and for texts.
  template <OneOfTensors T, class... Axis>
  T reduce(ReduceOp op, const PerReplica<T>& value, Axis... axis) const {
    return of_one_type(value.value_, [&]<class Value>(const Tensor<Value>& tensor) -> T {
      if constexpr (Number<Value>) return reduce(op, one(tensor), axis...);
      collective::refuse("a reduction of texts", "reduce the numbers alone, or gather the texts");
    });
  }

  /// The reduction of every part of a pair, tuple or map: of a per-replica value, or of a structure
  /// of such values. Errors and ranks as above; names of maps must be the same on all ranks.
  template <Structured T, class... Axis>
  requires IsCombinable<T>::value auto reduce(ReduceOp op, const PerReplica<T>& value,
                                              Axis... axis) const {
    return parts(value.value_, [&](const auto& part) { return reduce(op, one(part), axis...); });
  }
  template <Structured T, class... Axis>
  requires IsPerReplica<T>::value auto reduce(ReduceOp op, const T& values, Axis... axis) const {
    return parts(values, [&](const auto& part) { return reduce(op, part, axis...); });
  }

  /// All replicas' values concatenated along `axis` in rank order, the same on every replica.
  /// Replicas without values are skipped.
  /// Errors   throws comm::AgreedError (2) if the other axes differ.
  /// Ranks    collective.
  template <collective::Sendable T>
  Tensor<T> gather(const PerReplica<Tensor<T>>& value, std::ptrdiff_t axis) const {
    return collective::gather_along(comm_, value.value_, axis);
  }

  /// The same of a variant of tensors, which has the same type on every replica.
  template <OneOfTensors T>
  T gather(const PerReplica<T>& value, std::ptrdiff_t axis) const {
    return of_one_type(value.value_,
                       [&](const auto& tensor) -> T { return gather(one(tensor), axis); });
  }

  /// The same of every part of a pair, tuple or map: see reduce.
  template <Structured T>
  requires IsCombinable<T>::value auto gather(const PerReplica<T>& value,
                                              std::ptrdiff_t axis) const {
    return parts(value.value_, [&](const auto& part) { return gather(one(part), axis); });
  }
  template <Structured T>
  requires IsPerReplica<T>::value auto gather(const T& values, std::ptrdiff_t axis) const {
    return parts(values, [&](const auto& part) { return gather(part, axis); });
  }

  // Calls that do not compile, with a sentence.
  template <class Op, class Value, class... Axis>
  requires(!std::same_as<Op, ReduceOp> ||
           !TakesAxes<Value, Axis...>) auto reduce(const Op& /*op*/, const Value& value,
                                                   const Axis&... /*axis*/) const {
    static_assert(std::same_as<Op, ReduceOp>,
                  "reduce: the first argument is ReduceOp::sum or ReduceOp::mean");
    require_per_replica<Value, Axis...>();
    return value;
  }
  template <class Value, class... Axis>
  requires(sizeof...(Axis) != 1 ||
           !TakesAxes<Value, Axis...>) auto gather(const Value& value,
                                                   const Axis&... /*axis*/) const {
    static_assert(sizeof...(Axis) == 1, "gather: give the value and an axis, such as 0");
    require_per_replica<Value, Axis...>();
    return value;
  }

  /// The ranks of the replicas, for other collectives among them. Local.
  comm::Communicator& communicator() const noexcept { return comm_; }

  /// The components in this process: this replica's only. Those of a structure of per-replica
  /// values are structures of components. Local.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return {value.value_};
  }
  template <Structured T>
  auto local_results(const T& values) const {
    return std::vector{open(values)};
  }

  /// The components as text, "{0: [5], 1: [6]}", on every rank. Collective.
  template <class T>
  std::string describe(const PerReplica<T>& value) const {
    return describe_texts(to_text(value.value_));
  }

  /// A variable that starts with the value of replica 0 on all replicas. Collective.
  template <Variable T>
  Mirrored<T> create_variable(T initial) const {
    if constexpr (Number<T>) {
      return {comm_, collective::broadcast_tensor(comm_, Tensor<T>(initial)).item()};
    } else {
      return {comm_, collective::broadcast_tensor(comm_, initial)};
    }
  }

  /// A number, initially 0, that each replica accumulates locally. Throws comm::AgreedError (2) for
  /// the mean of an integer type.
  template <Number T>
  SyncOnRead<T> create_metric(ReduceOp op) const {
    return {comm_, op};
  }

  /// The context of this worker. Local.
  InputContext input_context() const noexcept;

 private:
  template <class T>
  static const T& open(const PerReplica<T>& value) noexcept {
    return value.value_;
  }
  template <Variable T>
  static const T& open(const Mirrored<T>& value) noexcept {
    return value.value_;
  }
  template <Structured T>
  static auto open(const T& value) {
    return structure::with_parts(value, [](const auto& part) { return open(part); });
  }
  template <class T>
  static const T& open(const T& value) noexcept {
    return value;
  }

  template <class Function, class... Values>
  static decltype(auto) apply(Function& function, const Values&... values) {
    if constexpr (std::is_invocable_v<Function&, const Values&...>) {
      return std::invoke(function, values...);
    } else {
      using Parts = decltype(std::tuple_cat(flat(values)...));
      static_assert(structure::takes_parts<Function&, Parts>(),
                    "run: the function does not take each replica's arguments (as const references)"
                    ", nor the parts of their pairs and tuples");
      if constexpr (structure::takes_parts<Function&, Parts>()) {
        return std::apply(function, std::tuple_cat(flat(values)...));
      }
    }
  }

  /// The parts of a pair or a tuple, or the value itself, by reference.
  template <class T>
  static auto flat(const T& value) noexcept {
    if constexpr (Nested<T>) {
      return std::apply([](const auto&... parts) { return std::tie(parts...); }, value);
    } else {
      return std::tie(value);
    }
  }

  template <class Value, class... Axis>
  static constexpr void require_per_replica() {
    static_assert(
        IsPerReplica<Value>::value,
        "reduce, gather: the value is not a per-replica value, such as a result of run or a "
        "batch of a distributed data set");
    static_assert(!IsPerReplica<Value>::value || HoldsCombinable<Value>::value,
                  "reduce, gather: a replica's value is not a number, tensor of numbers, or pair, "
                  "tuple or map of these");
    static_assert(sizeof...(Axis) <= 1 && (std::is_integral_v<Axis> && ...),
                  "reduce, gather: the axis is not a whole number");
  }

  /// `combine` of the tensor that a variant holds, which is of one type on all ranks. Collective.
  template <OneOfTensors T, class Combine>
  T of_one_type(const T& value, Combine combine) const {
    const auto name = [](const auto& tensor) {
      return type_name<typename std::decay_t<decltype(tensor)>::Value>();
    };
    comm::require_equal(comm_, "the value of a replica", {{"type", std::visit(name, value)}},
                        "give values of one type");
    return std::visit(combine, value);
  }

  template <class T>
  static PerReplica<T> one(const T& value) {
    return PerReplica<T>(value);
  }

  /// `combine(part)` of every part, on all ranks alike. Collective.
  template <Structured T, class Combine>
  auto parts(const T& value, Combine combine) const {
    if constexpr (NamedParts<T>) {
      comm::require_equal(comm_, "a map of values", {{"names", structure::names_of(value)}},
                          "give the map the same names on every rank");
    }
    return structure::with_parts(value, combine);
  }

  std::string describe_texts(const std::string& mine) const;
  void require_logical_device(int id) const;

  comm::Communicator& comm_;
  Cluster cluster_;
  std::optional<DeviceAssignment> assignment_;
};

/// Outputs in global order, sorted by their elements' indices; the same on every replica. Merge the
/// results of several steps with std::map::merge.
///
/// Shapes   `indices` [b] and `values` [b]; b may differ between replicas. If an index occurs more
///          than once (policy OFF), the first in rank order is kept.
/// Errors   throws comm::AgreedError (2) unless each replica has one value per index.
/// Ranks    collective.
template <std::integral Index, Number T>
std::map<Index, T> in_global_order(const Strategy& strategy,
                                   const PerReplica<Tensor<Index>>& indices,
                                   const PerReplica<Tensor<T>>& values) {
  comm::together(strategy.communicator(), [&] {
    const Shape of_indices = strategy.local_results(indices).front().shape();
    const Shape of_values = strategy.local_results(values).front().shape();
    if (of_indices.size() == 1 && of_indices == of_values) return;
    throw ConfigError(
        "indices of shape " + to_text(of_indices) + " for values of shape " + to_text(of_values),
        "give one value for each index");
  });
  const auto all_indices = strategy.gather(indices, 0);
  const auto all_values = strategy.gather(values, 0);
  std::map<Index, T> ordered;
  for (std::size_t i = 0; i < all_indices.values().size(); ++i) {
    ordered.emplace(all_indices.values()[i], all_values.values()[i]);
  }
  return ordered;
}

}  // namespace lockstep

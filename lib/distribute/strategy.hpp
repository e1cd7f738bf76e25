// Synchronous data parallelism as a library: data sets, values and functions over replicas.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/distribute/devices.hpp"
#include "lib/distribute/distributed_dataset.hpp"
#include "lib/distribute/sources.hpp"

namespace lockstep {

/// What a function that makes a worker's data set is told. A worker is a rank, with one replica.
struct InputContext {
  std::uint64_t num_input_pipelines = 1;   ///< workers
  std::uint64_t input_pipeline_id = 0;     ///< this worker among them
  std::uint64_t num_replicas_in_sync = 1;  ///< of all workers together

  /// Examples of one replica's batch. Throws ConfigError where the global batch does not divide.
  std::uint64_t per_replica_batch_size(std::uint64_t global) const;
};

/// What a function that makes a replica's value is told.
struct ValueContext {
  std::uint64_t replica_id_in_sync_group = 0;  ///< this replica among all
  std::uint64_t num_replicas_in_sync = 1;
};

/// Replicas in sync, one on each rank of a communicator.
///
///   Strategy strategy(comm);
///   auto data = strategy.distribute_dataset(range(24).batch(6));
///   for (auto& batch : data) {
///     auto doubled = strategy.run([](const auto& x) { return twice(x); }, batch);
///     auto total = strategy.reduce(ReduceOp::sum, doubled, 0);
///   }
///
/// All ranks run this same program; each holds its own component of what is per replica. What is
/// marked collective is called by all of them, in the same order, with data and options alike.
/// Errors that all ranks share are comm::AgreedError. One thread: that of the communicator, which
/// must outlive the strategy and everything it made.
class Strategy {
 public:
  /// `device`: what this replica computes on, as cluster() shows it. Collective.
  /// `assignment`: which devices compute which replica; built from resolve_cluster(comm, device).
  /// Errors   throws the same comm::AgreedError (2) on all ranks: assignments that differ, naming
  ///          the odd rank; an assignment whose replica r has devices of other ranks than r, or
  ///          whose replicas are not as many as the ranks.
  explicit Strategy(comm::Communicator& comm, const std::string& device = "cpu",
                    std::optional<DeviceAssignment> assignment = std::nullopt);
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// Replicas, one on each rank; and this rank's among them. Local.
  int num_replicas_in_sync() const noexcept { return comm_.size(); }
  int replica_id() const noexcept { return comm_.rank(); }

  /// Hosts, ranks and devices of the job. Local.
  const Cluster& cluster() const noexcept { return cluster_; }

  /// As given. Local.
  const std::optional<DeviceAssignment>& device_assignment() const noexcept { return assignment_; }

  /// `value`, as it is. A rank computes with all of its devices, so that this names the logical
  /// device that a value belongs to and moves nothing. Local.
  /// Errors   throws ConfigError for an id that does not fit the partitions of a replica: those of
  ///          the device assignment, 1 without it.
  template <class T>
  T assign_to_logical_device(T value, int logical_device_id) const {
    require_logical_device(logical_device_id);
    return value;
  }

  /// Shares out a data set that is batched by the global batch size.
  ///
  /// DATA   each batch is cut into pieces, one a replica, in order (data::piece_of).
  /// FILE   each replica's pass reads its own files (Pass); each of its batches is cut into as many
  ///        pieces as there are replicas, and a step takes one.
  /// OFF    the same with all data for everybody.
  /// AUTO   see data::choose_policy; its warning is the result's.
  ///
  /// Where the data set ends in batch (and prefetch) behind elements that can be reached at once,
  /// all of it follows a data::Plan, and a rank reads its own examples alone. Batches that were
  /// transformed are read whole by every rank that cuts them.
  /// Errors   throws comm::AgreedError (2): see agree_on_share.
  /// Ranks    collective.
  template <BatchLike T>
  DistributedDataset<T> distribute_dataset(const Dataset<T>& dataset,
                                           const DistributeOptions& options = {}) {
    const auto share = agree_on_share(comm_, dataset.facts(), options, [&](const Pass& pass) {
      return dataset.open_plain(pass)->examples();
    });
    using Ending = typename DistributedIterator<T>::Ending;
    const std::size_t automatic = std::max<std::size_t>(1, dataset.facts().prefetch);
    return {comm_,
            {.open = [dataset,
                      share](std::uint64_t epoch) { return pieces::of(dataset, share, epoch); },
             .spec = [dataset, share] { return spec(dataset, share.pass(0), share.fixed_rows()); },
             .prefetch = options.prefetch.value_or(automatic),
             .ending = share.ends_differ() ? Ending::asked : Ending::alone,
             .steps = 0,
             .plan = share.plan,
             .choice = share.choice}};
  }

  /// `make(InputContext)` is called once, here, and gives this worker's data set, which batches and
  /// shards itself: nothing is added to it, prefetch neither.
  ///
  /// Errors   throws the same comm::AgreedError on all ranks where `make` fails on one.
  /// Ranks    collective. Sizes are compared; where one is not known, each step costs a message.
  template <class Make>
  auto distribute_datasets_from_function(Make make)
      -> DistributedDataset<typename std::invoke_result_t<Make, InputContext>::Element> {
    using T = typename std::invoke_result_t<Make, InputContext>::Element;
    using Ending = typename DistributedIterator<T>::Ending;
    std::optional<Dataset<T>> dataset;
    std::optional<std::uint64_t> size;
    comm::together(comm_, [&] {
      dataset.emplace(make(input_context()));
      size = dataset->size();
    });
    const auto steps = agree_on_longest(comm_, size);
    return {comm_,
            {.open = [dataset = *dataset](std::uint64_t epoch) { return whole(dataset, epoch); },
             .spec = [dataset = *dataset] { return spec(dataset, {}, own_rows(dataset)); },
             .prefetch = 0,
             .ending = steps ? Ending::counted : Ending::asked,
             .steps = steps.value_or(0),
             .plan = std::nullopt,
             .choice = {data::ShardPolicy::data, "each worker's data set shards itself", ""}}};
  }

  /// `make(ValueContext)` for every replica. Local.
  template <class Make>
  auto distribute_values_from_function(Make make) const {
    using T = std::decay_t<std::invoke_result_t<Make, ValueContext>>;
    return PerReplica<T>(make(ValueContext{static_cast<std::uint64_t>(comm_.rank()),
                                           static_cast<std::uint64_t>(comm_.size())}));
  }

  /// `function(arguments...)` on every replica, with its own component of each argument: those of
  /// PerReplica and Mirrored values, also inside pairs and tuples; others are passed as they are. A
  /// single nested argument is taken apart where the function takes its parts.
  ///
  /// Returns a PerReplica of what the function returned; nothing where it returned nothing.
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

  /// The sum or mean over the replicas, value by value; all shapes alike. The same on every
  /// replica, added as Communicator::all_reduce adds. A mean of whole numbers is refused.
  /// Ranks    collective.
  template <Number T>
  Tensor<T> reduce(ReduceOp op, const PerReplica<Tensor<T>>& value) const {
    return exchange::reduce_values(comm_, op, value.value_);
  }
  template <Number T>
  T reduce(ReduceOp op, const PerReplica<T>& value) const {
    return exchange::reduce_values(comm_, op, Tensor<T>(value.value_)).item();
  }

  /// The same along `axis` as well, which goes: every example counts once, also in the mean, and
  /// replicas without examples count nothing. Sums are taken in double, a replica's in order, then
  /// the replicas' by rank, and rounded once.
  /// Errors   throws comm::AgreedError (2): the mean of no values; an axis or shapes that do not
  ///          fit.
  /// Ranks    collective.
  template <Number T>
  Tensor<T> reduce(ReduceOp op, const PerReplica<Tensor<T>>& value, std::size_t axis) const {
    return exchange::reduce_along(comm_, op, value.value_, axis);
  }

  /// All replicas' values one behind the other along `axis`, by rank, the same on every replica.
  /// Replicas without values are left out.
  /// Errors   throws comm::AgreedError (2) where the other axes differ.
  /// Ranks    collective.
  template <Number T>
  Tensor<T> gather(const PerReplica<Tensor<T>>& value, std::size_t axis) const {
    return exchange::gather_along(comm_, value.value_, axis);
  }

  /// The components that this process's replica holds: its own, alone. Local.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return {value.value_};
  }

  /// "{0: [5], 1: [6]}" on every rank: for people. Collective.
  template <class T>
  std::string describe(const PerReplica<T>& value) const {
    return describe_texts(to_text(value.value_));
  }

  /// A variable with the value of replica 0 on all replicas. Collective.
  template <Variable T>
  Mirrored<T> create_variable(T initial) const {
    if constexpr (Number<T>) {
      return {comm_, exchange::all_tensors(comm_, Tensor<T>(initial)).front().item()};
    } else {
      return {comm_, std::move(exchange::all_tensors(comm_, initial).front())};
    }
  }

  /// A number that each replica accumulates for itself, from 0. Throws for a mean of whole numbers.
  template <Number T>
  SyncOnRead<T> create_metric(ReduceOp op) const {
    return {comm_, op};
  }

  /// What this worker's functions are told. Local.
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
  template <class A, class B>
  static auto open(const std::pair<A, B>& value) {
    return std::pair<std::decay_t<decltype(open(value.first))>,
                     std::decay_t<decltype(open(value.second))>>(open(value.first),
                                                                 open(value.second));
  }
  template <class... Parts>
  static auto open(const std::tuple<Parts...>& value) {
    return std::apply(
        [](const auto&... parts) {
          return std::tuple<std::decay_t<decltype(open(parts))>...>(open(parts)...);
        },
        value);
  }
  template <class T>
  static const T& open(const T& value) noexcept {
    return value;
  }

  template <class Function, class... Values>
  static decltype(auto) apply(Function& function, const Values&... values) {
    if constexpr (sizeof...(Values) == 1) {
      return call_with(function, values...);
    } else {
      return std::invoke(function, values...);
    }
  }

  template <BatchLike T>
  static pieces::Pieces<T> whole(const Dataset<T>& dataset, std::uint64_t epoch) {
    const auto reader = std::shared_ptr<Reader<T>>(dataset.open({.epoch = epoch}));
    return [reader]() -> std::optional<T> {
      auto item = reader->next();
      return item ? std::optional<T>(std::move(item->value)) : std::nullopt;
    };
  }

  template <BatchLike T>
  static ElementSpec spec(const Dataset<T>& dataset, const Pass& pass,
                          std::optional<std::size_t> rows) {
    const auto reader = dataset.open_plain(pass);
    if (reader->examples().value_or(0) > 0) return spec_of(reader->rows({0, 1}), rows);
    const auto first = reader->next();
    return spec_of(first ? first->value : T{}, rows);
  }

  template <BatchLike T>
  static std::optional<std::size_t> own_rows(const Dataset<T>& dataset) {
    const auto& facts = dataset.facts();
    const auto examples = dataset.open_plain({})->examples();
    const bool full = examples && (*examples == endless || *examples % facts.batch_size == 0);
    if (facts.batch_size == 0 || !(full || facts.drop_remainder)) return std::nullopt;
    return static_cast<std::size_t>(facts.batch_size);
  }

  std::string describe_texts(const std::string& mine) const;
  void require_logical_device(int id) const;

  comm::Communicator& comm_;
  Cluster cluster_;
  std::optional<DeviceAssignment> assignment_;
};

/// Outputs by the index that their elements carry, in global order, the same on every replica.
///
/// Shapes   `indices` [b] and `values` [b] on each replica, which may hold any number of them. Of
///          an index that comes several times (policy OFF), the first in rank order counts.
/// Errors   throws comm::AgreedError (2) where the two do not have one value for each index.
/// Ranks    collective. Steps are put together with std::map::merge.
template <std::integral Index, Number T>
std::map<Index, T> in_global_order(const Strategy& strategy,
                                   const PerReplica<Tensor<Index>>& indices,
                                   const PerReplica<Tensor<T>>& values) {
  const auto all_indices = strategy.gather(indices, 0);
  const auto all_values = strategy.gather(values, 0);
  if (all_indices.values().size() != all_values.values().size()) {
    exchange::refuse("indices of shape " + to_text(all_indices.shape()) + " for values of shape " +
                         to_text(all_values.shape()),
                     "give one value for each index");
  }
  std::map<Index, T> ordered;
  for (std::size_t i = 0; i < all_indices.values().size(); ++i) {
    ordered.emplace(all_indices.values()[i], all_values.values()[i]);
  }
  return ordered;
}

}  // namespace lockstep

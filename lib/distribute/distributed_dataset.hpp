// A data set whose batches are divided among replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/dataset.hpp"
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
  /// The most examples of an automatic leaf. To train in Precision::bf16 with the results of the
  /// command, give data::bf16_leaf.
  std::uint64_t max_leaf = data::float32_leaf;
  /// Pieces that a thread reads ahead, at most 1,048,576; 0: no thread. nullopt: the depth of the
  /// data set's last prefetch if it ends in one; 0 if a prefetch stands before other
  /// transformations; else 1 (the replicas of an input pipeline).
  std::optional<std::size_t> prefetch = std::nullopt;
};

}  // namespace lockstep

namespace lockstep::pieces {
// Batches whose type is hidden, so that reading and cutting them is compiled once, in the library.
// Internal: the API are DistributedIterator and DistributedDataset.

/// The functions of a type of batches.
struct BatchType {
  std::size_t (*rows)(const readers::Any& batch);
  readers::Any (*cut)(const readers::Any& batch, std::size_t begin, std::size_t end);
  readers::Any (*join)(const std::vector<readers::Any>& batches);
  readers::Any (*unknown)();                            ///< of 0 examples, whose shape is not known
  std::string (*pack)(const readers::Any& batch);       ///< collective::pack_structure
  readers::Any (*unpack)(std::string_view& structure);  ///< and its inverse
  ElementSpec (*spec)(const readers::Any& batch, std::optional<std::size_t> rows);
};

/// The value of a batch, which is moved unless others hold it.
template <BatchLike T>
T taken(const readers::Any& batch) {
  T& value = readers::value_in<T>(batch);
  return batch.use_count() == 1 ? std::move(value) : value;
}

template <BatchLike T>
const BatchType& type_of_batches() noexcept {
  using readers::boxed;
  using readers::value_in;
  static constexpr BatchType type = {
      [](const readers::Any& batch) { return rows_of(value_in<T>(batch)); },
      [](const readers::Any& batch, std::size_t begin, std::size_t end) {
        return boxed(cut(value_in<T>(batch), begin, end));
      },
      [](const std::vector<readers::Any>& batches) {
        std::vector<T> all;
        all.reserve(batches.size());
        for (const auto& batch : batches) all.push_back(taken<T>(batch));
        return boxed(join_batches(std::move(all)));
      },
      [] { return boxed(T{}); },
      [](const readers::Any& batch) { return collective::pack_structure(value_in<T>(batch)); },
      [](std::string_view& structure) { return boxed(collective::unpack_structure<T>(structure)); },
      [](const readers::Any& batch, std::optional<std::size_t> rows) {
        return spec_of(value_in<T>(batch), rows);
      }};
  return type;
}

/// A Dataset of batches of any type.
struct AnyDataset {
  const BatchType* type = nullptr;
  readers::Pipeline pipeline;
};

template <BatchLike T>
AnyDataset any_dataset(const Dataset<T>& dataset) {
  return {&type_of_batches<T>(), dataset.pipeline()};
}

// Those of usual batches are compiled in the library, so that programs need not.
// NOLINTBEGIN(bugprone-macro-parentheses): no expressions
#define LOCKSTEP_USUAL_BATCHES(EXTERN)                                               \
  EXTERN template const BatchType& type_of_batches<Tensor<std::int64_t>>() noexcept; \
  EXTERN template const BatchType& type_of_batches<Tensor<float>>() noexcept;        \
  EXTERN template const BatchType& type_of_batches<Batched<Example>>() noexcept;
// NOLINTEND(bugprone-macro-parentheses)
LOCKSTEP_USUAL_BATCHES(extern)

/// This rank's pieces of one epoch, one for each step.
class Steps;

/// This rank's piece of a step.
struct Step {
  readers::Any batch = nullptr;                         ///< null: past the end
  std::optional<std::uint64_t> in_plan = std::nullopt;  ///< number of the step in the training plan
};

Step next_step(Steps& steps);
ElementSpec element_spec(const Steps& steps);

}  // namespace lockstep::pieces

namespace lockstep {
/// next() was called past the end: ends a loop, not a failure. Exit code 1 if it is not caught.
struct OutOfRange : Error {
  OutOfRange();
};

/// One epoch of a distributed data set.
///
/// A replica without data for a step that others have gets a batch of 0 examples; steps in which no
/// replica has an example are skipped, but for data sets from a function of known sizes. With a
/// plan (DistributedDataset::plan), if all ranks read the same stream, or if sizes were compared
/// beforehand, the end is determined locally. Otherwise (policy FILE, rule `balanced`, or data sets
/// from a function, all of unknown length) each step costs one message of four bytes. Where a rank
/// never has an example, the others send it the shape of an empty batch, once.
///
/// Errors   next() and next_as_optional() throw the reader's errors: on the rank that read, or, if
///          each step costs a message, as one comm::AgreedError on all ranks.
/// Ranks    collective: all ranks read the same steps. One thread.
template <BatchLike T>
class DistributedIterator {
 public:
  explicit DistributedIterator(std::shared_ptr<pieces::Steps> steps) : steps_(std::move(steps)) {}

  /// The next step's batch. Throws OutOfRange past the end, on every call.
  PerReplica<T> next() {
    auto batch = next_as_optional();
    if (!batch) throw OutOfRange();
    return std::move(*batch);
  }

  /// The next step's batch; nullopt past the end.
  std::optional<PerReplica<T>> next_as_optional() {
    const auto step = pieces::next_step(*steps_);
    if (!step.batch) return std::nullopt;
    PerReplica<T> batch(pieces::taken<T>(step.batch));
    batch.step_ = step.in_plan;
    return batch;
  }

  /// Type and shape of this replica's values: see DistributedBatches::element_spec. Reads the first
  /// batch if none was read, and keeps it for next(). Local.
  ElementSpec element_spec() const { return pieces::element_spec(*steps_); }

 private:
  std::shared_ptr<pieces::Steps> steps_;  // shared by copies
};

/// A distributed data set, without the type of its batches.
class DistributedBatches {
 public:
  struct State;
  explicit DistributedBatches(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Type and shape of this replica's values, one spec per part. Axis 0 counts examples; its length
  /// is unknown unless all pieces of all steps have the same length. A map over batches must not
  /// change their numbers of examples. On a rank without data the shape is (0) until the first
  /// step.
  ///
  /// Reads the first batch of the next epoch, unless one was read before, and keeps it for the
  /// iteration of that epoch: no element is lost or read twice. Local.
  ElementSpec element_spec() const;

  /// The examples of each rank and step: positions in the data set's order. train::Replica trains
  /// by it. It is known
  ///   - for batches of a finite data set with random access (see Dataset);
  ///   - under DATA also if map was applied to the batches (which must then keep their numbers of
  ///     examples), or for a generator with assert_cardinality;
  ///   - under DATA if all batches are full (an endless data set, or drop_remainder): then it has
  ///     one step, which repeats;
  ///   - for data sets that a function makes if all workers' sizes are known, which may differ, and
  ///     their batch sizes are equal.
  ///
  /// Errors   plan() throws ConfigError with the reason if the data set has none.
  /// Ranks    local.
  const data::Plan& plan() const;
  bool has_plan() const noexcept;

  /// True if it has a plan, and it is known before reading that its batches have no end. Local.
  bool is_endless() const noexcept;

  /// The ranks of the Strategy. Local.
  comm::Communicator& communicator() const noexcept;

  /// The sharding policy, and the reason for it. DATA for a data set from a function, which shards
  /// its data itself.
  data::ShardPolicy policy() const noexcept;
  const std::string& reason() const noexcept;

  /// The warning that was reported (base/errors.hpp); may be empty.
  const std::string& warning() const noexcept;

 protected:
  /// The steps of an epoch; nullopt: of the next one.
  std::shared_ptr<pieces::Steps> steps(std::optional<std::uint64_t> epoch) const;

 private:
  std::shared_ptr<State> state_;  // shared by copies
};

/// A distributed data set. It can be iterated; the transformations of Dataset are not available.
///
/// Each iteration is a new epoch, counted from 0, unless an epoch is passed to make_iterator. The
/// Strategy that created it must outlive it.
template <BatchLike T>
class DistributedDataset : public DistributedBatches {
 public:
  using Element = PerReplica<T>;

  explicit DistributedDataset(std::shared_ptr<State> state)
      : DistributedBatches(std::move(state)) {}

  /// An input range of the next epoch:  for (auto& batch : dataset), or for (auto& [x, y] :
  /// dataset) with batches of two parts, which are copied. Reads the first batch: collective, as is
  /// each increment.
  InputIterator<PerReplica<T>> begin() const {
    return InputIterator<PerReplica<T>>([steps = make_iterator()]() mutable -> readers::Any {
      auto batch = steps.next_as_optional();
      return batch ? readers::boxed(std::move(*batch)) : nullptr;
    });
  }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Iterator over the next epoch, or over the given one (its successor is then the next). Local.
  DistributedIterator<T> make_iterator() const {
    return DistributedIterator<T>(steps(std::nullopt));
  }
  DistributedIterator<T> make_iterator(std::uint64_t epoch) const {
    return DistributedIterator<T>(steps(epoch));
  }
};

namespace pieces {

/// Distributes a data set: see Strategy::distribute_dataset. Collective.
std::shared_ptr<DistributedBatches::State> distribute(comm::Communicator& comm,
                                                      const AnyDataset& dataset,
                                                      const DistributeOptions& options);

/// The data sets that `make` makes, one on each rank: see
/// Strategy::distribute_datasets_from_function. Collective.
std::shared_ptr<DistributedBatches::State> distribute_made(comm::Communicator& comm,
                                                           const std::function<AnyDataset()>& make);

}  // namespace pieces

}  // namespace lockstep

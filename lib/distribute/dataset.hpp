// A data set as a pipeline: a source of elements and the transformations applied to them.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/distribute/combined_readers.hpp"
#include "lockstep/distribute/readers.hpp"

namespace lockstep {

/// Properties of a data set that are known before it is read.
struct DatasetFacts {
  std::uint64_t files = 0;       ///< number of input files; 0: not read from files
  std::uint64_t batch_size = 0;  ///< elements are batches of at most this size; 0: not known
  bool drop_remainder = false;   ///< true: all batches are full
  std::size_t prefetch = 0;      ///< elements read ahead at the end of the pipeline
  bool reads_ahead = false;      ///< a prefetch stands anywhere in the pipeline
  std::string identity = {};     ///< text that identifies the data
};

/// The facts of a data set that reads two others. A worker can read its own files only if both come
/// from files; batch sizes count only if they are equal.
DatasetFacts combined_facts(const DatasetFacts& a, const DatasetFacts& b);

struct SharedSource;

/// Records of a data::Source in its own order, or shuffled by `seed`. They can be read in batches.
struct SourceRecords {
  std::shared_ptr<SharedSource> source;
  std::optional<std::uint64_t> seed = std::nullopt;
};

/// What a data::Source has of a record: see from_source.
template <class T>
concept SourceRecord = std::same_as<T, Example> || std::same_as<T, ValuesExample> ||
    std::same_as<T, WeightedExample> || std::same_as<T, WeightedValuesExample>;

/// One pass over batches of `size` records. See from_source.
template <SourceRecord Record>
ReaderPtr<Batched<Record>> open_batches(const SourceRecords& records, const Pass& pass,
                                        std::uint64_t size, bool drop_remainder);

/// Elements of type T in a fixed order. It describes a pipeline; nothing is read before iteration.
///
/// An immutable value that is cheap to copy; transformations return new data sets. sources.hpp
/// creates them. Elements are numbers, texts, Tensors, and pairs or tuples of them; other types can
/// be mapped but not batched. A pass reads one epoch. All random numbers are functions of (seed,
/// epoch, element), so a data set yields the same elements on every rank and in every pass of an
/// epoch.
/// Order    random access: range_dataset, from_elements and from_source have a known size and allow
///          access by index, also after map, batch, repeat, take, skip, shard, enumerate, zip,
///          concatenate and shuffle(seed). Generators, files of unknown length, and the results of
///          filter, interleave, flat_map and shuffle(seed, places) are read in order only. Data
///          sets with random access that end in batch follow a plan under a Strategy; all others
///          are read batch by batch (see Strategy::distribute_dataset).
/// Source   names and semantics are those of tf.data,
///          https://www.tensorflow.org/api_docs/python/tf/data/Dataset.
/// Errors   transformations throw ConfigError if they cannot be applied; reading throws the errors
///          of the source and of the given functions.
/// Ranks    all functions are local. See Strategy for distribution.
template <class T>
class Dataset {
 public:
  using Element = T;
  using Open = readers::Open<T>;

  /// `open` opens a pass. It must own all that it uses, and may be called from any thread.
  Dataset(Open open, DatasetFacts facts) : open_(std::move(open)), facts_(std::move(facts)) {}

  /// As above, for records of a source; batch() reads many of them in one call.
  Dataset(Open open, DatasetFacts facts, SourceRecords records)
      : open_(std::move(open)), facts_(std::move(facts)), records_(std::move(records)) {}

  /// The properties that are known without reading. Local.
  const DatasetFacts& facts() const noexcept { return facts_; }

  /// The number of elements of an epoch, possibly `endless`; nullopt if unknown before reading.
  std::optional<std::uint64_t> size() const { return open_({})->size(); }

  /// Applies `function(element)`, or `function(parts...)` for a pair or tuple.
  template <class Function>
  auto map(Function function) const {
    using To = std::decay_t<decltype(call_with(function, std::declval<T>()))>;
    static_assert(!std::is_void_v<To>, "map: the function returns nothing; return the new element");
    return mapped<To>([function](Item<T> item) mutable -> To {
      return call_with(function, std::move(item.value));
    });
  }

  /// Applies `function(element, draw)`; `draw` provides random numbers, see Draw.
  template <class Function>
  auto map_random(std::uint64_t seed, Function function) const {
    static_assert(std::is_invocable_v<Function, T, const Draw&>,
                  "map_random: the function does not take (element, const Draw&)");
    using To = std::decay_t<std::invoke_result_t<Function, T, const Draw&>>;
    return mapped<To>([function, seed](Item<T> item) mutable -> To {
      return function(std::move(item.value), Draw{seed, item.epoch, item.id});
    });
  }

  /// Batches of `size` consecutive elements: see Batched. Under a Strategy `size` is the global
  /// batch. The last batch may be smaller; `drop_remainder` drops it.
  Dataset<Batched<T>> batch(std::uint64_t size, bool drop_remainder = false) const {
    if (size == 0) throw ConfigError("batches of 0 elements", "give at least 1");
    DatasetFacts facts = behind_prefetch();
    facts.batch_size = size;
    facts.drop_remainder = drop_remainder;
    if constexpr (SourceRecord<T>) {
      if (records_) {
        return {[records = *records_, size, drop_remainder](const Pass& pass) {
                  return open_batches<T>(records, pass, size, drop_remainder);
                },
                facts};
      }
    }
    return {[open = opener(), size, drop_remainder](const Pass& pass) {
              return std::make_unique<readers::BatchesOf<T>>(open(pass), size, drop_remainder);
            },
            facts};
  }

  /// `times` (at least 1) passes in sequence: epoch e has epochs e * times, e * times + 1, ...
  Dataset repeat(std::uint64_t times) const {
    if (times == 0) throw ConfigError("0 repetitions", "give at least 1, or none: without end");
    return repeated(times);
  }

  /// Repeats without end: epoch e has epochs e, e + 1, ... An empty data set stays empty.
  Dataset repeat() const { return repeated(0); }

  /// The first `count` elements; under FILE, of each worker's files.
  Dataset take(std::uint64_t count) const {
    return then([count](ReaderPtr<T> from, const Pass&) {
      return std::make_unique<readers::Taken<T>>(std::move(from), count);
    });
  }

  /// All elements but the first `count`; under FILE, of each worker's files.
  Dataset skip(std::uint64_t count) const {
    return then([count](ReaderPtr<T> from, const Pass&) {
      return std::make_unique<readers::Skipped<T>>(std::move(from), count);
    });
  }

  /// The elements for which `accepts(element)`, or `accepts(parts...)`, is true.
  template <class Accepts>
  Dataset filter(Accepts accepts) const {
    using Answer = decltype(call_with(accepts, std::declval<const T&>()));
    static_assert(std::is_convertible_v<Answer, bool>, "filter: the function does not return bool");
    return then([accepts](ReaderPtr<T> from, const Pass&) {
      return std::make_unique<readers::Filtered<T, Accepts>>(std::move(from), accepts);
    });
  }

  /// Pairs (first + i, element i), i counted in the pass: under FILE, in each worker's files.
  Dataset<std::pair<std::int64_t, T>> enumerate(std::int64_t first = 0) const {
    return {[open = opener(), first](const Pass& pass) {
              return std::make_unique<readers::Enumerated<T>>(open(pass), first);
            },
            not_batched()};
  }

  /// Pairs of an element of this data set and one of `other`, until either ends. FILE needs files
  /// on both sides, and pairs what each worker reads of them; otherwise AUTO takes DATA.
  template <class U>
  Dataset<std::pair<T, U>> zip(const Dataset<U>& other) const {
    return {[mine = opener(), theirs = other.opener()](const Pass& pass) {
              return std::make_unique<readers::Zipped<T, U>>(mine(pass), theirs(pass));
            },
            combined_facts(facts_, other.facts_)};
  }

  /// The elements of this data set, then those of `other`. FILE needs files on both sides, and each
  /// worker reads its own of both; otherwise AUTO takes DATA.
  Dataset concatenate(const Dataset& other) const {
    return {[mine = opener(), theirs = other.opener()](const Pass& pass) {
              return std::make_unique<readers::Concatenated<T>>(mine(pass), theirs(pass));
            },
            combined_facts(facts_, other.facts_)};
  }

  /// The elements of the data sets `function(element)` returns. `cycle_length` of them are open at
  /// a time and read in turn, `block_length` elements each; one that ends is replaced by the next.
  /// A worker's files are those of this data set: the inner ones are read whole. Epochs of the
  /// inner data sets are those of the element.
  ///
  ///   list_files("logs/*").shard(2, 0).repeat().shuffle(1, 100).interleave(read_lines,
  ///   4).map(parse)
  ///
  /// Errors   throws ConfigError for a length of 0.
  template <class Function>
  auto interleave(Function function, std::size_t cycle_length, std::size_t block_length = 1) const {
    using Inner = std::decay_t<decltype(call_with(function, std::declval<T>()))>;
    static_assert(
        requires { typename Inner::Open; },
        "interleave, flat_map: the function does not return a Dataset");
    using To = typename Inner::Element;
    require_lengths(cycle_length, block_length);
    return Dataset<To>(
        [open = opener(), function, cycle_length, block_length](const Pass& pass) -> ReaderPtr<To> {
          const auto outer = std::shared_ptr<Reader<T>>(open(pass));
          using Interleaved = readers::Interleaved<To>;
          return std::make_unique<Interleaved>(
              [outer, function]() mutable -> typename Interleaved::Stream {
                auto item = outer->next();
                if (!item) return {};
                const Inner inner = call_with(function, std::move(item->value));
                const auto reader = std::shared_ptr<Reader<To>>(inner.open({.epoch = item->epoch}));
                return [reader, id = item->id]() {
                  auto element = reader->next();
                  if (element) element->id = readers::combined_id(id, element->id);
                  return element;
                };
              },
              cycle_length, block_length);
        },
        not_batched());
  }

  /// The elements of the data sets `function(element)` returns, one data set after the other.
  template <class Function>
  auto flat_map(Function function) const {
    return interleave(std::move(function), 1);
  }

  /// Elements index, index + count, index + 2 count, ...: for data sets sharded by the caller.
  Dataset shard(std::uint64_t count, std::uint64_t index) const {
    if (index >= count) {
      throw ConfigError("shard " + std::to_string(index) + " of " + std::to_string(count),
                        "shards are counted from 0");
    }
    return then([count, index](ReaderPtr<T> from, const Pass&) {
      return std::make_unique<readers::Sharded<T>>(std::move(from), count, index);
    });
  }

  /// Shuffles all elements, in another order each epoch: a function of (seed, epoch), and under
  /// FILE of the worker, in constant memory. Throws ConfigError unless the size is known and
  /// finite.
  Dataset shuffle(std::uint64_t seed) const {
    const auto all = size();
    if (!all || *all == endless) {
      throw ConfigError("shuffle of a data set whose end is not known",
                        "give the number of elements to draw from: shuffle(seed, places)");
    }
    Dataset shuffled = then([seed](ReaderPtr<T> from, const Pass& pass) {
      const std::uint64_t own = data::worker_seed(seed, pass.worker);
      return std::make_unique<readers::Shuffled<T>>(std::move(from), own, pass.epoch);
    });
    if (records_ && !records_->seed) shuffled.records_ = {records_->source, seed};
    return shuffled;
  }

  /// Shuffles any data set with a buffer of `places` (at least 1) elements: each element is drawn
  /// from the next `places` ones.
  Dataset shuffle(std::uint64_t seed, std::size_t places) const {
    if (places == 0) throw ConfigError("shuffle among 0 elements", "give at least 1");
    return then([seed, places](ReaderPtr<T> from, const Pass& pass) {
      const std::uint64_t own = data::worker_seed(seed, pass.worker);
      return std::make_unique<readers::BufferShuffled<T>>(std::move(from), own, pass.epoch, places);
    });
  }

  /// A thread reads at most `depth` (at least 1) elements ahead. Use it last in a pipeline: its
  /// result can only be read in order.
  Dataset prefetch(std::size_t depth) const {
    if (depth == 0) throw ConfigError("prefetch of 0 elements", "give at least 1, or leave it out");
    Dataset ahead(opener(), behind_prefetch());
    ahead.facts_.prefetch = depth;
    ahead.facts_.reads_ahead = true;
    return ahead;
  }

  /// Opens a pass of one epoch, with the read-ahead of prefetch().
  ReaderPtr<T> open(const Pass& pass) const { return opener()(pass); }

  /// As open(), without a prefetch at the end; for callers that read ahead themselves.
  ReaderPtr<T> open_plain(const Pass& pass) const { return open_(pass); }

  /// One epoch as an input range:  for (auto& [x, y] : dataset.epoch(2))
  class Epoch;
  Epoch epoch(std::uint64_t number) const { return Epoch(*this, number); }

  /// A data set is the input range of its epoch 0:  for (auto& [x, y] : dataset). Each begin()
  /// starts a new pass and reads its first element.
  InputIterator<T> begin() const { return epoch(0).begin(); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  template <class>
  friend class Dataset;

  Open opener() const {
    if (facts_.prefetch == 0) return open_;
    return [open = open_, depth = facts_.prefetch](const Pass& pass) {
      return std::make_unique<readers::Prefetched<T>>(open(pass), depth);
    };
  }

  DatasetFacts behind_prefetch() const {
    DatasetFacts facts = facts_;
    facts.prefetch = 0;
    return facts;
  }

  DatasetFacts not_batched() const {
    DatasetFacts facts = behind_prefetch();
    facts.batch_size = 0;
    facts.drop_remainder = false;
    return facts;
  }

  /// The data set whose passes are `wrap(pass of this data set)`.
  template <class Wrap>
  Dataset then(Wrap wrap) const {
    return {[open = opener(), wrap](const Pass& pass) -> ReaderPtr<T> {
              return wrap(open(pass), pass);
            },
            behind_prefetch()};
  }

  template <class To, class Function>
  Dataset<To> mapped(Function function) const {
    return {[open = opener(), function](const Pass& pass) -> ReaderPtr<To> {
              return std::make_unique<readers::Mapped<T, To, Function>>(open(pass), function);
            },
            behind_prefetch()};
  }

  Dataset repeated(std::uint64_t times) const {
    return {[open = opener(), times](const Pass& pass) {
              return std::make_unique<readers::Repeated<T>>(open, pass, times);
            },
            behind_prefetch()};
  }

  Open open_;
  DatasetFacts facts_;
  std::optional<SourceRecords> records_;  // set if only shuffle(seed) was applied
};

/// The elements of one epoch; each begin() starts a new pass.
template <class T>
class Dataset<T>::Epoch {
 public:
  Epoch(Dataset dataset, std::uint64_t number) : dataset_(std::move(dataset)), number_(number) {}

  InputIterator<T> begin() const {
    return InputIterator<T>(values_of(dataset_.open({.epoch = number_})));
  }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  Dataset dataset_;
  std::uint64_t number_;
};

}  // namespace lockstep

// A data set as a pipeline: a source of elements and the transformations applied to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/distribute/tensor.hpp"

namespace lockstep {

/// The size of an endless pass.
inline constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

/// The epoch and the worker of a pass over a data set.
struct Pass {
  std::uint64_t epoch = 0;
  /// Files are assigned round-robin to `workers`: this pass reads those of `worker`. Data that is
  /// not in files is read whole.
  std::uint64_t worker = 0;
  std::uint64_t workers = 1;
};

/// Random numbers of one element in one epoch: word(0), word(1), ...
///
/// A pure function of (seed, epoch, id, index): the numbers are the same on every rank, whatever
/// was transformed before. Indices are below 2^32; epochs count modulo 2^32.
/// Source   Philox 4x32-10 with (index, id, epoch) as counter; see RandomUse for the key.
struct Draw {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t id = 0;  ///< of the element in the data set
  RandomUse use = RandomUse::map;

  std::uint64_t word(std::uint32_t index) const noexcept {
    const auto block = at(index);
    return from_words(block[0], block[1]);
  }

  /// In [0, 1).
  float uniform(std::uint32_t index) const noexcept { return unit_float(at(index)[2]); }

 private:
  Philox::Block at(std::uint32_t index) const noexcept {
    return Philox::at({index, low_word(id), high_word(id), low_word(epoch)},
                      philox_key(seed_for(use, seed)));
  }
};

/// Properties of a data set that are known before it is read.
struct DatasetFacts {
  std::uint64_t files = 0;       ///< number of input files; 0: not read from files
  std::uint64_t batch_size = 0;  ///< elements are batches of at most this size; 0: not known
  bool drop_remainder = false;   ///< true: all batches are full
  std::size_t prefetch = 0;      ///< elements read ahead at the end of the pipeline
  bool reads_ahead = false;      ///< a prefetch stands anywhere in the pipeline
  /// Text that identifies the data (of files only how many there are; see `samples`) and, but for
  /// functions and the values of elements, what was applied to them.
  std::string identity = {};
  /// Samples the files, and returns a text that identifies what is in them; not set: no files, or
  /// `identity` has it. Throws DataError for a file that cannot be read.
  std::function<std::string()> samples = {};
};

}  // namespace lockstep

namespace lockstep::readers {
// Elements whose type is hidden, so that reading is compiled once, in the library. Internal: the
// API is Dataset.

/// A value of any type; null: none.
using Any = std::shared_ptr<void>;

template <class T>
Any boxed(T value) {
  return std::make_shared<T>(std::move(value));
}
template <class T>
T& value_in(const Any& any) noexcept {
  return *static_cast<T*>(any.get());
}

/// Values in order, one per call; null at the end.
using Next = std::function<Any()>;

/// The state of an iteration.
struct NextValue {
  Next next;
  Any value;
};

/// An element, with the id and epoch that random transformations depend on.
struct Item {
  Any value;                ///< owned by the receiver alone
  std::uint64_t id = 0;     ///< equal in every pass and on every rank
  std::uint64_t epoch = 0;  ///< of the pass; each repetition counts as one epoch
};

/// Reads the elements of one pass. Local; one thread.
///
/// If size() is known, elements can be read by index. If examples() is known, the elements are
/// batches that can be cut before they are read: rows() reads only the requested examples.
class Reader {
 public:
  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  virtual ~Reader() = default;

  /// The next element; nullopt at the end, and on every later call.
  virtual std::optional<Item> next() = 0;

  /// The number of elements, possibly `endless`; nullopt if elements can only be read in order.
  virtual std::optional<std::uint64_t> size() const { return std::nullopt; }

  /// The same, also of elements that can only be read in order.
  virtual std::optional<std::uint64_t> count() const { return size(); }

  /// Element `index`, below size(). Does not change the position of next().
  virtual Item at(std::uint64_t) { throw std::logic_error("Reader::at: no random access"); }

  /// The number of examples of the pass, in all batches together.
  virtual std::optional<std::uint64_t> examples() const { return std::nullopt; }

  /// The same if the batches were mapped to batches of as many examples. They are read in order.
  virtual std::optional<std::uint64_t> examples_before_map() const { return examples(); }

  /// One batch of the examples at these positions of the pass; others may own it, too.
  virtual Any rows(Range) { throw std::logic_error("Reader::rows: no random access"); }
};

using ReaderPtr = std::unique_ptr<Reader>;

/// How elements of one type become batches.
struct Batching {
  Any (*batch_of)(std::vector<Any>& elements);  ///< moves from the elements
  Any (*empty_like)(const Any& batch);          ///< a batch of 0 examples
  Any (*unknown)();                             ///< the same, of elements whose shape is not known
};

template <class T>
const Batching& batching() noexcept {
  static constexpr Batching functions = {
      [](std::vector<Any>& elements) {
        std::vector<T> values;
        values.reserve(elements.size());
        for (const auto& element : elements) values.push_back(std::move(value_in<T>(element)));
        return boxed(lockstep::batch_of(std::move(values)));
      },
      [](const Any& batch) { return boxed(cut(value_in<Batched<T>>(batch), 0, 0)); },
      [] { return boxed(Batched<T>{}); }};
  return functions;
}

// Those of usual elements are compiled in the library, so that programs need not.
// NOLINTBEGIN(bugprone-macro-parentheses): no expressions
#define LOCKSTEP_USUAL_ELEMENTS(EXTERN)                                         \
  EXTERN template const Batching& batching<std::int64_t>() noexcept;            \
  EXTERN template const Batching& batching<lockstep::Tensor<float>>() noexcept; \
  EXTERN template const Batching& batching<lockstep::Example>() noexcept;
// NOLINTEND(bugprone-macro-parentheses)
LOCKSTEP_USUAL_ELEMENTS(extern)

struct SourceRecords;

/// The transformations of Dataset; each returns a new pipeline. A function that is passed is copied
/// for each pass.
class Pipeline {
 public:
  using Open = std::function<ReaderPtr(const Pass&)>;

  /// `open` opens a pass. It must own all that it uses, and may be called from any thread.
  /// `records`: those of a source; batch() reads many of them in one call.
  Pipeline(Open open, DatasetFacts facts, std::shared_ptr<const SourceRecords> records = nullptr);

  const DatasetFacts& facts() const noexcept { return facts_; }
  std::optional<std::uint64_t> count() const { return open_({})->count(); }

  Pipeline map(std::function<Any(Item)> function) const;
  Pipeline filter(std::function<bool(const Any&)> accepts) const;
  Pipeline batch(std::uint64_t size, bool drop_remainder, const Batching& type) const;
  Pipeline repeat(std::uint64_t times) const;  ///< 0: without end
  Pipeline take(std::uint64_t count) const;
  Pipeline skip(std::uint64_t count) const;
  Pipeline shard(std::uint64_t count, std::uint64_t index) const;
  Pipeline shuffle(std::uint64_t seed) const;
  Pipeline shuffle(std::uint64_t seed, std::size_t places) const;
  Pipeline prefetch(std::size_t depth) const;
  Pipeline assert_cardinality(std::uint64_t count) const;
  Pipeline enumerate(std::int64_t first, Any (*numbered)(std::int64_t number, Any element)) const;
  Pipeline zip(const Pipeline& other, Any (*paired)(Any first, Any second)) const;
  Pipeline concatenate(const Pipeline& other) const;
  Pipeline interleave(std::function<Pipeline(Any)> function, std::size_t cycle_length,
                      std::size_t block_length) const;

  /// Opens a pass of one epoch, with the read-ahead of prefetch(); or without that of a prefetch at
  /// the end, for callers that read ahead themselves.
  ReaderPtr open(const Pass& pass) const;
  ReaderPtr open_plain(const Pass& pass) const { return open_(pass); }

  /// The same pipeline whose data is identified by `text`, too.
  Pipeline identified(const std::string& text) const;

 private:
  Open opener() const;
  /// The facts without a prefetch at the end; `step` identifies the data, too.
  DatasetFacts behind_prefetch(const std::string& step = {}) const;
  DatasetFacts not_batched(const std::string& step) const;

  Open open_;
  DatasetFacts facts_;
  std::shared_ptr<const SourceRecords> records_;  // set if only shuffle(seed) was applied
};

/// The values of a pass.
Next values_of(ReaderPtr reader);

}  // namespace lockstep::readers

namespace lockstep {

/// A single-pass iterator over values of type T. Copies share the pass.
template <class T>
class InputIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;

  explicit InputIterator(readers::Next next) : pass_(std::make_shared<readers::NextValue>()) {
    pass_->next = std::move(next);
    ++*this;
  }

  T& operator*() const noexcept { return readers::value_in<T>(pass_->value); }
  T* operator->() const noexcept { return &**this; }
  InputIterator& operator++() {
    pass_->value = pass_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const noexcept { return !pass_->value; }

 private:
  std::shared_ptr<readers::NextValue> pass_;
};

/// Elements of type T in a fixed order. It describes a pipeline; nothing is read before iteration.
///
/// An immutable value that is cheap to copy; transformations return new data sets. sources.hpp
/// creates them. Elements are numbers, texts, Tensors, and pairs, tuples and maps by name of them,
/// structs with fields(), and variants of tensors (tensor.hpp). A pass reads one epoch. All random
/// numbers are functions of (seed, epoch, element), so a data set yields the same elements on every
/// rank and in every pass of an epoch.
/// Order    random access: range_dataset, from_elements and from_source have a known size and allow
///          access by index, also after map, batch, repeat, take, skip, shard, enumerate, zip,
///          concatenate and shuffle(seed). Generators, files of unknown length, and the results of
///          filter, interleave, flat_map and shuffle(seed, places) are read in order only. Data
///          sets with random access that end in batch follow a plan under a Strategy; all others
///          are read batch by batch (see Strategy::distribute_dataset).
/// Source   names and semantics are those of tf.data, but for the arguments of shuffle,
///          https://www.tensorflow.org/api_docs/python/tf/data/Dataset.
/// Errors   transformations throw ConfigError if they cannot be applied; reading throws the errors
///          of the source and of the given functions.
/// Threads  a pass calls copies of the functions that map, filter, interleave and the sources were
///          given, on the thread that iterates. With prefetch() that is a thread of the pass; an
///          iterator of Strategy::distribute_dataset has one, too, unless it reads 0 pieces ahead
///          (DistributeOptions::prefetch). So they must not use a communicator, Strategy, Mesh or
///          Replica, which the program's thread uses. Data that the copies share by reference or
///          pointer needs a lock: that of a data::Source is Source::reading(), held during each
///          read.
/// Ranks    all functions are local. See Strategy for distribution.
template <class T>
class Dataset {
 public:
  using Element = T;

  explicit Dataset(readers::Pipeline pipeline) : pipeline_(std::move(pipeline)) {}

  /// The properties that are known without reading. Local.
  const DatasetFacts& facts() const noexcept { return pipeline_.facts(); }

  /// The number of elements of an epoch, possibly `endless`; nullopt if unknown before reading.
  std::optional<std::uint64_t> size() const { return pipeline_.count(); }

  /// Applies `function(element)`, or `function(parts...)` for a pair or tuple.
  template <class Function>
  auto map(Function function) const {
    using To = std::decay_t<decltype(call_with(function, std::declval<T>()))>;
    static_assert(!std::is_void_v<To>, "map: the function returns nothing; return the new element");
    return Dataset<To>(pipeline_.map([function](readers::Item item) mutable {
      return readers::boxed<To>(call_with(function, std::move(readers::value_in<T>(item.value))));
    }));
  }

  /// Applies `function(element, draw)`; `draw` provides random numbers, see Draw.
  template <class Function>
  auto map_random(std::uint64_t seed, Function function) const {
    static_assert(std::is_invocable_v<Function, T, const Draw&>,
                  "map_random: the function does not take (element, const Draw&)");
    using To = std::decay_t<std::invoke_result_t<Function, T, const Draw&>>;
    const auto mapped = pipeline_.map([function, seed](readers::Item item) mutable {
      return readers::boxed<To>(
          function(std::move(readers::value_in<T>(item.value)), Draw{seed, item.epoch, item.id}));
    });
    return Dataset<To>(mapped.identified("map_random with seed " + std::to_string(seed)));
  }

  /// Batches of `size` consecutive elements: see Batched. Under a Strategy `size` is the global
  /// batch. The last batch may be smaller; `drop_remainder` drops it.
  Dataset<Batched<T>> batch(std::uint64_t size, bool drop_remainder = false) const {
    return Dataset<Batched<T>>(pipeline_.batch(size, drop_remainder, readers::batching<T>()));
  }

  /// `times` (at least 1) passes in sequence: epoch e of the result is epochs e * times to
  /// (e + 1) * times - 1 of this data set. `endless`, which is tf.data's -1: as repeat().
  Dataset repeat(std::uint64_t times) const {
    if (times == endless) return repeat();
    if (times == 0) throw ConfigError("0 repetitions", "give at least 1, or none: without end");
    return Dataset(pipeline_.repeat(times));
  }

  /// Repeats without end: epoch e of the result is epochs e, e + 1, ... of this data set. An empty
  /// data set stays empty.
  Dataset repeat() const { return Dataset(pipeline_.repeat(0)); }

  /// The first `count` elements; under FILE, of each worker's files.
  Dataset take(std::uint64_t count) const { return Dataset(pipeline_.take(count)); }

  /// All elements but the first `count`; under FILE, of each worker's files.
  Dataset skip(std::uint64_t count) const { return Dataset(pipeline_.skip(count)); }

  /// The elements for which `accepts(element)`, or `accepts(parts...)`, is true.
  template <class Accepts>
  Dataset filter(Accepts accepts) const {
    using Answer = decltype(call_with(accepts, std::declval<const T&>()));
    static_assert(std::is_convertible_v<Answer, bool>, "filter: the function does not return bool");
    return Dataset(pipeline_.filter([accepts](const readers::Any& element) mutable -> bool {
      return call_with(accepts, std::as_const(readers::value_in<T>(element)));
    }));
  }

  /// Pairs (first + i, element i), i counted in the pass: under FILE, in each worker's files. The
  /// number wraps around, as all integers here.
  Dataset<std::pair<std::int64_t, T>> enumerate(std::int64_t first = 0) const {
    using Pair = std::pair<std::int64_t, T>;
    return Dataset<Pair>(pipeline_.enumerate(first, [](std::int64_t number, readers::Any element) {
      return readers::boxed(Pair(number, std::move(readers::value_in<T>(element))));
    }));
  }

  /// Pairs of an element of this data set and one of `other`, until either ends. FILE needs files
  /// on both sides, and pairs what each worker reads of them; otherwise AUTO takes DATA.
  template <class U>
  Dataset<std::pair<T, U>> zip(const Dataset<U>& other) const {
    using Pair = std::pair<T, U>;
    return Dataset<Pair>(
        pipeline_.zip(other.pipeline_, [](readers::Any first, readers::Any second) {
          return readers::boxed(Pair(std::move(readers::value_in<T>(first)),
                                     std::move(readers::value_in<U>(second))));
        }));
  }

  /// The elements of this data set, then those of `other`. FILE needs files on both sides, and each
  /// worker reads its own of both; otherwise AUTO takes DATA.
  Dataset concatenate(const Dataset& other) const {
    return Dataset(pipeline_.concatenate(other.pipeline_));
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
        requires { requires std::is_same_v<Inner, Dataset<typename Inner::Element>>; },
        "interleave, flat_map: the function does not return a Dataset");
    using To = typename Inner::Element;
    return Dataset<To>(pipeline_.interleave(
        [function](readers::Any element) mutable {
          const Inner inner = call_with(function, std::move(readers::value_in<T>(element)));
          return inner.pipeline_;
        },
        cycle_length, block_length));
  }

  /// The elements of the data sets `function(element)` returns, one data set after the other.
  template <class Function>
  auto flat_map(Function function) const {
    return interleave(std::move(function), 1);
  }

  /// Elements index, index + count, index + 2 count, ...: for data sets sharded by the caller.
  Dataset shard(std::uint64_t count, std::uint64_t index) const {
    return Dataset(pipeline_.shard(count, index));
  }

  /// Shuffles all elements, in another order each epoch: a function of (seed, epoch), and under
  /// FILE of the worker, in constant memory. Throws ConfigError unless the size is known and
  /// finite.
  Dataset shuffle(std::uint64_t seed) const { return Dataset(pipeline_.shuffle(seed)); }

  /// Shuffles any data set with a buffer of `places` (at least 1) elements: each element is drawn
  /// from the next `places` ones. tf.data has shuffle(buffer_size, seed).
  Dataset shuffle(std::uint64_t seed, std::size_t places) const {
    return Dataset(pipeline_.shuffle(seed, places));
  }

  /// A thread reads at most `depth` (1 to 1,048,576) elements ahead. Use it last in a pipeline: its
  /// result can only be read in order.
  Dataset prefetch(std::size_t depth) const { return Dataset(pipeline_.prefetch(depth)); }

  /// States that an epoch has `count` elements; under FILE, in each worker's files. With it, last
  /// before batch(), distributed batches of a generator have a plan under DATA, which
  /// train::Replica needs. In distribute_datasets_from_function each worker may have another count.
  /// It comes after shuffle(seed).
  ///
  /// Errors   reading throws DataError if there are more or fewer elements.
  Dataset assert_cardinality(std::uint64_t count) const {
    return Dataset(pipeline_.assert_cardinality(count));
  }

  /// The pipeline without its type: for functions of the library.
  const readers::Pipeline& pipeline() const noexcept { return pipeline_; }

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

  readers::Pipeline pipeline_;
};

/// The elements of one epoch; each begin() starts a new pass.
template <class T>
class Dataset<T>::Epoch {
 public:
  Epoch(Dataset dataset, std::uint64_t number) : dataset_(std::move(dataset)), number_(number) {}

  InputIterator<T> begin() const {
    return InputIterator<T>(readers::values_of(dataset_.pipeline().open({.epoch = number_})));
  }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  Dataset dataset_;
  std::uint64_t number_;
};

}  // namespace lockstep

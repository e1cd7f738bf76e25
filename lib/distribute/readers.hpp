// The readers that implement the transformations of Dataset. Internal: the API is dataset.hpp.
#pragma once

#include <algorithm>
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

#include "lockstep/base/philox.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/tensor.hpp"

namespace lockstep {
// One pass over a data set: the interface of all transformations.

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

/// An element, with the id and epoch that random transformations depend on.
template <class T>
struct Item {
  T value;
  std::uint64_t id = 0;     ///< equal in every pass and on every rank
  std::uint64_t epoch = 0;  ///< of the pass; each repetition counts as one epoch
};

/// Reads the elements of one pass. Local; one thread.
///
/// If size() is known, elements can be read by index. If examples() is known, the elements are
/// batches that can be cut before they are read: rows() reads only the requested examples.
template <class T>
class Reader {
 public:
  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  virtual ~Reader() = default;

  /// The next element; nullopt at the end, and on every later call.
  virtual std::optional<Item<T>> next() = 0;

  /// The number of elements, possibly `endless`; nullopt if elements can only be read in order.
  virtual std::optional<std::uint64_t> size() const { return std::nullopt; }

  /// Element `index`, below size(). Does not change the position of next().
  virtual Item<T> at(std::uint64_t) { throw std::logic_error("Reader::at: no random access"); }

  /// The number of examples of the pass, in all batches together.
  virtual std::optional<std::uint64_t> examples() const { return std::nullopt; }

  /// The same if the batches were mapped to batches of as many examples. They are read in order.
  virtual std::optional<std::uint64_t> examples_before_map() const { return examples(); }

  /// One batch of the examples at these positions of the pass.
  virtual T rows(Range) { throw std::logic_error("Reader::rows: no random access"); }
};

template <class T>
using ReaderPtr = std::unique_ptr<Reader<T>>;

/// A reader with random access, read in order.
template <class T>
class IndexedReader : public Reader<T> {
 public:
  std::optional<Item<T>> next() override {
    if (position_ >= this->size().value()) return std::nullopt;
    return this->at(position_++);
  }

 private:
  std::uint64_t position_ = 0;
};

// Random numbers for transformations: functions of the element, independent of the rank.

/// Random numbers of one element in one epoch: word(0), word(1), ... without limit.
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
    return std::uint64_t{block[0]} << 32 | block[1];
  }

  /// In [0, 1).
  float uniform(std::uint32_t index) const noexcept { return unit_float(at(index)[2]); }

 private:
  Philox::Block at(std::uint32_t index) const noexcept {
    const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
    return Philox::at({index, low(id), low(id >> 32), low(epoch)}, philox_key(seed_for(use, seed)));
  }
};

// Values that a thread reads ahead.

/// Calls `produce` in a separate thread, at most `depth` values ahead of next(): data::ReadAhead
/// for a sequence that can be read in order only, of values of any type. A depth of 0 means no
/// thread.
///
/// Threads  next() and the destructor belong to one thread; the destructor waits for a running call
///          of `produce`. See data::ReadAhead.
class Prefetcher {
 public:
  using Produce = std::function<std::shared_ptr<void>()>;  ///< null at the end

  Prefetcher(Produce produce, std::size_t depth);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next value in order; null at the end and on every later call. Rethrows an exception of
  /// `produce` after the values before it, and on every later call.
  std::shared_ptr<void> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A single-pass iterator over the values that `next` returns until nullopt. Copies share the pass.
template <class T>
class InputIterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;

  explicit InputIterator(std::function<std::optional<T>()> next)
      : state_(std::make_shared<State>(std::move(next))) {
    ++*this;
  }

  T& operator*() const noexcept { return *state_->value; }
  T* operator->() const noexcept { return &*state_->value; }
  InputIterator& operator++() {
    state_->value = state_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const noexcept { return !state_->value; }

 private:
  struct State {
    explicit State(std::function<std::optional<T>()> from) : next(std::move(from)) {}
    std::function<std::optional<T>()> next;
    std::optional<T> value;
  };
  std::shared_ptr<State> state_;
};

/// The values of a pass, one per call.
template <class T>
std::function<std::optional<T>()> values_of(ReaderPtr<T> reader) {
  return [shared = std::shared_ptr<Reader<T>>(std::move(reader))]() -> std::optional<T> {
    auto item = shared->next();
    return item ? std::optional<T>(std::move(item->value)) : std::nullopt;
  };
}

// Lists of files, equal on every rank.

/// The regular files that match a shell pattern ("data/part-*.csv"), sorted by name. Local.
/// Errors   throws DataError if no file matches.
std::vector<std::string> regular_files(const std::string& pattern);

/// A file and its index in the sorted list of all files.
struct NumberedFile {
  std::string path;
  std::uint64_t number = 0;
};

/// The files that this pass reads: worker w of N reads files w, w + N, ...
std::vector<NumberedFile> dealt_files(const std::vector<std::string>& paths, const Pass& pass);

/// The files in an order that is a function of (seed, epoch, worker).
std::vector<NumberedFile> shuffled_files(const std::vector<NumberedFile>& files, std::uint64_t seed,
                                         const Pass& pass);

/// The id of record `place` of file `number`: number * 2^40 + place.
std::uint64_t file_record_id(std::uint64_t number, std::uint64_t place) noexcept;

/// "3 files, ...": equal if names (without folders), sizes and sampled bytes are equal.
/// Errors   throws DataError for a file that cannot be read.
std::string identity_of(const std::vector<std::string>& paths);

/// Throws ConfigError if either is 0.
void require_lengths(std::size_t cycle_length, std::size_t block_length);

}  // namespace lockstep

namespace lockstep::readers {
template <class T>
using Open = std::function<ReaderPtr<T>(const Pass&)>;

/// Applies `function(item)` to every item; ids and epochs are kept.
template <class From, class To, class Function>
class Mapped final : public Reader<To> {
 public:
  Mapped(ReaderPtr<From> from, Function function)
      : from_(std::move(from)), function_(std::move(function)) {}

  std::optional<Item<To>> next() override {
    auto item = from_->next();
    if (!item) return std::nullopt;
    return mapped(std::move(*item));
  }
  std::optional<std::uint64_t> size() const override { return from_->size(); }
  Item<To> at(std::uint64_t index) override { return mapped(from_->at(index)); }
  std::optional<std::uint64_t> examples_before_map() const override {
    return from_->examples_before_map();
  }

 private:
  Item<To> mapped(Item<From> item) {
    const auto [id, epoch] = std::pair(item.id, item.epoch);
    return {function_(std::move(item)), id, epoch};
  }

  ReaderPtr<From> from_;
  Function function_;
};

/// Batches of `size` elements; the last may be smaller. A batch has the id of its first element.
template <class T>
class BatchesOf final : public Reader<Batched<T>> {
 public:
  using Batch = Batched<T>;

  BatchesOf(ReaderPtr<T> from, std::uint64_t size, bool drop_remainder)
      : from_(std::move(from)), size_(size), drop_(drop_remainder) {}

  std::optional<Item<Batch>> next() override {
    std::vector<T> elements;
    std::optional<Item<Batch>> batch;
    while (elements.size() < size_) {
      auto item = from_->next();
      if (!item) break;
      if (!batch) batch = Item<Batch>{{}, item->id, item->epoch};
      elements.push_back(std::move(item->value));
    }
    if (!batch || (drop_ && elements.size() < size_)) return std::nullopt;
    batch->value = batch_of(elements);
    return batch;
  }

  std::optional<std::uint64_t> size() const override {
    const auto all = examples();
    if (!all || *all == endless) return all;
    return data::ceil_divide(*all, size_);
  }

  Item<Batch> at(std::uint64_t index) override {
    const std::uint64_t begin = index * size_;
    auto first = from_->at(begin);
    Item<Batch> batch{{}, first.id, first.epoch};
    std::vector<T> elements;
    elements.push_back(std::move(first.value));
    append({begin + 1, begin + std::min(*examples() - begin, size_)}, elements);
    batch.value = batch_of(elements);
    if (!empty_) empty_ = cut(batch.value, 0, 0);
    return batch;
  }

  std::optional<std::uint64_t> examples() const override {
    const auto all = from_->size();
    if (!all || *all == endless || !drop_) return all;
    return *all - *all % size_;
  }

  Batch rows(Range positions) override {
    if (positions.empty() && empty_) return *empty_;
    if (positions.empty() && examples().value() == 0) return {};
    std::vector<T> elements;
    // Before the first read, record 0 provides the shape of an empty batch.
    append(positions.empty() ? Range{0, 1} : positions, elements);
    Batch batch = batch_of(elements);
    if (!empty_) empty_ = cut(batch, 0, 0);
    return positions.empty() ? *empty_ : batch;
  }

 private:
  void append(Range positions, std::vector<T>& elements) {
    elements.reserve(elements.size() + positions.size());
    for (std::uint64_t i = positions.begin; i < positions.end; ++i) {
      elements.push_back(from_->at(i).value);
    }
  }

  ReaderPtr<T> from_;
  std::uint64_t size_;
  bool drop_;
  std::optional<Batch> empty_;  // set once a batch was read
};

/// The passes of `times` epochs in sequence; 0: without end.
template <class T>
class Repeated final : public Reader<T> {
 public:
  Repeated(Open<T> open, const Pass& pass, std::uint64_t times)
      : open_(std::move(open)), pass_(pass), times_(times), now_(open_(pass_of(0))) {}

  std::optional<Item<T>> next() override {
    while (times_ == 0 || at_ < times_) {
      if (auto item = now_->next()) {
        yielded_ = true;
        return item;
      }
      if (times_ == 0 && !std::exchange(yielded_, false))
        break;  // an empty data set is not repeated
      if (++at_ != times_) now_ = open_(pass_of(at_));
    }
    return std::nullopt;
  }

  std::optional<std::uint64_t> size() const override {
    const auto once = now_->size();
    if (!once || *once == endless || *once == 0) return once;
    return times_ == 0 ? endless : *once * times_;
  }

  Item<T> at(std::uint64_t index) override {
    const std::uint64_t once = *now_->size();
    if (once == endless) return now_->at(index);
    if (!seeking_ || sought_ != index / once) {
      sought_ = index / once;
      seeking_ = open_(pass_of(sought_));
    }
    return seeking_->at(index % once);
  }

 private:
  Pass pass_of(std::uint64_t repetition) const {
    Pass pass = pass_;
    pass.epoch = pass.epoch * std::max<std::uint64_t>(times_, 1) + repetition;
    return pass;
  }

  Open<T> open_;
  Pass pass_;
  std::uint64_t times_;
  ReaderPtr<T> now_;
  std::uint64_t at_ = 0;
  bool yielded_ = false;
  ReaderPtr<T> seeking_;
  std::uint64_t sought_ = 0;
};

/// The first elements of a pass.
template <class T>
class Taken final : public Reader<T> {
 public:
  Taken(ReaderPtr<T> from, std::uint64_t count) : from_(std::move(from)), count_(count) {}

  std::optional<Item<T>> next() override {
    if (yielded_ == count_) return std::nullopt;
    ++yielded_;
    return from_->next();
  }
  std::optional<std::uint64_t> size() const override {
    const auto all = from_->size();
    return all ? std::optional(std::min(*all, count_)) : std::nullopt;
  }
  Item<T> at(std::uint64_t index) override { return from_->at(index); }

 private:
  ReaderPtr<T> from_;
  std::uint64_t count_;
  std::uint64_t yielded_ = 0;
};

/// Elements index, index + count, ...
template <class T>
class Sharded final : public Reader<T> {
 public:
  Sharded(ReaderPtr<T> from, std::uint64_t count, std::uint64_t index)
      : from_(std::move(from)), count_(count), skip_(index), index_(index) {}

  std::optional<Item<T>> next() override {
    for (; skip_ > 0; --skip_) {
      if (!from_->next()) return std::nullopt;
    }
    skip_ = count_ - 1;
    return from_->next();
  }
  std::optional<std::uint64_t> size() const override {
    const auto all = from_->size();
    if (!all || *all == endless) return all;
    return *all <= index_ ? 0 : data::ceil_divide(*all - index_, count_);
  }
  Item<T> at(std::uint64_t index) override { return from_->at(index * count_ + index_); }

 private:
  ReaderPtr<T> from_;
  std::uint64_t count_;
  std::uint64_t skip_;
  std::uint64_t index_;
};

/// All elements of a finite pass in an order that is a function of (seed, epoch).
template <class T>
class Shuffled final : public IndexedReader<T> {
 public:
  Shuffled(ReaderPtr<T> from, std::uint64_t seed, std::uint64_t epoch)
      : from_(std::move(from)), order_(from_->size().value(), seed, epoch) {}

  std::optional<std::uint64_t> size() const override { return from_->size(); }
  Item<T> at(std::uint64_t index) override { return from_->at(order_(index)); }

 private:
  ReaderPtr<T> from_;
  data::Permutation order_;
};

/// Draws each element from a buffer of the next `places` elements of the stream.
template <class T>
class BufferShuffled final : public Reader<T> {
 public:
  BufferShuffled(ReaderPtr<T> from, std::uint64_t seed, std::uint64_t epoch, std::size_t places)
      : from_(std::move(from)), seed_(seed), epoch_(epoch), places_(places) {}

  std::optional<Item<T>> next() override {
    while (buffer_.size() < places_) {
      auto item = from_->next();
      if (!item) break;
      buffer_.push_back(std::move(*item));
    }
    if (buffer_.empty()) return std::nullopt;
    const Draw draw{seed_, epoch_, drawn_++, RandomUse::buffer};
    std::swap(buffer_[draw.word(0) % buffer_.size()], buffer_.back());
    std::optional<Item<T>> item(std::move(buffer_.back()));
    buffer_.pop_back();
    return item;
  }

 private:
  ReaderPtr<T> from_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::size_t places_;
  std::vector<Item<T>> buffer_;
  std::uint64_t drawn_ = 0;
};

/// Elements read ahead by a thread.
template <class T>
class Prefetched final : public Reader<T> {
 public:
  Prefetched(ReaderPtr<T> from, std::size_t depth)
      : from_(std::move(from)),
        ahead_(
            [this]() -> std::shared_ptr<void> {
              auto item = from_->next();
              return item ? std::make_shared<Item<T>>(std::move(*item)) : nullptr;
            },
            depth) {}

  std::optional<Item<T>> next() override {
    const auto item = ahead_.next();
    if (!item) return std::nullopt;
    return std::move(*static_cast<Item<T>*>(item.get()));
  }

  std::optional<std::uint64_t> examples_before_map() const override {
    return from_->examples_before_map();
  }

 private:
  ReaderPtr<T> from_;
  Prefetcher ahead_;  // after the reader, which its thread uses
};

}  // namespace lockstep::readers

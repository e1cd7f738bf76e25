// The readers that implement the transformations of Dataset, and what its sources have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/dataset.hpp"

namespace lockstep {

/// Calls `produce` in a separate thread, at most `depth` values ahead of next(): data::ReadAhead
/// for a sequence that can be read in order only, of values of any type. A depth of 0 means no
/// thread.
///
/// Threads  next() and the destructor belong to one thread; the destructor waits for a running call
///          of `produce`. See data::ReadAhead.
class Prefetcher {
 public:
  Prefetcher(readers::Next produce, std::size_t depth);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next value in order; null at the end and on every later call. Rethrows an exception of
  /// `produce` after the values before it, and on every later call.
  readers::Any next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep

namespace lockstep::data {
class Source;
}

namespace lockstep::readers {
// Lists of files, equal on every rank: see regular_files().

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

/// A hash that is equal if names (without folders), sizes and sampled bytes are equal.
/// Errors   throws DataError for a file that cannot be read.
std::string identity_of(const std::vector<std::string>& paths);

/// Records of a data::Source in its own order, or shuffled by `seed`, and how batches of them are
/// read.
struct SourceRecords {
  std::shared_ptr<data::Source> source;
  ReaderPtr (*open_batches)(const SourceRecords& records, const Pass& pass, std::uint64_t size,
                            bool drop_remainder);
  std::optional<std::uint64_t> seed = std::nullopt;
};

/// A reader with random access, read in order.
class IndexedReader : public Reader {
 public:
  std::optional<Item> next() override {
    if (position_ >= size().value()) return std::nullopt;
    return at(position_++);
  }

 private:
  std::uint64_t position_ = 0;
};

/// The id of element `inner` of data set `outer` of several: equal in every pass, on every rank.
std::uint64_t combined_id(std::uint64_t outer, std::uint64_t inner) noexcept;

/// The most elements that a thread reads ahead.
inline constexpr std::size_t most_ahead = std::size_t{1} << 20;

/// Throws ConfigError, which names `what`, if `depth` is above most_ahead, as -1 is.
void require_depth(std::size_t depth, const std::string& what);

/// Throws ConfigError if either is 0.
void require_lengths(std::size_t cycle_length, std::size_t block_length);

/// Applies `function(item)` to every item; ids and epochs are kept.
class Mapped final : public Reader {
 public:
  Mapped(ReaderPtr from, std::function<Any(Item)> function)
      : from_(std::move(from)), function_(std::move(function)) {}

  std::optional<Item> next() override {
    auto item = from_->next();
    if (!item) return std::nullopt;
    return mapped(std::move(*item));
  }
  std::optional<std::uint64_t> size() const override { return from_->size(); }
  std::optional<std::uint64_t> count() const override { return from_->count(); }
  Item at(std::uint64_t index) override { return mapped(from_->at(index)); }
  std::optional<std::uint64_t> examples_before_map() const override {
    return from_->examples_before_map();
  }

 private:
  Item mapped(Item item) {
    const auto [id, epoch] = std::pair(item.id, item.epoch);
    return {function_(std::move(item)), id, epoch};
  }

  ReaderPtr from_;
  std::function<Any(Item)> function_;
};

/// Batches of `size` elements; the last may be smaller. A batch has the id of its first element.
class BatchesOf final : public Reader {
 public:
  BatchesOf(ReaderPtr from, std::uint64_t size, bool drop_remainder, const Batching& type)
      : from_(std::move(from)), size_(size), drop_(drop_remainder), type_(&type) {}

  std::optional<Item> next() override {
    std::vector<Any> elements;
    std::optional<Item> batch;
    while (elements.size() < size_) {
      auto item = from_->next();
      if (!item) break;
      if (!batch) batch = Item{nullptr, item->id, item->epoch};
      elements.push_back(std::move(item->value));
    }
    if (!batch || (drop_ && elements.size() < size_)) return std::nullopt;
    batch->value = type_->batch_of(elements);
    return batch;
  }

  std::optional<std::uint64_t> size() const override { return batches_of(examples()); }
  std::optional<std::uint64_t> count() const override { return batches_of(examples_before_map()); }

  Item at(std::uint64_t index) override {
    const std::uint64_t begin = index * size_;
    auto first = from_->at(begin);
    std::vector<Any> elements;
    elements.push_back(std::move(first.value));
    append({begin + 1, begin + std::min(*examples() - begin, size_)}, elements);
    return {batch_of(elements), first.id, first.epoch};
  }

  std::optional<std::uint64_t> examples() const override { return kept_of(from_->size()); }
  std::optional<std::uint64_t> examples_before_map() const override {
    return kept_of(from_->count());
  }

  Any rows(Range positions) override {
    if (positions.empty() && empty_) return empty_;
    if (positions.empty() && examples().value() == 0) return type_->unknown();
    std::vector<Any> elements;
    // Before the first read, record 0 provides the shape of an empty batch.
    append(positions.empty() ? Range{0, 1} : positions, elements);
    auto batch = batch_of(elements);
    return positions.empty() ? empty_ : batch;
  }

 private:
  std::optional<std::uint64_t> kept_of(std::optional<std::uint64_t> all) const {
    if (!all || *all == endless || !drop_) return all;
    return *all - *all % size_;
  }
  std::optional<std::uint64_t> batches_of(std::optional<std::uint64_t> examples) const {
    if (!examples || *examples == endless) return examples;
    return ceil_divide(*examples, size_);
  }

  void append(Range positions, std::vector<Any>& elements) {
    elements.reserve(elements.size() + positions.size());
    for (std::uint64_t i = positions.begin; i < positions.end; ++i) {
      elements.push_back(from_->at(i).value);
    }
  }

  Any batch_of(std::vector<Any>& elements) {
    auto batch = type_->batch_of(elements);
    if (!empty_) empty_ = type_->empty_like(batch);
    return batch;
  }

  ReaderPtr from_;
  std::uint64_t size_;
  bool drop_;
  const Batching* type_;
  Any empty_;  // set once a batch was read by position
};

/// The passes of `times` epochs in sequence; 0: without end.
class Repeated final : public Reader {
 public:
  Repeated(Pipeline::Open open, const Pass& pass, std::uint64_t times)
      : open_(std::move(open)), pass_(pass), times_(times), now_(open_(pass_of(0))) {}

  std::optional<Item> next() override {
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
    std::uint64_t all = 0;
    const bool fits = times_ != 0 && !__builtin_mul_overflow(*once, times_, &all);
    return fits ? all : endless;
  }

  Item at(std::uint64_t index) override {
    const std::uint64_t once = *now_->size();
    if (once == endless) return now_->at(index);
    const std::uint64_t repetition = index / once;
    goes_back_ = goes_back_ || repetition < sought_;
    sought_ = repetition;
    auto seeking = seeking_.find(repetition);
    if (seeking == seeking_.end()) {
      const std::size_t most = goes_back_ ? 64 : 1;
      if (seeking_.size() == most) seeking_.erase(seeking_.begin());
      seeking = seeking_.emplace(repetition, open_(pass_of(repetition))).first;
    }
    return seeking->second->at(index % once);
  }

 private:
  Pass pass_of(std::uint64_t repetition) const {
    Pass pass = pass_;
    pass.epoch = pass.epoch * std::max<std::uint64_t>(times_, 1) + repetition;
    return pass;
  }

  Pipeline::Open open_;
  Pass pass_;
  std::uint64_t times_;
  ReaderPtr now_;
  std::uint64_t at_ = 0;
  bool yielded_ = false;
  // Readers for at(), by repetition: the last one, or several once an earlier one was asked for, as
  // shuffle does.
  std::map<std::uint64_t, ReaderPtr> seeking_;
  std::uint64_t sought_ = 0;  // the repetition of the last at()
  bool goes_back_ = false;
};

/// The first elements of a pass.
class Taken final : public Reader {
 public:
  Taken(ReaderPtr from, std::uint64_t count) : from_(std::move(from)), count_(count) {}

  std::optional<Item> next() override {
    if (yielded_ == count_) return std::nullopt;
    ++yielded_;
    return from_->next();
  }
  std::optional<std::uint64_t> size() const override {
    const auto all = from_->size();
    return all ? std::optional(std::min(*all, count_)) : std::nullopt;
  }
  Item at(std::uint64_t index) override { return from_->at(index); }

 private:
  ReaderPtr from_;
  std::uint64_t count_;
  std::uint64_t yielded_ = 0;
};

/// Elements index, index + count, ...; with a count of 1 all but the first `index` ones.
class Sharded final : public Reader {
 public:
  Sharded(ReaderPtr from, std::uint64_t count, std::uint64_t index)
      : from_(std::move(from)), count_(count), skip_(index), index_(index) {}

  std::optional<Item> next() override {
    for (; skip_ > 0; --skip_) {
      if (!from_->next()) return std::nullopt;
    }
    skip_ = count_ - 1;
    return from_->next();
  }
  std::optional<std::uint64_t> size() const override {
    const auto all = from_->size();
    if (!all || *all == endless) return all;
    return *all <= index_ ? 0 : ceil_divide(*all - index_, count_);
  }
  Item at(std::uint64_t index) override { return from_->at(index * count_ + index_); }

 private:
  ReaderPtr from_;
  std::uint64_t count_;
  std::uint64_t skip_;
  std::uint64_t index_;
};

/// All elements of a finite pass in an order that is a function of (seed, epoch).
class Shuffled final : public IndexedReader {
 public:
  Shuffled(ReaderPtr from, std::uint64_t seed, std::uint64_t epoch)
      : from_(std::move(from)), order_(known_size(*from_), seed, epoch) {}

  std::optional<std::uint64_t> size() const override { return from_->size(); }
  Item at(std::uint64_t index) override { return from_->at(order_(index)); }

 private:
  static std::uint64_t known_size(const Reader& from) {
    if (const auto size = from.size()) return *size;
    throw DataError("a data set to be shuffled has another size than assert_cardinality() says",
                    "call assert_cardinality() after shuffle()");
  }

  ReaderPtr from_;
  data::Permutation order_;
};

/// Draws each element from a buffer of the next `places` elements of the stream.
class BufferShuffled final : public Reader {
 public:
  BufferShuffled(ReaderPtr from, std::uint64_t seed, std::uint64_t epoch, std::size_t places)
      : from_(std::move(from)), seed_(seed), epoch_(epoch), places_(places) {}

  std::optional<Item> next() override {
    while (buffer_.size() < places_) {
      auto item = from_->next();
      if (!item) break;
      buffer_.push_back(std::move(*item));
    }
    if (buffer_.empty()) return std::nullopt;
    const Draw draw{seed_, epoch_, drawn_++, RandomUse::buffer};
    std::swap(buffer_[draw.word(0) % buffer_.size()], buffer_.back());
    std::optional<Item> item(std::move(buffer_.back()));
    buffer_.pop_back();
    return item;
  }

 private:
  ReaderPtr from_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::size_t places_;
  std::vector<Item> buffer_;
  std::uint64_t drawn_ = 0;
};

/// Elements read ahead by a thread.
class Prefetched final : public Reader {
 public:
  Prefetched(ReaderPtr from, std::size_t depth)
      : from_(std::move(from)),
        ahead_(
            [this]() -> Any {
              auto item = from_->next();
              return item ? boxed(std::move(*item)) : nullptr;
            },
            depth) {}

  std::optional<Item> next() override {
    const auto item = ahead_.next();
    if (!item) return std::nullopt;
    return std::move(value_in<Item>(item));
  }

  std::optional<std::uint64_t> count() const override { return from_->count(); }
  std::optional<std::uint64_t> examples_before_map() const override {
    return from_->examples_before_map();
  }

 private:
  ReaderPtr from_;
  Prefetcher ahead_;  // after the reader, which its thread uses
};

/// Elements with their index in the pass, counted from `first`.
class Enumerated final : public Reader {
 public:
  using MakePair = Any (*)(std::int64_t number, Any element);

  Enumerated(ReaderPtr from, std::int64_t first, MakePair make_pair)
      : from_(std::move(from)), first_(first), make_pair_(make_pair) {}

  std::optional<Item> next() override {
    auto item = from_->next();
    if (!item) return std::nullopt;
    return numbered(std::move(*item), read_++);
  }
  std::optional<std::uint64_t> size() const override { return from_->size(); }
  Item at(std::uint64_t index) override { return numbered(from_->at(index), index); }

 private:
  Item numbered(Item item, std::uint64_t index) const {
    const auto number = static_cast<std::int64_t>(static_cast<std::uint64_t>(first_) + index);
    return {make_pair_(number, std::move(item.value)), item.id, item.epoch};
  }

  ReaderPtr from_;
  std::int64_t first_;
  MakePair make_pair_;
  std::uint64_t read_ = 0;
};

/// The elements of a pass that should have `count`.
class Counted final : public Reader {
 public:
  Counted(ReaderPtr from, std::uint64_t count) : from_(std::move(from)), count_(count) {}

  std::optional<Item> next() override {
    auto item = from_->next();
    if (item) ++read_;
    if (item ? read_ > count_ : read_ < count_) {
      throw DataError("a data set of " + std::to_string(count_) + " elements has " +
                          (item ? "more" : std::to_string(read_)),
                      "give assert_cardinality() the number that an epoch has");
    }
    return item;
  }
  /// If it is not count_, elements are read in order, and next() finds the difference.
  std::optional<std::uint64_t> size() const override {
    return from_->size() == count_ ? from_->size() : std::nullopt;
  }
  std::optional<std::uint64_t> count() const override { return count_; }
  Item at(std::uint64_t index) override { return from_->at(index); }

 private:
  ReaderPtr from_;
  std::uint64_t count_;
  std::uint64_t read_ = 0;
};

/// Pairs of elements, until one data set ends. A pair has the id of its first element.
class Zipped final : public Reader {
 public:
  using MakePair = Any (*)(Any first, Any second);

  Zipped(ReaderPtr a, ReaderPtr b, MakePair make_pair)
      : a_(std::move(a)), b_(std::move(b)), make_pair_(make_pair) {}

  std::optional<Item> next() override {
    if (ended_) return std::nullopt;
    auto a = a_->next();
    auto b = a ? b_->next() : std::nullopt;
    ended_ = !b;
    if (ended_) return std::nullopt;
    return paired(std::move(*a), std::move(*b));
  }
  std::optional<std::uint64_t> size() const override {
    const auto a = a_->size();
    const auto b = b_->size();
    return a && b ? std::optional(std::min(*a, *b)) : std::nullopt;
  }
  Item at(std::uint64_t index) override { return paired(a_->at(index), b_->at(index)); }

 private:
  Item paired(Item a, Item b) const {
    return {make_pair_(std::move(a.value), std::move(b.value)), a.id, a.epoch};
  }

  ReaderPtr a_;
  ReaderPtr b_;
  MakePair make_pair_;
  bool ended_ = false;
};

/// The elements for which `accepts` is true.
class Filtered final : public Reader {
 public:
  Filtered(ReaderPtr from, std::function<bool(const Any&)> accepts)
      : from_(std::move(from)), accepts_(std::move(accepts)) {}

  std::optional<Item> next() override {
    while (auto item = from_->next()) {
      if (accepts_(item->value)) return item;
    }
    return std::nullopt;
  }

 private:
  ReaderPtr from_;
  std::function<bool(const Any&)> accepts_;
};

/// The elements of one data set, then those of another. Ids become combined_id(0 or 1, id).
class Concatenated final : public Reader {
 public:
  Concatenated(ReaderPtr first, ReaderPtr second)
      : first_(std::move(first)), second_(std::move(second)) {}

  std::optional<Item> next() override {
    if (!first_ended_) {
      if (auto item = first_->next()) return numbered(0, std::move(*item));
      first_ended_ = true;
    }
    auto item = second_->next();
    if (!item) return std::nullopt;
    return numbered(1, std::move(*item));
  }
  std::optional<std::uint64_t> size() const override {
    const auto first = first_->size();
    const auto second = second_->size();
    if (!first || !second) return std::nullopt;
    std::uint64_t all = 0;
    return __builtin_add_overflow(*first, *second, &all) ? endless : all;
  }
  Item at(std::uint64_t index) override {
    const std::uint64_t before = *first_->size();
    if (index < before) return numbered(0, first_->at(index));
    return numbered(1, second_->at(index - before));
  }

 private:
  static Item numbered(std::uint64_t part, Item item) {
    item.id = combined_id(part, item.id);
    return item;
  }

  ReaderPtr first_;
  ReaderPtr second_;
  bool first_ended_ = false;
};

/// Reads blocks of `block_length` elements from `cycle_length` open streams in turn; a stream that
/// ends is replaced by the next one, which is read in the next round.
class Interleaved final : public Reader {
 public:
  using Stream = std::function<std::optional<Item>()>;

  /// `open_next` returns the streams in order, and an empty function at the end.
  Interleaved(std::function<Stream()> open_next, std::size_t cycle_length, std::size_t block_length)
      : open_next_(std::move(open_next)),
        cycle_length_(cycle_length),
        block_length_(block_length) {}

  std::optional<Item> next() override;

 private:
  bool fill();
  void replace();
  Stream opened();

  std::function<Stream()> open_next_;
  std::size_t cycle_length_;
  std::size_t block_length_;
  std::vector<Stream> open_;
  std::size_t turn_ = 0;
  std::size_t taken_ = 0;
  bool all_opened_ = false;
};

}  // namespace lockstep::readers

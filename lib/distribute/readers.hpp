// The readers behind the transformations of Dataset. Users meet dataset.hpp alone.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "data/permutation.hpp"
#include "lib/distribute/files.hpp"
#include "lib/distribute/prefetch.hpp"
#include "lib/distribute/random.hpp"
#include "lib/distribute/reader.hpp"
#include "lib/distribute/structure.hpp"

namespace lockstep::readers {

template <class T>
using Open = std::function<ReaderPtr<T>(const Pass&)>;

/// `function(item)` of every item; ids and epochs stay.
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

 private:
  Item<To> mapped(Item<From> item) {
    const auto [id, epoch] = std::pair(item.id, item.epoch);
    return {function_(std::move(item)), id, epoch};
  }

  ReaderPtr<From> from_;
  Function function_;
};

/// Batches of `size` elements, the last perhaps smaller; a batch has the id of its first element.
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
    batch->value = stack(elements);
    return batch;
  }

  std::optional<std::uint64_t> size() const override {
    const auto all = examples();
    if (!all || *all == endless) return all;
    return data::ceil_divide(*all, size_);
  }

  Item<Batch> at(std::uint64_t index) override {
    const std::uint64_t begin = index * size_;
    const auto first = from_->at(begin);
    return {rows({begin, std::min(*examples() - begin, size_) + begin}), first.id, first.epoch};
  }

  std::optional<std::uint64_t> examples() const override {
    const auto all = from_->size();
    if (!all || *all == endless || !drop_) return all;
    return *all - *all % size_;
  }

  Batch rows(data::Range positions) override {
    std::vector<T> elements;
    elements.reserve(positions.size());
    for (std::uint64_t i = positions.begin; i < positions.end; ++i) {
      elements.push_back(from_->at(i).value);
    }
    if (!elements.empty()) return stack(elements);
    if (examples().value() == 0) return {};
    elements.push_back(from_->at(0).value);  // for the shape of its parts
    return cut(stack(elements), 0, 0);
  }

 private:
  ReaderPtr<T> from_;
  std::uint64_t size_;
  bool drop_;
};

/// The passes of `times` epochs one after the other; 0: without end.
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
      if (times_ == 0 && !std::exchange(yielded_, false)) break;  // nothing is not repeated
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

/// The first elements.
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

/// Draws each element from the next `places` of the stream.
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
    const Draw draw{seed_, epoch_, drawn_++};
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

/// Elements that a thread reads ahead.
template <class T>
class Prefetched final : public Reader<T> {
 public:
  Prefetched(ReaderPtr<T> from, std::size_t depth)
      : from_(std::move(from)), ahead_([this] { return from_->next(); }, depth) {}

  std::optional<Item<T>> next() override { return ahead_.next(); }

 private:
  ReaderPtr<T> from_;
  Prefetcher<Item<T>> ahead_;  // after the reader that its thread uses
};

}  // namespace lockstep::readers

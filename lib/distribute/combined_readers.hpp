// The readers that select elements or combine several data sets. Internal: the API is dataset.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/distribute/readers.hpp"

namespace lockstep::readers {
/// The id of element `inner` of data set `outer` of several: equal in every pass, on every rank.
std::uint64_t combined_id(std::uint64_t outer, std::uint64_t inner) noexcept;

/// Elements with their index in the pass, counted from `first`.
template <class T>
class Enumerated final : public Reader<std::pair<std::int64_t, T>> {
 public:
  using Pair = std::pair<std::int64_t, T>;

  Enumerated(ReaderPtr<T> from, std::int64_t first) : from_(std::move(from)), first_(first) {}

  std::optional<Item<Pair>> next() override {
    auto item = from_->next();
    if (!item) return std::nullopt;
    return numbered(std::move(*item), read_++);
  }
  std::optional<std::uint64_t> size() const override { return from_->size(); }
  Item<Pair> at(std::uint64_t index) override { return numbered(from_->at(index), index); }

 private:
  Item<Pair> numbered(Item<T> item, std::uint64_t index) const {
    return {
        {first_ + static_cast<std::int64_t>(index), std::move(item.value)}, item.id, item.epoch};
  }

  ReaderPtr<T> from_;
  std::int64_t first_;
  std::uint64_t read_ = 0;
};

/// Pairs of elements, until one data set ends. A pair has the id of its first element.
template <class A, class B>
class Zipped final : public Reader<std::pair<A, B>> {
 public:
  using Pair = std::pair<A, B>;

  Zipped(ReaderPtr<A> a, ReaderPtr<B> b) : a_(std::move(a)), b_(std::move(b)) {}

  std::optional<Item<Pair>> next() override {
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
  Item<Pair> at(std::uint64_t index) override { return paired(a_->at(index), b_->at(index)); }

 private:
  static Item<Pair> paired(Item<A> a, Item<B> b) {
    return {{std::move(a.value), std::move(b.value)}, a.id, a.epoch};
  }

  ReaderPtr<A> a_;
  ReaderPtr<B> b_;
  bool ended_ = false;
};

/// The elements for which `accepts` is true.
template <class T, class Accepts>
class Filtered final : public Reader<T> {
 public:
  Filtered(ReaderPtr<T> from, Accepts accepts)
      : from_(std::move(from)), accepts_(std::move(accepts)) {}

  std::optional<Item<T>> next() override {
    while (auto item = from_->next()) {
      if (call_with(accepts_, std::as_const(item->value))) return item;
    }
    return std::nullopt;
  }

 private:
  ReaderPtr<T> from_;
  Accepts accepts_;
};

/// All elements but the first ones.
template <class T>
class Skipped final : public Reader<T> {
 public:
  Skipped(ReaderPtr<T> from, std::uint64_t count)
      : from_(std::move(from)), count_(count), left_(count) {}

  std::optional<Item<T>> next() override {
    for (; left_ > 0; --left_) {
      if (!from_->next()) return std::nullopt;
    }
    return from_->next();
  }
  std::optional<std::uint64_t> size() const override {
    const auto all = from_->size();
    if (!all || *all == endless) return all;
    return *all - std::min(*all, count_);
  }
  Item<T> at(std::uint64_t index) override { return from_->at(index + count_); }

 private:
  ReaderPtr<T> from_;
  std::uint64_t count_;
  std::uint64_t left_;
};

/// The elements of one data set, then those of another. Ids become combined_id(0 or 1, id).
template <class T>
class Concatenated final : public Reader<T> {
 public:
  Concatenated(ReaderPtr<T> first, ReaderPtr<T> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  std::optional<Item<T>> next() override {
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
    return *first == endless || *second == endless ? endless : *first + *second;
  }
  Item<T> at(std::uint64_t index) override {
    const std::uint64_t before = *first_->size();
    if (index < before) return numbered(0, first_->at(index));
    return numbered(1, second_->at(index - before));
  }

 private:
  static Item<T> numbered(std::uint64_t part, Item<T> item) {
    item.id = combined_id(part, item.id);
    return item;
  }

  ReaderPtr<T> first_;
  ReaderPtr<T> second_;
  bool first_ended_ = false;
};

/// Reads blocks of `block_length` elements from `cycle_length` open streams in turn; a stream that
/// ends is replaced by the next one, which is read in the next round.
template <class T>
class Interleaved final : public Reader<T> {
 public:
  using Stream = std::function<std::optional<Item<T>>()>;

  /// `open_next` returns the streams in order, and an empty function at the end.
  Interleaved(std::function<Stream()> open_next, std::size_t cycle_length, std::size_t block_length)
      : open_next_(std::move(open_next)),
        cycle_length_(cycle_length),
        block_length_(block_length) {}

  std::optional<Item<T>> next() override {
    while (fill()) {
      if (taken_ < block_length_) {
        if (auto item = open_[turn_]()) {
          ++taken_;
          return item;
        }
        replace();
      }
      taken_ = 0;
      ++turn_;
      if (turn_ >= open_.size()) turn_ = 0;
    }
    return std::nullopt;
  }

 private:
  /// Opens streams up to `cycle_length`; false if none is open.
  bool fill() {
    while (open_.size() < cycle_length_) {
      auto stream = opened();
      if (!stream) break;
      open_.push_back(std::move(stream));
    }
    return !open_.empty();
  }

  void replace() {
    open_[turn_] = opened();
    if (!open_[turn_]) open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(turn_--));
  }

  Stream opened() {
    auto stream = all_opened_ ? Stream() : open_next_();
    all_opened_ = !stream;
    return stream;
  }

  std::function<Stream()> open_next_;
  std::size_t cycle_length_;
  std::size_t block_length_;
  std::vector<Stream> open_;
  std::size_t turn_ = 0;
  std::size_t taken_ = 0;
  bool all_opened_ = false;
};

}  // namespace lockstep::readers

// Readers of usual elements are compiled in the library, so that programs need not.
// NOLINTBEGIN(bugprone-macro-parentheses): no expressions
#define LOCKSTEP_READERS(EXTERN, T)                           \
  EXTERN template class lockstep::readers::BatchesOf<T>;      \
  EXTERN template class lockstep::readers::Prefetched<T>;     \
  EXTERN template class lockstep::readers::Repeated<T>;       \
  EXTERN template class lockstep::readers::Shuffled<T>;       \
  EXTERN template class lockstep::readers::BufferShuffled<T>; \
  EXTERN template class lockstep::readers::Sharded<T>;        \
  EXTERN template class lockstep::readers::Skipped<T>;        \
  EXTERN template class lockstep::readers::Taken<T>;
#define LOCKSTEP_READERS_OF_USUAL_ELEMENTS(EXTERN)         \
  LOCKSTEP_READERS(EXTERN, std::int64_t)                   \
  LOCKSTEP_READERS(EXTERN, lockstep::Tensor<std::int64_t>) \
  LOCKSTEP_READERS(EXTERN, lockstep::Tensor<float>)        \
  LOCKSTEP_READERS(EXTERN, lockstep::Example)              \
  LOCKSTEP_READERS(EXTERN, lockstep::Batched<lockstep::Example>)
// NOLINTEND(bugprone-macro-parentheses)
LOCKSTEP_READERS_OF_USUAL_ELEMENTS(extern)

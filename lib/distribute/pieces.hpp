// One rank's pieces of a data set's batches, one a step. Users meet distributed_dataset.hpp alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lib/distribute/share.hpp"
#include "lib/distribute/structure.hpp"

namespace lockstep::pieces {

/// This rank's piece of each step, in order; none at the end of its own stream. Local.
template <class T>
using Pieces = std::function<std::optional<T>()>;

/// By the plan: only what is this rank's is read.
template <BatchLike T>
Pieces<T> planned(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  return [shared, plan = *share.plan, rank = share.rank,
          step = std::uint64_t{0}]() mutable -> std::optional<T> {
    if (step == plan.steps()) return std::nullopt;
    const data::Range mine = plan.positions(step++, rank);
    return shared->rows(mine.size() > 0 ? mine : data::Range{0, 0});
  };
}

inline data::Range piece_of_batch(std::uint64_t examples, const Share& share) {
  const std::uint64_t leaf = share.leaf > 0 ? share.leaf : data::automatic_leaf(examples);
  return data::piece_of(examples, leaf, share.rank, share.ranks);
}

/// Under DATA, without an end: only what is this rank's is read.
template <BatchLike T>
Pieces<T> endless_batches(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  const data::Range mine = piece_of_batch(share.batch_size, share);
  return [shared, mine, size = share.batch_size,
          first = std::uint64_t{0}]() mutable -> std::optional<T> {
    const std::uint64_t at = std::exchange(first, first + size);
    return shared->rows({at + mine.begin, at + mine.end});
  };
}

/// Under DATA, of a stream: every rank reads all batches and keeps its pieces.
template <BatchLike T>
Pieces<T> kept(ReaderPtr<T> reader, const Share& share) {
  const auto shared = std::shared_ptr<Reader<T>>(std::move(reader));
  return [shared, share]() -> std::optional<T> {
    const auto batch = shared->next();
    if (!batch) return std::nullopt;
    const data::Range mine = piece_of_batch(rows_of(batch->value), share);
    return cut(batch->value, mine.begin, mine.end);
  };
}

/// Under FILE and OFF, rule `ceil`: each batch of this rank's own stream in as many pieces as there
/// are replicas, of which the last may be empty. `all_alike`: so they are on all ranks, and left
/// out.
template <BatchLike T>
Pieces<T> own(ReaderPtr<T> reader, const Share& share, bool all_alike) {
  struct State {
    ReaderPtr<T> reader;
    std::optional<Item<T>> batch;
    std::uint64_t piece = 0;
  };
  const auto state = std::make_shared<State>(State{std::move(reader), {}, share.ranks});
  return [state, all_alike, ranks = share.ranks]() -> std::optional<T> {
    while (true) {
      if (state->piece == ranks) {
        state->batch = state->reader->next();
        if (!state->batch) return std::nullopt;
        state->piece = 0;
      }
      const T& batch = state->batch->value;
      const auto mine = data::piece_of(rows_of(batch), 1, state->piece++, ranks);
      if (mine.size() > 0 || !all_alike) return cut(batch, mine.begin, mine.end);
    }
  };
}

/// Under FILE and OFF, rule `balanced`: pieces reach across the ends of batches.
template <BatchLike T>
class Balanced {
 public:
  Balanced(ReaderPtr<T> reader, const Share& share)
      : reader_(std::move(reader)),
        sizes_(data::BalancedPieces(share.batch_size, share.ranks).sizes(share.rank)) {}

  std::optional<T> next() {
    const std::uint64_t wanted = sizes_[turn_++ % sizes_.size()];
    std::vector<T> parts;
    for (std::uint64_t have = 0; have < wanted; have += rows_of(parts.back())) {
      if (at_ == end_ && !read()) break;
      const std::uint64_t some = std::min(wanted - have, end_ - at_);
      parts.push_back(cut(batch_->value, at_, at_ + some));
      at_ += some;
    }
    if (parts.empty()) return std::nullopt;
    return join(parts);
  }

 private:
  bool read() {
    do {
      batch_ = reader_->next();
      if (!batch_) return false;
      at_ = 0;
      end_ = rows_of(batch_->value);
    } while (end_ == 0);
    return true;
  }

  ReaderPtr<T> reader_;
  std::vector<std::uint64_t> sizes_;
  std::size_t turn_ = 0;
  std::optional<Item<T>> batch_;
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
};

template <BatchLike T>
Pieces<T> balanced(ReaderPtr<T> reader, const Share& share) {
  const auto state = std::make_shared<Balanced<T>>(std::move(reader), share);
  return [state] { return state->next(); };
}

/// The pieces of `epoch`, as the share says.
template <BatchLike T>
Pieces<T> of(const Dataset<T>& dataset, const Share& share, std::uint64_t epoch) {
  auto reader = dataset.open_plain(share.pass(epoch));
  if (share.plan) return planned(std::move(reader), share);
  if (share.endless_batches) return endless_batches(std::move(reader), share);
  if (share.choice.policy == data::ShardPolicy::data) return kept(std::move(reader), share);
  if (share.rebatch == data::Rebatch::balanced) return balanced(std::move(reader), share);
  const bool all_alike = share.choice.policy == data::ShardPolicy::off || share.ranks == 1;
  return own(std::move(reader), share, all_alike);
}

}  // namespace lockstep::pieces

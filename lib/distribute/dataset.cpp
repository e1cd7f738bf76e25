#include "lockstep/distribute/dataset.hpp"

#include <algorithm>

#include "lockstep/distribute/readers.hpp"

namespace lockstep::readers {
namespace {

using Samples = std::function<std::string()>;

Samples combined_samples(const Samples& a, const Samples& b) {
  if (!a || !b) return a ? a : b;
  return [a, b] { return a() + ", " + b(); };
}

/// The facts of a data set that reads two others. A worker can read its own files only if both come
/// from files; batch sizes count only if they are equal.
DatasetFacts combined_facts(const DatasetFacts& a, const DatasetFacts& b) {
  const bool batched = a.batch_size == b.batch_size;
  return {.files = std::min(a.files, b.files),
          .batch_size = batched ? a.batch_size : 0,
          .drop_remainder = batched && a.drop_remainder && b.drop_remainder,
          .reads_ahead = a.reads_ahead || b.reads_ahead,
          .identity = a.identity + ", " + b.identity,
          .samples = combined_samples(a.samples, b.samples)};
}

}  // namespace

LOCKSTEP_USUAL_ELEMENTS()

Next values_of(ReaderPtr reader) {
  return [shared = std::shared_ptr<Reader>(std::move(reader))]() -> Any {
    auto item = shared->next();
    return item ? std::move(item->value) : nullptr;
  };
}

Pipeline::Pipeline(Open open, DatasetFacts facts, std::shared_ptr<const SourceRecords> records)
    : open_(std::move(open)), facts_(std::move(facts)), records_(std::move(records)) {}

ReaderPtr Pipeline::open(const Pass& pass) const { return opener()(pass); }

Pipeline Pipeline::identified(const std::string& text) const {
  Pipeline named = *this;
  named.facts_.identity += ", " + text;
  return named;
}

Pipeline::Open Pipeline::opener() const {
  if (facts_.prefetch == 0) return open_;
  return [open = open_, depth = facts_.prefetch](const Pass& pass) {
    return std::make_unique<Prefetched>(open(pass), depth);
  };
}

DatasetFacts Pipeline::behind_prefetch(const std::string& step) const {
  DatasetFacts facts = facts_;
  facts.prefetch = 0;
  if (!step.empty()) facts.identity += ", " + step;
  return facts;
}

DatasetFacts Pipeline::not_batched(const std::string& step) const {
  DatasetFacts facts = behind_prefetch(step);
  facts.batch_size = 0;
  facts.drop_remainder = false;
  return facts;
}

Pipeline Pipeline::map(std::function<Any(Item)> function) const {
  return {[open = opener(), function = std::move(function)](const Pass& pass) {
            return std::make_unique<Mapped>(open(pass), function);
          },
          behind_prefetch()};
}

Pipeline Pipeline::filter(std::function<bool(const Any&)> accepts) const {
  return {[open = opener(), accepts = std::move(accepts)](const Pass& pass) {
            return std::make_unique<Filtered>(open(pass), accepts);
          },
          behind_prefetch()};
}

Pipeline Pipeline::batch(std::uint64_t size, bool drop_remainder, const Batching& type) const {
  if (size == 0) throw ConfigError("batches of 0 elements", "give at least 1");
  DatasetFacts facts = behind_prefetch();
  facts.batch_size = size;
  facts.drop_remainder = drop_remainder;
  if (records_) {
    return {[records = records_, size, drop_remainder](const Pass& pass) {
              return records->open_batches(*records, pass, size, drop_remainder);
            },
            facts};
  }
  return {[open = opener(), size, drop_remainder, &type](const Pass& pass) {
            return std::make_unique<BatchesOf>(open(pass), size, drop_remainder, type);
          },
          facts};
}

Pipeline Pipeline::repeat(std::uint64_t times) const {
  return {[open = opener(), times](const Pass& pass) {
            return std::make_unique<Repeated>(open, pass, times);
          },
          behind_prefetch("repeat " + std::to_string(times))};
}

Pipeline Pipeline::take(std::uint64_t count) const {
  return {[open = opener(), count](const Pass& pass) {
            return std::make_unique<Taken>(open(pass), count);
          },
          behind_prefetch("take " + std::to_string(count))};
}

Pipeline Pipeline::skip(std::uint64_t count) const {
  return {[open = opener(), count](const Pass& pass) {
            return std::make_unique<Sharded>(open(pass), 1, count);
          },
          behind_prefetch("skip " + std::to_string(count))};
}

Pipeline Pipeline::shard(std::uint64_t count, std::uint64_t index) const {
  const std::string step = "shard " + std::to_string(index) + " of " + std::to_string(count);
  if (index >= count) throw ConfigError(step, "shards are counted from 0");
  return {[open = opener(), count, index](const Pass& pass) {
            return std::make_unique<Sharded>(open(pass), count, index);
          },
          behind_prefetch(step)};
}

Pipeline Pipeline::shuffle(std::uint64_t seed) const {
  const auto all = opener()({})->size();
  if (!all || *all == endless) {
    throw ConfigError("shuffle of a data set whose end is not known, or behind prefetch",
                      "give the number of elements to draw from: shuffle(seed, places); or put "
                      "prefetch last, and assert_cardinality() after shuffle()");
  }
  Pipeline shuffled({[open = opener(), seed](const Pass& pass) {
                       const std::uint64_t own = data::worker_seed(seed, pass.worker);
                       return std::make_unique<Shuffled>(open(pass), own, pass.epoch);
                     },
                     behind_prefetch("shuffle with seed " + std::to_string(seed))});
  if (records_ && !records_->seed) {
    auto records = *records_;
    records.seed = seed;
    shuffled.records_ = std::make_shared<const SourceRecords>(std::move(records));
  }
  return shuffled;
}

Pipeline Pipeline::shuffle(std::uint64_t seed, std::size_t places) const {
  if (places == 0) throw ConfigError("shuffle among 0 elements", "give at least 1");
  return {[open = opener(), seed, places](const Pass& pass) {
            const std::uint64_t own = data::worker_seed(seed, pass.worker);
            return std::make_unique<BufferShuffled>(open(pass), own, pass.epoch, places);
          },
          behind_prefetch("shuffle with seed " + std::to_string(seed) + " among " +
                          std::to_string(places))};
}

Pipeline Pipeline::prefetch(std::size_t depth) const {
  if (depth == 0) throw ConfigError("prefetch of 0 elements", "give at least 1, or leave it out");
  require_depth(depth, "prefetch");
  DatasetFacts facts = facts_;
  facts.prefetch = depth;
  facts.reads_ahead = true;
  return {opener(), std::move(facts)};
}

Pipeline Pipeline::assert_cardinality(std::uint64_t count) const {
  return {[open = opener(), count](const Pass& pass) {
            return std::make_unique<Counted>(open(pass), count);
          },
          behind_prefetch()};
}

Pipeline Pipeline::enumerate(std::int64_t first,
                             Any (*numbered)(std::int64_t number, Any element)) const {
  return {[open = opener(), first, numbered](const Pass& pass) {
            return std::make_unique<Enumerated>(open(pass), first, numbered);
          },
          not_batched("enumerate from " + std::to_string(first))};
}

Pipeline Pipeline::zip(const Pipeline& other, Any (*paired)(Any first, Any second)) const {
  return {[mine = opener(), theirs = other.opener(), paired](const Pass& pass) {
            return std::make_unique<Zipped>(mine(pass), theirs(pass), paired);
          },
          combined_facts(facts_, other.facts_)};
}

Pipeline Pipeline::concatenate(const Pipeline& other) const {
  return {[mine = opener(), theirs = other.opener()](const Pass& pass) {
            return std::make_unique<Concatenated>(mine(pass), theirs(pass));
          },
          combined_facts(facts_, other.facts_)};
}

Pipeline Pipeline::interleave(std::function<Pipeline(Any)> function, std::size_t cycle_length,
                              std::size_t block_length) const {
  require_lengths(cycle_length, block_length);
  const auto open_pass = [open = opener(), function = std::move(function), cycle_length,
                          block_length](const Pass& pass) -> ReaderPtr {
    const auto outer = std::shared_ptr<Reader>(open(pass));
    const auto open_next = [outer, function]() -> Interleaved::Stream {
      auto item = outer->next();
      if (!item) return {};
      const auto inner = function(std::move(item->value));
      const auto reader = std::shared_ptr<Reader>(inner.open({.epoch = item->epoch}));
      return [reader, id = item->id]() {
        auto element = reader->next();
        if (element) element->id = combined_id(id, element->id);
        return element;
      };
    };
    return std::make_unique<Interleaved>(open_next, cycle_length, block_length);
  };
  return {open_pass, not_batched("interleave " + std::to_string(cycle_length) + " by " +
                                 std::to_string(block_length))};
}

}  // namespace lockstep::readers

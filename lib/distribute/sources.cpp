#include "lib/distribute/sources.hpp"

#include <array>

namespace lockstep {
namespace {

class Range final : public IndexedReader<std::int64_t> {
 public:
  Range(std::uint64_t count, std::uint64_t epoch) : count_(count), epoch_(epoch) {}

  std::optional<std::uint64_t> size() const override { return count_; }
  Item<std::int64_t> at(std::uint64_t index) override {
    return {static_cast<std::int64_t>(index), index, epoch_};
  }

 private:
  std::uint64_t count_;
  std::uint64_t epoch_;
};

struct SharedSource {
  std::shared_ptr<data::Source> source;
  std::mutex reading;
};

class Records final : public IndexedReader<Example> {
 public:
  Records(std::shared_ptr<SharedSource> shared, const Pass& pass)
      : shared_(std::move(shared)), pass_(pass) {
    if (pass.workers == 1) return;
    streams_.emplace(shared_->source->file_records(), pass.workers);
  }

  std::optional<std::uint64_t> size() const override {
    return streams_ ? streams_->lengths()[pass_.worker] : shared_->source->records();
  }

  Item<Example> at(std::uint64_t index) override {
    const std::uint64_t id = streams_ ? streams_->record(pass_.worker, index) : index;
    std::vector<float> features(shared_->source->features());
    std::int32_t label = 0;
    {
      const std::lock_guard lock(shared_->reading);
      shared_->source->read(std::span(&id, 1), features, std::span(&label, 1));
    }
    return {{Tensor<float>(std::move(features)), label}, id, pass_.epoch};
  }

 private:
  std::shared_ptr<SharedSource> shared_;
  Pass pass_;
  std::optional<data::FileStreams> streams_;
};

}  // namespace

Dataset<std::int64_t> range(std::int64_t count) {
  if (count < 0) throw ConfigError("a range of " + std::to_string(count), "give at least 0");
  const auto size = static_cast<std::uint64_t>(count);
  return {[size](const Pass& pass) { return std::make_unique<Range>(size, pass.epoch); },
          {.identity = "range " + std::to_string(count)}};
}

Dataset<Example> from_source(std::shared_ptr<data::Source> source) {
  const auto shared = std::make_shared<SharedSource>();
  shared->source = std::move(source);
  return {[shared](const Pass& pass) { return std::make_unique<Records>(shared, pass); },
          {.files = shared->source->file_records().size(), .identity = shared->source->identity()}};
}

}  // namespace lockstep

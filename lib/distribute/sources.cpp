#include "lockstep/distribute/sources.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <type_traits>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/permutation.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/distribute/readers.hpp"

namespace lockstep {

/// A source, and the mutex that serialises its readers.
struct SharedSource {
  std::shared_ptr<data::Source> source;
  std::mutex reading;
};

namespace {

class RangeReader final : public IndexedReader<std::int64_t> {
 public:
  RangeReader(std::uint64_t count, std::uint64_t epoch) : count_(count), epoch_(epoch) {}

  std::optional<std::uint64_t> size() const override { return count_; }
  Item<std::int64_t> at(std::uint64_t index) override {
    return {static_cast<std::int64_t>(index), index, epoch_};
  }

 private:
  std::uint64_t count_;
  std::uint64_t epoch_;
};

class ListedFiles final : public IndexedReader<std::string> {
 public:
  ListedFiles(std::vector<NumberedFile> files, std::uint64_t epoch)
      : files_(std::move(files)), epoch_(epoch) {}

  std::optional<std::uint64_t> size() const override { return files_.size(); }
  Item<std::string> at(std::uint64_t index) override {
    return {files_.at(index).path, files_.at(index).number, epoch_};
  }

 private:
  std::vector<NumberedFile> files_;
  std::uint64_t epoch_;
};

/// How the targets of records become those of elements and of batches.
struct Labels {
  using Record = Example;
  static std::int32_t of_one(const data::Source&, std::uint64_t, std::int32_t label) {
    return label;
  }
  static Tensor<std::int32_t> of_batch(const data::RecordTargets& targets, std::size_t) {
    return {{targets.labels.size()}, {targets.labels.begin(), targets.labels.end()}};
  }
};

struct Values {
  using Record = ValuesExample;
  static Tensor<float> of_one(const data::Source& source, std::uint64_t id, std::int32_t) {
    std::vector<float> values(source.targets());
    source.target_values(id, values);
    return Tensor<float>(std::move(values));
  }
  static Tensor<float> of_batch(const data::RecordTargets& targets, std::size_t width) {
    return {{targets.values.size() / width, width}, {targets.values.begin(), targets.values.end()}};
  }
};

/// The records of a source.
template <class Targets>
class Records final : public IndexedReader<typename Targets::Record> {
 public:
  using Record = typename Targets::Record;

  Records(std::shared_ptr<SharedSource> shared, const Pass& pass)
      : shared_(std::move(shared)), pass_(pass) {
    if (pass.workers == 1) return;
    streams_.emplace(shared_->source->file_records(), pass.workers);
  }

  std::optional<std::uint64_t> size() const override {
    return streams_ ? streams_->lengths()[pass_.worker] : shared_->source->records();
  }

  Item<Record> at(std::uint64_t index) override {
    const std::uint64_t id = streams_ ? streams_->record(pass_.worker, index) : index;
    std::vector<float> features(shared_->source->features());
    std::int32_t label = 0;
    {
      const std::lock_guard lock(shared_->reading);
      shared_->source->read(std::span(&id, 1), features, std::span(&label, 1));
    }
    return {{Tensor<float>(std::move(features)), Targets::of_one(*shared_->source, id, label)},
            id,
            pass_.epoch};
  }

 private:
  std::shared_ptr<SharedSource> shared_;
  Pass pass_;
  std::optional<data::FileStreams> streams_;
};

/// Batches of a source's records.
template <class Targets>
class SourceBatches final : public IndexedReader<Batched<typename Targets::Record>> {
 public:
  using Record = typename Targets::Record;

  SourceBatches(std::shared_ptr<SharedSource> shared, const data::PlanOptions& options,
                const Pass& pass, bool drop_remainder)
      : shared_(std::move(shared)),
        plan_(options),
        worker_(plan_.options().ranks > 1 ? pass.worker : 0),
        reader_(*shared_->source, plan_, static_cast<int>(worker_)),
        epoch_(pass.epoch),
        size_(options.batch_size),
        examples_(plan_.examples_of(worker_)) {
    if (drop_remainder) examples_ -= examples_ % size_;
  }

  std::optional<std::uint64_t> size() const override { return data::ceil_divide(examples_, size_); }

  Item<Batched<Record>> at(std::uint64_t index) override {
    const std::uint64_t begin = index * size_;
    return {rows({begin, std::min(begin + size_, examples_)}), plan_.record(epoch_, worker_, begin),
            epoch_};
  }

  std::optional<std::uint64_t> examples() const override { return examples_; }

  Batched<Record> rows(Range positions) override {
    const auto count = static_cast<std::size_t>(positions.size());
    const std::size_t features = reader_.features();
    std::vector<float> x(count * features);
    data::RecordTargets targets;
    if (count > 0) {
      const std::lock_guard lock(shared_->reading);
      targets = reader_.read_positions(epoch_, positions, x);
    }
    return {Tensor<float>({count, features}, std::move(x)),
            Targets::of_batch(targets, reader_.targets())};
  }

 private:
  std::shared_ptr<SharedSource> shared_;
  data::Plan plan_;
  std::uint64_t worker_;
  data::BatchReader reader_;
  std::uint64_t epoch_;
  std::uint64_t size_;
  std::uint64_t examples_;
};

}  // namespace

template <class Record>
ReaderPtr<Batched<Record>> open_batches(const SourceRecords& records, const Pass& pass,
                                        std::uint64_t size, bool drop_remainder) {
  using Targets = std::conditional_t<std::is_same_v<Record, Example>, Labels, Values>;
  const data::Source& source = *records.source->source;
  data::PlanOptions options = {.records = source.records(), .batch_size = size};
  options.policy = data::ShardPolicy::data;
  if (pass.workers > 1 && !source.file_records().empty()) {  // the files of each worker
    options.policy = data::ShardPolicy::file;
    options.ranks = pass.workers;
    options.file_records = source.file_records();
  }
  if (records.seed) {
    options.shuffle = data::Shuffle::global;
    options.seed = *records.seed;
  }
  return std::make_unique<SourceBatches<Targets>>(records.source, options, pass, drop_remainder);
}

template ReaderPtr<Batched<Example>> open_batches<Example>(const SourceRecords&, const Pass&,
                                                           std::uint64_t, bool);
template ReaderPtr<Batched<ValuesExample>> open_batches<ValuesExample>(const SourceRecords&,
                                                                       const Pass&, std::uint64_t,
                                                                       bool);

Dataset<std::int64_t> range_dataset(std::int64_t count) {
  if (count < 0) throw ConfigError("a range of " + std::to_string(count), "give at least 0");
  const auto size = static_cast<std::uint64_t>(count);
  return {[size](const Pass& pass) { return std::make_unique<RangeReader>(size, pass.epoch); },
          {.identity = "range " + std::to_string(count)}};
}

Dataset<std::string> list_files(const std::string& pattern) {
  auto paths = regular_files(pattern);
  DatasetFacts facts{.files = paths.size(), .identity = identity_of(paths)};
  return {[paths = std::move(paths)](const Pass& pass) {
            return std::make_unique<ListedFiles>(dealt_files(paths, pass), pass.epoch);
          },
          facts};
}

DatasetFacts combined_facts(const DatasetFacts& a, const DatasetFacts& b) {
  const bool batched = a.batch_size == b.batch_size;
  return {.files = std::min(a.files, b.files),
          .batch_size = batched ? a.batch_size : 0,
          .drop_remainder = batched && a.drop_remainder && b.drop_remainder,
          .reads_ahead = a.reads_ahead || b.reads_ahead,
          .identity = a.identity + ", " + b.identity};
}

namespace readers {
std::uint64_t combined_id(std::uint64_t outer, std::uint64_t inner) noexcept {
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto block = Philox::at({low(inner), low(inner >> 32), 0, 0}, philox_key(outer));
  return std::uint64_t{block[0]} << 32 | block[1];
}
}  // namespace readers

namespace {

template <class Targets>
Dataset<typename Targets::Record> records_of(std::shared_ptr<data::Source> source) {
  if (source->has_weights()) {
    throw ConfigError("a data set of records with weights (TableOptions::weight_column)",
                      "leave the weights out, or train on data::BatchReader with Trainer");
  }
  const auto shared = std::make_shared<SharedSource>();
  shared->source = std::move(source);
  return {[shared](const Pass& pass) { return std::make_unique<Records<Targets>>(shared, pass); },
          {.files = shared->source->file_records().size(), .identity = shared->source->identity()},
          SourceRecords{shared}};
}

}  // namespace

Dataset<Example> from_source(std::shared_ptr<data::Source> source) {
  if (source->targets() == 0) return records_of<Labels>(std::move(source));
  throw ConfigError("from_source: its records have numbers to predict, not labels",
                    "use from_source_of_values, or give TableOptions the task classification");
}

Dataset<ValuesExample> from_source_of_values(std::shared_ptr<data::Source> source) {
  if (source->targets() > 0) return records_of<Values>(std::move(source));
  throw ConfigError("from_source_of_values: its records have labels",
                    "use from_source, or give TableOptions the task regression");
}

std::vector<std::string> regular_files(const std::string& pattern) {
  std::vector<std::string> paths;
  for (const auto& path : data::files_matching(pattern)) {
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) paths.push_back(path.string());
  }
  if (!paths.empty()) return paths;
  throw DataError(pattern + ": no such regular file", "give a pattern that matches the data");
}

std::vector<NumberedFile> dealt_files(const std::vector<std::string>& paths, const Pass& pass) {
  std::vector<NumberedFile> files;
  for (std::uint64_t i = pass.worker; i < paths.size(); i += pass.workers) {
    files.push_back({paths[i], i});
  }
  return files;
}

std::vector<NumberedFile> shuffled_files(const std::vector<NumberedFile>& files, std::uint64_t seed,
                                         const Pass& pass) {
  const std::uint64_t own = seed_for(RandomUse::files, data::worker_seed(seed, pass.worker));
  const data::Permutation order(files.size(), own, pass.epoch);
  std::vector<NumberedFile> shuffled;
  for (std::uint64_t i = 0; i < files.size(); ++i) shuffled.push_back(files[order(i)]);
  return shuffled;
}

std::uint64_t file_record_id(std::uint64_t number, std::uint64_t place) noexcept {
  return (number << 40) + place;
}

std::string identity_of(const std::vector<std::string>& paths) {
  const std::uint64_t blocks = data::sampled_blocks_of_each(paths.size());
  Hash hash;
  for (const auto& path : paths) {
    hash.add(std::filesystem::path(path).filename().string());
    data::RegularFile(path).add_sample(hash, blocks);
  }
  return counted(paths.size(), "file") + ", hash of names and samples " + to_hex(hash.value());
}

void require_lengths(std::size_t cycle_length, std::size_t block_length) {
  if (cycle_length > 0 && block_length > 0) return;
  throw ConfigError("reading in turn with cycle_length " + std::to_string(cycle_length) +
                        " and block_length " + std::to_string(block_length),
                    "give at least 1 for both");
}

}  // namespace lockstep

#include "lockstep/distribute/sources.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/tfrecord.hpp"
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
  static std::int32_t of_one(const data::Source&, std::uint64_t, std::int32_t label) {
    return label;
  }
  static Tensor<std::int32_t> of_batch(const data::RecordTargets& targets, std::size_t) {
    return {{targets.labels.size()}, {targets.labels.begin(), targets.labels.end()}};
  }
};

struct Values {
  static Tensor<float> of_one(const data::Source& source, std::uint64_t id, std::int32_t) {
    std::vector<float> values(source.targets());
    source.target_values(id, values);
    return Tensor<float>(std::move(values));
  }
  static Tensor<float> of_batch(const data::RecordTargets& targets, std::size_t width) {
    return {{targets.values.size() / width, width}, {targets.values.begin(), targets.values.end()}};
  }
};

template <class Record>
constexpr bool has_weight = std::tuple_size_v<Record> == 3;

template <class Record>
using TargetsOf = std::conditional_t<std::is_same_v<std::tuple_element_t<1, Record>, std::int32_t>,
                                     Labels, Values>;

/// The records of a source.
template <class Record>
class Records final : public IndexedReader<Record> {
 public:
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
    auto target = TargetsOf<Record>::of_one(*shared_->source, id, label);
    Tensor<float> x(std::move(features));
    if constexpr (has_weight<Record>) {
      return {{std::move(x), std::move(target), shared_->source->weight(id)}, id, pass_.epoch};
    } else {
      return {{std::move(x), std::move(target)}, id, pass_.epoch};
    }
  }

 private:
  std::shared_ptr<SharedSource> shared_;
  Pass pass_;
  std::optional<data::FileStreams> streams_;
};

/// Batches of a source's records.
template <class Record>
class SourceBatches final : public IndexedReader<Batched<Record>> {
 public:
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
    Tensor<float> rows({count, features}, std::move(x));
    auto of_rows = TargetsOf<Record>::of_batch(targets, reader_.targets());
    if constexpr (has_weight<Record>) {
      return {std::move(rows), std::move(of_rows),
              Tensor<float>({count}, {targets.weights.begin(), targets.weights.end()})};
    } else {
      return {std::move(rows), std::move(of_rows)};
    }
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

template <SourceRecord Record>
ReaderPtr<Batched<Record>> open_batches(const SourceRecords& records, const Pass& pass,
                                        std::uint64_t size, bool drop_remainder) {
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
  return std::make_unique<SourceBatches<Record>>(records.source, options, pass, drop_remainder);
}

// clang-format off
template ReaderPtr<Batched<Example>> open_batches<Example>(
    const SourceRecords&, const Pass&, std::uint64_t, bool);
template ReaderPtr<Batched<ValuesExample>> open_batches<ValuesExample>(
    const SourceRecords&, const Pass&, std::uint64_t, bool);
template ReaderPtr<Batched<WeightedExample>> open_batches<WeightedExample>(
    const SourceRecords&, const Pass&, std::uint64_t, bool);
template ReaderPtr<Batched<WeightedValuesExample>> open_batches<WeightedValuesExample>(
    const SourceRecords&, const Pass&, std::uint64_t, bool);
// clang-format on

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

namespace {

/// Throws ConfigError unless the records of `source` are of this type.
template <class Record>
void require_records(const data::Source& source, const std::string& function) {
  const std::string of_values = "_of_values";
  if constexpr (std::is_same_v<TargetsOf<Record>, Labels>) {
    if (source.targets() > 0) {
      throw ConfigError(function + ": its records have numbers to predict, not labels",
                        "use " + function +
                            "_of_values, or give TableOptions the task "
                            "classification");
    }
  } else if (source.targets() == 0) {
    throw ConfigError(function + ": its records have labels",
                      "use " + function.substr(0, function.size() - of_values.size()) +
                          ", or give TableOptions the task regression");
  }
  if (source.has_weights() == has_weight<Record>) return;
  const std::string rest = function.substr(function.find("source"));
  if (has_weight<Record>) {
    throw ConfigError(function + ": its records have no weights",
                      "use from_" + rest + ", or give TableOptions the weight_column");
  }
  throw ConfigError(function + ": its records have weights",
                    "use from_weighted_" + rest + ", or give TableOptions no weight_column");
}

template <class Record>
Dataset<Record> records_of(std::shared_ptr<data::Source> source, const std::string& function) {
  require_records<Record>(*source, function);
  const auto shared = std::make_shared<SharedSource>();
  shared->source = std::move(source);
  return {[shared](const Pass& pass) { return std::make_unique<Records<Record>>(shared, pass); },
          {.files = shared->source->file_records().size(), .identity = shared->source->identity()},
          SourceRecords{shared}};
}

}  // namespace

Dataset<Example> from_source(std::shared_ptr<data::Source> source) {
  return records_of<Example>(std::move(source), "from_source");
}

Dataset<ValuesExample> from_source_of_values(std::shared_ptr<data::Source> source) {
  return records_of<ValuesExample>(std::move(source), "from_source_of_values");
}

Dataset<WeightedExample> from_weighted_source(std::shared_ptr<data::Source> source) {
  return records_of<WeightedExample>(std::move(source), "from_weighted_source");
}

Dataset<WeightedValuesExample> from_weighted_source_of_values(
    std::shared_ptr<data::Source> source) {
  return records_of<WeightedValuesExample>(std::move(source), "from_weighted_source_of_values");
}

namespace {

/// A feature's values as a tensor of the shape in its specification.
Feature tensor_of(const data::FeatureValues& values, const FeatureSpec& spec) {
  return std::visit(
      [&](const auto& list) {
        const Shape shape = spec.any_length ? Shape{list.size()} : spec.shape;
        return Feature(Tensor<typename std::decay_t<decltype(list)>::value_type>(shape, list));
      },
      values);
}

/// The specification as text: all that determines what is read from a file.
std::string identity_of(const FeatureSpecs& specs) {
  std::string text = "features";
  for (const auto& [name, spec] : specs) {
    text += " " + to_text(name) + " " + std::to_string(static_cast<int>(spec.type)) +
            (spec.any_length ? "[]" : to_text(spec.shape));
    if (!spec.default_value) continue;
    std::visit([&](const auto& list) { text += "=" + to_text(Tensor(list)); }, *spec.default_value);
  }
  return text;
}

}  // namespace

Dataset<Features> tfrecord_dataset(std::vector<std::string> paths, FeatureSpecs specs,
                                   const FileOptions& options) {
  data::require_features(specs);
  const std::string identity = identity_of(specs);
  const auto read = [specs = std::move(specs)](const std::string& path) -> Generator<Features> {
    const auto reader = std::make_shared<data::TfFeatureReader>(path, specs);
    return [specs, reader]() -> std::optional<Features> {
      const auto* const values = reader->next();
      if (values == nullptr) return std::nullopt;
      Features features;
      for (const auto& [name, list] : *values) {
        features.emplace(name, tensor_of(list, specs.at(name)));
      }
      return features;
    };
  };
  const auto examples = from_paths<Features>(std::move(paths), read, options);
  DatasetFacts facts = examples.facts();
  facts.identity += ", " + identity;
  return {[examples](const Pass& pass) { return examples.open(pass); }, facts};
}

Dataset<Example> from_record_files(const std::vector<data::RecordFiles>& files,
                                   const data::ReadOptions& options) {
  if (files.empty()) throw ConfigError("a data set of no files", "give at least one");
  const auto& first = files.front().records;
  const auto format = data::format_of_file(data::bare_name(first));
  if (!format) {
    throw ConfigError(first.string() + ": its name has no known format",
                      "name it *.csv, *.npy, *.tfrecord, or *-ubyte with *images* and *labels*");
  }
  std::vector<std::unique_ptr<data::Source>> parts;
  for (const auto& file : files) {
    parts.push_back(data::open_files(*format, file, options));
    if (parts.back()->features() == parts.front()->features()) continue;
    throw DataError(file.records.string() + ": " + counted(parts.back()->features(), "feature") +
                        " a record, but " + std::to_string(parts.front()->features()) + " in " +
                        first.string(),
                    "give files of one shape");
  }
  return from_source(std::make_shared<data::ConcatSource>(std::move(parts)));
}

}  // namespace lockstep

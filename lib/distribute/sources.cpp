#include "lockstep/distribute/sources.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/tfrecord.hpp"
#include "lockstep/distribute/readers.hpp"

namespace lockstep {

namespace {

using readers::Any;
using readers::boxed;
using readers::IndexedReader;
using readers::Item;
using readers::NumberedFile;
using readers::Pipeline;
using readers::Reader;
using readers::ReaderPtr;

/// Elements that a function returns by index, which is their id.
class Elements final : public IndexedReader {
 public:
  using ElementAt = std::function<Any(std::uint64_t)>;

  Elements(std::uint64_t count, ElementAt element_at, std::uint64_t epoch)
      : count_(count), element_at_(std::move(element_at)), epoch_(epoch) {}

  std::optional<std::uint64_t> size() const override { return count_; }
  Item at(std::uint64_t index) override { return {element_at_(index), index, epoch_}; }

 private:
  std::uint64_t count_;
  ElementAt element_at_;
  std::uint64_t epoch_;
};

/// Elements that a function returns, until it returns null. `start` makes the function when the
/// first element is read.
class Generated final : public Reader {
 public:
  Generated(std::function<readers::Next()> start, std::uint64_t epoch)
      : start_(std::move(start)), epoch_(epoch) {}

  std::optional<Item> next() override {
    if (ended_) return std::nullopt;
    if (!next_) next_ = start_();
    auto value = next_();
    ended_ = !value;
    if (ended_) return std::nullopt;
    return Item{std::move(value), id_++, epoch_};
  }

 private:
  std::function<readers::Next()> start_;
  readers::Next next_;
  std::uint64_t epoch_;
  std::uint64_t id_ = 0;
  bool ended_ = false;
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
class Records final : public IndexedReader {
 public:
  Records(std::shared_ptr<data::Source> source, const Pass& pass)
      : source_(std::move(source)), pass_(pass) {
    if (pass.workers == 1) return;
    const auto files = source_->file_records();
    if (!files.empty()) streams_.emplace(files, pass.workers);
  }

  std::optional<std::uint64_t> size() const override {
    return streams_ ? streams_->lengths()[pass_.worker] : source_->records();
  }

  Item at(std::uint64_t index) override {
    const std::uint64_t id = streams_ ? streams_->record(pass_.worker, index) : index;
    std::vector<float> features(source_->features());
    std::int32_t label = 0;
    const std::lock_guard lock(source_->reading());
    source_->read(std::span(&id, 1), features, std::span(&label, 1));
    auto target = TargetsOf<Record>::of_one(*source_, id, label);
    Tensor<float> x(std::move(features));
    if constexpr (has_weight<Record>) {
      return {boxed(Record(std::move(x), std::move(target), source_->weight(id))), id, pass_.epoch};
    } else {
      return {boxed(Record(std::move(x), std::move(target))), id, pass_.epoch};
    }
  }

 private:
  std::shared_ptr<data::Source> source_;
  Pass pass_;
  std::optional<data::FileStreams> streams_;
};

/// Batches of a source's records.
template <class Record>
class SourceBatches final : public IndexedReader {
 public:
  using Batch = Batched<Record>;

  SourceBatches(std::shared_ptr<data::Source> source, const data::PlanOptions& options,
                const Pass& pass, bool drop_remainder)
      : source_(std::move(source)),
        plan_(options),
        worker_(plan_.options().ranks > 1 ? pass.worker : 0),
        reader_(*source_, plan_, static_cast<int>(worker_)),
        epoch_(pass.epoch),
        size_(options.batch_size),
        examples_(plan_.examples_of(worker_)) {
    if (drop_remainder) examples_ -= examples_ % size_;
  }

  std::optional<std::uint64_t> size() const override { return ceil_divide(examples_, size_); }

  Item at(std::uint64_t index) override {
    const std::uint64_t begin = index * size_;
    return {rows({begin, std::min(begin + size_, examples_)}), plan_.record(epoch_, worker_, begin),
            epoch_};
  }

  std::optional<std::uint64_t> examples() const override { return examples_; }

  Any rows(Range positions) override {
    const auto count = static_cast<std::size_t>(positions.size());
    const std::size_t features = reader_.features();
    std::vector<float> x(count * features);
    data::RecordTargets targets;
    if (count > 0) targets = reader_.read_positions(epoch_, positions, x);
    Tensor<float> rows({count, features}, std::move(x));
    auto of_rows = TargetsOf<Record>::of_batch(targets, reader_.targets());
    if constexpr (has_weight<Record>) {
      Tensor<float> weights({count}, {targets.weights.begin(), targets.weights.end()});
      return boxed(Batch(std::move(rows), std::move(of_rows), std::move(weights)));
    } else {
      return boxed(Batch(std::move(rows), std::move(of_rows)));
    }
  }

 private:
  std::shared_ptr<data::Source> source_;
  data::Plan plan_;
  std::uint64_t worker_;
  data::BatchReader reader_;
  std::uint64_t epoch_;
  std::uint64_t size_;
  std::uint64_t examples_;
};

/// One pass over batches of `size` records.
template <class Record>
ReaderPtr open_batches(const readers::SourceRecords& records, const Pass& pass, std::uint64_t size,
                       bool drop_remainder) {
  const data::Source& source = *records.source;
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

}  // namespace

Pipeline readers::elements(std::uint64_t count, std::function<Any(std::uint64_t)> element_at) {
  return {[count, element_at = std::move(element_at)](const Pass& pass) {
            return std::make_unique<Elements>(count, element_at, pass.epoch);
          },
          {.identity = std::to_string(count) + " elements"}};
}

Pipeline readers::generated(std::function<Next()> start) {
  return {[start = std::move(start)](const Pass& pass) {
            return std::make_unique<Generated>(start, pass.epoch);
          },
          {.identity = "a generator"}};
}

Pipeline readers::from_paths(const std::vector<std::string>& paths,
                             std::function<Next(const std::string&)> read,
                             const FileOptions& options) {
  if (paths.empty()) throw ConfigError("a data set of no files", "give at least one");
  require_lengths(options.cycle_length, options.block_length);
  DatasetFacts facts{.files = paths.size(),
                     .identity = counted(paths.size(), "file") + ", " +
                                 std::to_string(options.cycle_length) + " at a time by " +
                                 std::to_string(options.block_length),
                     .samples = [paths] { return identity_of(paths); }};
  if (options.shuffle_files) {
    facts.identity += ", files shuffled with seed " + std::to_string(options.seed);
  }
  return {[paths, read = std::move(read), options](const Pass& pass) {
            auto files = dealt_files(paths, pass);
            if (options.shuffle_files) files = shuffled_files(files, options.seed, pass);
            return std::make_unique<Interleaved>(
                [files = std::move(files), read, epoch = pass.epoch,
                 opened = std::size_t{0}]() mutable -> Interleaved::Stream {
                  if (opened == files.size()) return {};
                  const NumberedFile& file = files[opened++];
                  return [next = read(file.path), number = file.number, epoch,
                          place = std::uint64_t{0}]() mutable -> std::optional<Item> {
                    auto value = next();
                    if (!value) return std::nullopt;
                    return Item{std::move(value), file_record_id(number, place++), epoch};
                  };
                },
                options.cycle_length, options.block_length);
          },
          facts};
}

Dataset<std::int64_t> range_dataset(std::int64_t count) {
  if (count < 0) throw ConfigError("a range of " + std::to_string(count), "give at least 0");
  const auto size = static_cast<std::uint64_t>(count);
  return Dataset<std::int64_t>(Pipeline(
      [size](const Pass& pass) {
        return std::make_unique<Elements>(
            size, [](std::uint64_t index) { return boxed(static_cast<std::int64_t>(index)); },
            pass.epoch);
      },
      {.identity = "range " + std::to_string(count)}));
}

Dataset<std::string> list_files(const std::string& pattern) {
  const auto paths =
      std::make_shared<const std::vector<std::string>>(readers::regular_files(pattern));
  return Dataset<std::string>(Pipeline(
      [paths](const Pass& pass) {
        auto all = std::make_unique<Elements>(
            paths->size(), [paths](std::uint64_t index) { return boxed((*paths)[index]); },
            pass.epoch);
        return std::make_unique<readers::Sharded>(std::move(all), pass.workers, pass.worker);
      },
      {.files = paths->size(), .identity = counted(paths->size(), "file"), .samples = [paths] {
         return readers::identity_of(*paths);
       }}));
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
  if (source == nullptr) {
    throw ConfigError(function + ": there is no data set", "give DataSetOptions::test_split");
  }
  require_records<Record>(*source, function);
  // Parts of a split that differ in their limit have one identity(): the number of records differs.
  return Dataset<Record>(Pipeline(
      [source](const Pass& pass) { return std::make_unique<Records<Record>>(source, pass); },
      {.files = source->file_records().size(),
       .identity = counted(source->records(), "record") + " of " + source->identity()},
      std::make_shared<const readers::SourceRecords>(
          readers::SourceRecords{source, open_batches<Record>})));
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

Dataset<Features> tfrecord_dataset(const std::vector<std::string>& paths, FeatureSpecs specs,
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
  const auto examples = from_paths<Features>(paths, read, options);
  return Dataset<Features>(examples.pipeline().identified(identity));
}

Dataset<Example> from_record_files(const std::vector<data::RecordFiles>& files,
                                   const data::ReadOptions& options) {
  if (files.empty()) throw ConfigError("a data set of no files", "give at least one");
  const auto& first = files.front().records;
  const auto format = data::format_of_file(data::bare_name(first));
  if (!format) {
    throw ConfigError(first + ": its name has no known format",
                      std::string("name it as one of ") + data::known_file_names +
                          ", or use from_source(data::open_files(format, file, options))");
  }
  return from_source(data::open_part(*format, files, options));
}

}  // namespace lockstep

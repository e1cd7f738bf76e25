#include "lockstep/distribute/record_files.hpp"

#include <memory>
#include <optional>

namespace lockstep {
namespace {

/// A feature's values as a tensor of the shape in its specification.
Feature tensor_of(const data::FeatureValues& values, const FeatureSpec& spec) {
  return std::visit(
      [&](const auto& list) {
        return Feature(Tensor<typename std::decay_t<decltype(list)>::value_type>(spec.shape, list));
      },
      values);
}

}  // namespace

Dataset<Features> tfrecord_dataset(std::vector<std::string> paths, FeatureSpecs specs,
                                   const FileOptions& options) {
  data::require_features(specs);
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
  return from_paths<Features>(std::move(paths), read, options);
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

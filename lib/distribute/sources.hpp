// Sources of data sets: ranges, records, vectors, generators and files; TFRecord with the features
// that a specification names, and the formats of the command.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/data/source.hpp"
#include "lockstep/distribute/dataset.hpp"

namespace lockstep {

/// The numbers 0 to count - 1. Each number is its own id.
Dataset<std::int64_t> range_dataset(std::int64_t count);

/// The records of `source`; under FILE, of each worker's files. A record's number is its id.
///
/// Batches of records, shuffled or not, are read as in the command: a data::BatchReader finds the
/// records of a batch in a data::Plan and reads them with one call of Source::read. Each
/// read holds Source::reading(), as those of Replica::evaluate() do.
/// Errors   throws ConfigError for records with values to predict, or with weights.
Dataset<Example> from_source(std::shared_ptr<data::Source> source);

/// The same for records with values to predict.
/// Errors   throws ConfigError for records with labels, or with weights.
Dataset<ValuesExample> from_source_of_values(std::shared_ptr<data::Source> source);

/// The same for records with weights (TableOptions::weight_column), with labels or with values.
/// Errors   throws ConfigError for records without weights, and for the others of labels and
///          values.
Dataset<WeightedExample> from_weighted_source(std::shared_ptr<data::Source> source);
Dataset<WeightedValuesExample> from_weighted_source_of_values(std::shared_ptr<data::Source> source);

/// Returns one element per call, and nullopt at the end, if there is one.
template <class T>
using Generator = std::function<std::optional<T>()>;

/// Options for reading several files as one stream.
struct FileOptions {
  std::size_t cycle_length = 1;  ///< files open at a time
  std::size_t block_length = 1;  ///< elements read from a file per turn
  bool shuffle_files = false;    ///< in an order that is a function of (seed, epoch) (and worker)
  std::uint64_t seed = 22;
};

namespace readers {
// The functions below, of elements whose type is hidden.

Pipeline elements(std::uint64_t count, std::function<Any(std::uint64_t)> element_at);
Pipeline generated(std::function<Next()> start);
Pipeline from_paths(const std::vector<std::string>& paths,
                    std::function<Next(const std::string&)> read, const FileOptions& options);

/// The regular files that match a shell pattern ("data/part-*.csv"), sorted by name; a path that
/// exists is taken as it is. Local.
/// Errors   throws DataError if no file matches.
std::vector<std::string> regular_files(const std::string& pattern);

template <class T>
Next boxed_values(Generator<T> next) {
  return [next = std::move(next)]() -> Any {
    auto value = next();
    return value ? boxed<T>(std::move(*value)) : nullptr;
  };
}

}  // namespace readers

/// The elements of a vector, in order; an element's index is its id.
template <class T>
Dataset<T> from_elements(std::vector<T> elements) {
  const auto shared = std::make_shared<const std::vector<T>>(std::move(elements));
  return Dataset<T>(readers::elements(shared->size(), [shared](std::uint64_t index) {
    return readers::boxed<T>((*shared)[index]);
  }));
}

/// The elements of a generator. `start` creates a new one for each epoch, so every pass begins at
/// the first element; it is called when the first element of the pass is read. A Strategy requires
/// the same elements on every rank, so a generator that depends on the rank belongs in
/// Strategy::distribute_datasets_from_function. An element's index in the pass is its id.
template <class T, class Start>
Dataset<T> from_generator(Start start) {
  static_assert(std::is_invocable_r_v<Generator<T>, Start&>,
                "from_generator: the function does not return a generator, a function that returns "
                "std::optional of the next element");
  return Dataset<T>(readers::generated([start = std::move(start)]() mutable {
    return readers::boxed_values<T>(Generator<T>(start()));
  }));
}

/// The regular files that match a shell pattern, sorted by name: see from_files. A path that exists
/// is taken as it is. Under FILE, worker w of N has files w, w + N, ... A file's index in the list
/// is its id.
/// Errors   throws DataError if no regular file matches, naming the pattern.
Dataset<std::string> list_files(const std::string& pattern);

/// The elements of the files `paths`, each read by `read(path)`.
///
/// Under FILE worker w of N reads (and shuffles) files w, w + N, ... The order is a function of
/// (seed, epoch). An element's id is its file's index in `paths` times 2^40 plus its index in the
/// file.
/// Errors   throws ConfigError for no files, and for a cycle or block of 0. A file that cannot be
///          read is an error when the data set is distributed or read.
template <class T>
Dataset<T> from_paths(const std::vector<std::string>& paths,
                      std::function<Generator<T>(const std::string& path)> read,
                      const FileOptions& options = {}) {
  return Dataset<T>(readers::from_paths(
      paths,
      [read = std::move(read)](const std::string& path) {
        return readers::boxed_values<T>(read(path));
      },
      options));
}

/// The same for the files that match a shell pattern, sorted by name: the list is the same on every
/// rank. A path that exists is taken as it is. Throws DataError if no regular file matches, naming
/// the pattern.
template <class T>
Dataset<T> from_files(const std::string& pattern,
                      std::function<Generator<T>(const std::string& path)> read,
                      const FileOptions& options = {}) {
  return from_paths<T>(readers::regular_files(pattern), std::move(read), options);
}

using data::FeatureSpec;
using data::FeatureSpecs;
using data::FeatureType;

/// The values of a feature: float32, int64 or bytes, by its specification.
using Feature = std::variant<Tensor<float>, Tensor<std::int64_t>, Tensor<std::string>>;

/// The features of an example by name, and those of a batch, with axis 0 counting examples:
///
///   const auto& images = std::get<Tensor<float>>(batch.at("image"));
using Features = std::map<std::string, Feature>;

/// The examples (tf.train.Example) of TFRecord files, plain or gzip-compressed, with the features
/// of a specification: tf.data.TFRecordDataset, mapped by tf.io.parse_single_example.
///
///   tfrecord_dataset({"a.tfrecord", "b.tfrecord"}, {{"image", {FeatureType::float32, {28, 28}}},
///                                                   {"label", {FeatureType::int64}}})
///   list_files("*.tfrecord").flat_map([=](auto& path) { return tfrecord_dataset({path}, specs); })
///
/// Reads in order and as from_paths.
/// Errors   throws what from_paths throws, and ConfigError for a specification of no features or
///          with default values of another type or number. Reading throws DataError, with the file,
///          the byte offset, the record and the feature: a missing feature without default value, a
///          list of another type or number of values, a damaged file.
Dataset<Features> tfrecord_dataset(const std::vector<std::string>& paths, FeatureSpecs specs,
                                   const FileOptions& options = {});

/// The numbers whose bytes (of this machine's order) are `bytes`, as tf.io.decode_raw. Throws
/// DataError unless their number divides.
template <Number T>
Tensor<T> decode_raw(const std::string& bytes) {
  if (bytes.size() % sizeof(T) != 0) {
    throw DataError(std::to_string(bytes.size()) + " bytes are not a whole number of values of " +
                        std::to_string(sizeof(T)) + " bytes",
                    "give the type that was written");
  }
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return Tensor<T>(std::move(values));
}

/// The records of CSV, NPY, IDX and TFRecord (`image` and `label`) files, one file after the other,
/// with random access: see from_source. The format is that of the first file's name; for IDX and
/// NPY each element has the paths of the images and of the labels.
/// Errors   throws ConfigError for no files and for a name of no format, and what
///          data::open_files throws.
Dataset<Example> from_record_files(const std::vector<data::RecordFiles>& files,
                                   const data::ReadOptions& options = {});

}  // namespace lockstep

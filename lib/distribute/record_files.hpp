// Data sets of record files by their paths: TFRecord with the features that a specification names,
// and the formats of the command.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/data/source.hpp"
#include "lockstep/data/tfrecord.hpp"
#include "lockstep/distribute/sources.hpp"

namespace lockstep {

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
Dataset<Features> tfrecord_dataset(std::vector<std::string> paths, FeatureSpecs specs,
                                   const FileOptions& options = {});

/// The numbers whose bytes (of this machine's order) are `bytes`, as tf.io.decode_raw. Throws
/// DataError unless their number divides.
template <Number T>
Tensor<T> decode_raw(const std::string& bytes) {
  if (bytes.size() % sizeof(T) != 0) {
    throw DataError(std::to_string(bytes.size()) + " bytes are no whole number of values of " +
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
/// Errors   throws ConfigError for no files and for a name of no format; DataError for files that
///          cannot be read, and that differ in features.
Dataset<Example> from_record_files(const std::vector<data::RecordFiles>& files,
                                   const data::ReadOptions& options = {});

}  // namespace lockstep

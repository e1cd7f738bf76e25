#include "data/writer.hpp"

#include <cstdio>

#include "data/format_writer.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

/// "train", or "train-00003-of-00016".
std::string stem_of(const Target& target, std::uint64_t file) {
  if (target.files == 1) return target.stem;
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05llu-of-%05llu", static_cast<unsigned long long>(file),
                static_cast<unsigned long long>(target.files));
  return target.stem + numbers;
}

/// floor(records * file / files), without overflow.
std::uint64_t first_of(std::uint64_t file, const Target& target, std::uint64_t records) {
  return records / target.files * file + records % target.files * file / target.files;
}

}  // namespace

std::uint64_t RecordShape::features() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : dims) product *= dim;
  return product;
}

std::vector<RecordFiles> files_of(const Target& target) {
  std::vector<RecordFiles> files;
  for (std::uint64_t i = 0; i < target.files; ++i) {
    const std::string stem = (target.folder / stem_of(target, i)).string();
    switch (target.format) {
      case Format::idx:
        files.push_back({stem + "-images-idx3-ubyte", stem + "-labels-idx1-ubyte"});
        break;
      case Format::npy: files.push_back({stem + "-images.npy", stem + "-labels.npy"}); break;
      case Format::csv:
      case Format::tfrecord: files.push_back({stem + "." + name_of(target.format), {}});
    }
  }
  return files;
}

FinishedFiles::FinishedFiles(std::vector<std::unique_ptr<FormatWriter>> writers)
    : writers_(std::move(writers)) {}
FinishedFiles::FinishedFiles(FinishedFiles&& other) noexcept = default;
FinishedFiles::~FinishedFiles() = default;

void FinishedFiles::publish() {
  for (const auto& writer : writers_) writer->publish();
}

void require_files(const Target& target, std::uint64_t records) {
  if (target.files > 0 && target.files <= records) return;
  throw ConfigError(std::to_string(records) + " " + target.stem + " records do not fill " +
                        std::to_string(target.files) + " files",
                    "ask for at least one file, and at most as many as there are records");
}

FinishedFiles finish_records(const Target& target, const RecordShape& shape,
                             const RecordAt& record) {
  require_files(target, shape.records);
  const auto paths = files_of(target);
  std::vector<std::unique_ptr<FormatWriter>> writers;
  std::vector<float> features(static_cast<std::size_t>(shape.features()));
  for (std::uint64_t file = 0; file < target.files; ++file) {
    const std::uint64_t first = first_of(file, target, shape.records);
    const std::uint64_t last = first_of(file + 1, target, shape.records);
    writers.push_back(new_format_writer(target.format, paths[static_cast<std::size_t>(file)],
                                        {last - first, shape.dims, shape.element}));
    for (std::uint64_t index = first; index < last; ++index) {
      const std::int32_t label = record(index, features);
      writers.back()->add(index, features, label);
      writers.back()->flush_some();
    }
    writers.back()->finish();
  }
  return FinishedFiles(std::move(writers));
}

void write_records(const Target& target, const RecordShape& shape, const RecordAt& record) {
  finish_records(target, shape, record).publish();
}

}  // namespace lockstep::data

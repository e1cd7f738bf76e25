#include "lib/distribute/sources.hpp"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "data/permutation.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/distribute/readers.hpp"

namespace lockstep {
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
  return {[size](const Pass& pass) { return std::make_unique<RangeReader>(size, pass.epoch); },
          {.identity = "range " + std::to_string(count)}};
}

Dataset<Example> from_source(std::shared_ptr<data::Source> source) {
  const auto shared = std::make_shared<SharedSource>();
  shared->source = std::move(source);
  return {[shared](const Pass& pass) { return std::make_unique<Records>(shared, pass); },
          {.files = shared->source->file_records().size(), .identity = shared->source->identity()}};
}

namespace {

struct FreeGlob {
  void operator()(glob_t* found) const noexcept {
    globfree(found);
    delete found;
  }
};

}  // namespace

std::vector<std::string> find_files(const std::string& pattern) {
  const std::unique_ptr<glob_t, FreeGlob> found(new glob_t{});
  const int code = glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, found.get());
  if (code != 0 && code != GLOB_NOMATCH) {
    throw DataError(pattern + ": cannot be searched for", "look at the folders' permissions");
  }
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < found->gl_pathc; ++i) {
    std::error_code error;
    const std::string path = found->gl_pathv[i];
    if (std::filesystem::is_regular_file(path, error)) paths.push_back(path);
  }
  if (paths.empty()) {
    throw DataError(pattern + ": no such regular file", "give a pattern that matches the data");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
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
  Hash names;
  for (const auto& path : paths) names.add(std::filesystem::path(path).filename().string());
  return counted(paths.size(), "file") + ", names' hash " + to_hex(names.value());
}

void require_lengths(std::size_t cycle_length, std::size_t block_length) {
  if (cycle_length > 0 && block_length > 0) return;
  throw ConfigError("files are read with cycle_length " + std::to_string(cycle_length) +
                        " and block_length " + std::to_string(block_length),
                    "give at least 1 for both");
}

}  // namespace lockstep

#include "lockstep/distribute/readers.hpp"

#include <exception>
#include <filesystem>
#include <set>
#include <system_error>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/read_ahead.hpp"

namespace lockstep {

struct Prefetcher::State {
  State(readers::Next function, std::size_t depth)
      : produce(std::move(function)),
        slots(depth + 1),
        ahead(slots.size(), depth,
              [this](std::size_t slot, std::uint64_t) { return fill(slots[slot]); }) {}

  bool fill(readers::Any& slot) {
    if (failure) std::rethrow_exception(failure);
    try {
      slot = produce();
    } catch (...) {
      failure = std::current_exception();
      throw;
    }
    return slot != nullptr;
  }

  readers::Next produce;
  std::exception_ptr failure;  // of `produce`, which is not called again
  std::uint64_t taken = 0;
  std::vector<readers::Any> slots;
  data::ReadAhead ahead;  // last member: its thread uses the members above
};

Prefetcher::Prefetcher(readers::Next produce, std::size_t depth)
    : state_(std::make_unique<State>(std::move(produce), depth)) {}
Prefetcher::~Prefetcher() = default;

readers::Any Prefetcher::next() {
  const auto slot = state_->ahead.take(state_->taken);
  if (!slot) return nullptr;
  ++state_->taken;
  return std::exchange(state_->slots[*slot], nullptr);
}

}  // namespace lockstep

namespace lockstep::readers {

std::vector<std::string> regular_files(const std::string& pattern) {
  std::error_code error;
  const auto found = std::filesystem::exists(pattern, error)
                         ? std::set<std::filesystem::path>{pattern}
                         : data::files_matching(pattern);
  std::vector<std::string> paths;
  for (const auto& path : found) {
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
  return "hash of names and samples " + to_hex(hash.value());
}

std::uint64_t combined_id(std::uint64_t outer, std::uint64_t inner) noexcept {
  const auto block = Philox::at({low_word(inner), high_word(inner), 0, 0}, philox_key(outer));
  return from_words(block[0], block[1]);
}

void require_depth(std::size_t depth, const std::string& what) {
  if (depth <= most_ahead) return;
  throw ConfigError(what + " of " + std::to_string(depth) + " elements",
                    "give at most " + grouped(most_ahead) + "; there is no AUTOTUNE (-1)");
}

void require_lengths(std::size_t cycle_length, std::size_t block_length) {
  if (cycle_length > 0 && block_length > 0) return;
  throw ConfigError("reading in turn with cycle_length " + std::to_string(cycle_length) +
                        " and block_length " + std::to_string(block_length),
                    "give at least 1 for both");
}

std::optional<Item> Interleaved::next() {
  while (fill()) {
    if (taken_ < block_length_) {
      if (auto item = open_[turn_]()) {
        ++taken_;
        return item;
      }
      replace();
    }
    taken_ = 0;
    ++turn_;
    if (turn_ >= open_.size()) turn_ = 0;
  }
  return std::nullopt;
}

/// Opens streams up to `cycle_length`; false if none is open.
bool Interleaved::fill() {
  while (open_.size() < cycle_length_) {
    auto stream = opened();
    if (!stream) break;
    open_.push_back(std::move(stream));
  }
  return !open_.empty();
}

void Interleaved::replace() {
  open_[turn_] = opened();
  if (!open_[turn_]) open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(turn_--));
}

Interleaved::Stream Interleaved::opened() {
  auto stream = all_opened_ ? Stream() : open_next_();
  all_opened_ = !stream;
  return stream;
}

}  // namespace lockstep::readers

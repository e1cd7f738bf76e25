#include "data/file_streams.hpp"

namespace lockstep::data {

FileStreams::FileStreams(std::span<const std::uint64_t> file_records, std::uint64_t workers)
    : workers_(workers), lengths_(workers) {
  first_.reserve(file_records.size());
  before_.reserve(file_records.size());
  std::uint64_t records = 0;
  for (std::size_t file = 0; file < file_records.size(); ++file) {
    std::uint64_t& stream = lengths_[file % workers];
    first_.push_back(records);
    before_.push_back(stream);
    records += file_records[file];
    stream += file_records[file];
  }
}

std::uint64_t FileStreams::record(std::uint64_t worker, std::uint64_t position) const noexcept {
  // The last of the worker's files that begins at or before `position` (empty files share their
  // beginning with the next one, so the last of them is the one that holds it).
  std::uint64_t low = 0;
  std::uint64_t high = (first_.size() - worker - 1) / workers_ + 1;  // files of this worker
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (before_[worker + middle * workers_] <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::uint64_t file = worker + low * workers_;
  return first_[file] + (position - before_[file]);
}

}  // namespace lockstep::data

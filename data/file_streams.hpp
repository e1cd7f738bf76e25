// Policy FILE's streams: the files of a data set dealt round-robin to workers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

/// Worker w of N reads the records of files w, w + N, w + 2N, ... in that order: its stream.
///
/// Two sums a file are kept; a record is found by bisection.
class FileStreams {
 public:
  /// `file_records`: records of each file, in global order.
  FileStreams(std::span<const std::uint64_t> file_records, std::uint64_t workers);

  /// Records of each worker's stream.
  const std::vector<std::uint64_t>& lengths() const noexcept { return lengths_; }

  /// The record (in global order) at `position` of the stream of `worker`; below its length.
  std::uint64_t record(std::uint64_t worker, std::uint64_t position) const noexcept;

 private:
  std::uint64_t workers_;
  std::vector<std::uint64_t> first_;   // of each file: its first record
  std::vector<std::uint64_t> before_;  // of each file: records before it in its worker's stream
  std::vector<std::uint64_t> lengths_;
};

}  // namespace lockstep::data

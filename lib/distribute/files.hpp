// Lists of files that every rank finds alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/distribute/reader.hpp"

namespace lockstep {

/// The regular files that match a shell pattern ("data/part-*.csv"), sorted by bytes. Local.
/// Errors   throws DataError where none does, or a folder cannot be read.
std::vector<std::string> find_files(const std::string& pattern);

/// A file, and its place in the sorted list of all.
struct NumberedFile {
  std::string path;
  std::uint64_t number = 0;
};

/// The files that this pass reads: worker w of N has w, w + N, ...
std::vector<NumberedFile> dealt_files(const std::vector<std::string>& paths, const Pass& pass);

/// In an order that is a function of (seed, epoch, worker).
std::vector<NumberedFile> shuffled_files(const std::vector<NumberedFile>& files, std::uint64_t seed,
                                         const Pass& pass);

/// The id of record `place` of file `number`: number * 2^40 + place.
std::uint64_t file_record_id(std::uint64_t number, std::uint64_t place) noexcept;

/// "3 files, ...": equal where the lists of names (without their folders) are.
std::string identity_of(const std::vector<std::string>& paths);

/// Throws ConfigError where one is 0.
void require_lengths(std::size_t cycle_length, std::size_t block_length);

namespace readers {

/// The seed of a worker's own order; that of worker 0 is `seed`.
std::uint64_t seed_of(std::uint64_t seed, const Pass& pass) noexcept;

}  // namespace readers
}  // namespace lockstep

#include "lib/distribute/files.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "data/permutation.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/distribute/random.hpp"

namespace lockstep {
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
  const data::Permutation order(files.size(), readers::seed_of(seed, pass), pass.epoch);
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

std::uint64_t readers::seed_of(std::uint64_t seed, const Pass& pass) noexcept {
  if (pass.worker == 0) return seed;
  constexpr std::uint32_t purpose = 0x46494c45;  // "FILE"
  return Draw{seed, 0, pass.worker}.word(purpose);
}

}  // namespace lockstep

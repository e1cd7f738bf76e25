#include "data/listing.hpp"

#include <glob.h>

#include <new>
#include <system_error>

#include "lib/base/errors.hpp"

namespace lockstep::data {

const char* const get_data =
    "fetch MNIST with scripts/get_mnist.sh FOLDER, or train on the built-in digits with --data "
    "synthetic";

namespace {

std::set<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw DataError(folder.string() + ": no such folder", get_data);
  }
  if (!error && !std::filesystem::is_directory(status)) {
    throw DataError(folder.string() + ": is not a folder", "name the folder that holds the files");
  }
  std::set<std::filesystem::path> files;
  std::filesystem::directory_iterator entry;
  if (!error) entry = std::filesystem::directory_iterator(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    files.insert(folder / entry->path().filename());
  }
  if (error) throw DataError(folder.string() + ": cannot be listed: " + error.message());
  if (files.empty()) throw DataError(folder.string() + ": the folder is empty", get_data);
  return files;
}

/// What glob(3) finds, freed at the end.
struct Matches {
  explicit Matches(const std::string& pattern)
      : code(::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found)) {}
  ~Matches() { ::globfree(&found); }
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;

  glob_t found{};
  int code;
};

std::set<std::filesystem::path> files_matching(const std::string& pattern) {
  const Matches matches(pattern);
  if (matches.code == GLOB_NOSPACE) throw std::bad_alloc();
  if (matches.code != 0) {
    throw DataError(pattern + ": no file matches the pattern",
                    "quote it, and check it with `ls`; or name the folder");
  }
  return {matches.found.gl_pathv, matches.found.gl_pathv + matches.found.gl_pathc};
}

}  // namespace

bool is_pattern(const std::string& path) {
  std::error_code ignored;
  return path.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(path, ignored);
}

std::set<std::filesystem::path> list_files(const std::string& path) {
  return is_pattern(path) ? files_matching(path) : files_in(path);
}

}  // namespace lockstep::data

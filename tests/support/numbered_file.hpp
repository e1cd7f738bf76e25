// Text files of one number a line, for tests of data sets from files.
#pragma once

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/distribute/sources.hpp"

namespace lockstep::test {

inline void write_numbers(const std::string& path, std::int64_t first, std::int64_t count) {
  std::ofstream file(path);
  for (std::int64_t i = 0; i < count; ++i) file << first + i << '\n';
}

/// Reads such a file.
inline Generator<std::int64_t> read_numbers(const std::string& path) {
  const auto file = std::make_shared<std::ifstream>(path);
  return [file]() -> std::optional<std::int64_t> {
    std::int64_t number = 0;
    if (*file >> number) return number;
    return std::nullopt;
  };
}

}  // namespace lockstep::test

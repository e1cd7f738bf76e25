// Changes files of a checkpoint so that manifest.json still matches: then the reader's own checks
// must find what is wrong.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/hash.hpp"

namespace lockstep::test {

inline void write_signed(const std::filesystem::path& checkpoint, const std::string& name,
                         const std::string& content) {
  std::ofstream(checkpoint / name, std::ios::binary) << content;
  const auto path = checkpoint / "manifest.json";
  std::ifstream file(path);
  auto manifest = nlohmann::ordered_json::parse(file);
  manifest["files"][name] = {{"bytes", content.size()}, {"xxh3", to_hex(hash_of(content))}};
  std::ofstream(path) << manifest.dump();
}

}  // namespace lockstep::test

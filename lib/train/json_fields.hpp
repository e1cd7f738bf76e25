// Reading JSON files that may be damaged: a field that is missing or of another kind is an error
// with file, line and field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::train {

/// The file and line that is read, for messages.
struct JsonPlace {
  std::filesystem::path path;
  std::size_t line = 0;  ///< 0: the file as a whole
  std::string remedy = {};
};

/// Throws DataError: "PATH:LINE: reason", and the place's remedy.
[[noreturn]] void fail(const JsonPlace& place, const std::string& reason);

/// Parses an object; `place` is where `text` begins.
///
/// Errors   throws DataError with the line: not JSON, cut off, or no object.
nlohmann::ordered_json parse_object(const std::string& text, const JsonPlace& place);

/// `object[key]`, and the same of one kind. Throw DataError where it is missing or another kind.
const nlohmann::ordered_json& field(const nlohmann::ordered_json& object, const char* key,
                                    const JsonPlace& place);
std::uint64_t count_in(const nlohmann::ordered_json& object, const char* key,
                       const JsonPlace& place);
double number_in(const nlohmann::ordered_json& object, const char* key, const JsonPlace& place);
std::string text_in(const nlohmann::ordered_json& object, const char* key, const JsonPlace& place);

/// `object[key]` as a list of whole numbers.
std::vector<std::uint64_t> counts_in(const nlohmann::ordered_json& object, const char* key,
                                     const JsonPlace& place);

}  // namespace lockstep::train

// Reads JSON files that may be damaged: a field that is missing or of another type is an error with
// file, line and field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/file.hpp"

namespace lockstep::train {

inline constexpr std::size_t max_keys = 10'000;    ///< of an object that is read
inline constexpr std::size_t max_key_bytes = 256;  ///< of a key in it

/// The file and line being read, for error messages.
struct JsonPlace {
  std::filesystem::path path;
  std::size_t line = 0;  ///< 0: the file as a whole
  std::string remedy = {};
};

/// Throws DataError: "PATH:LINE: reason", and the place's remedy.
[[noreturn]] void fail(const JsonPlace& place, const std::string& reason);

/// `bytes` bytes of a file from `offset` on, as text. Throws DataError as read_at() does.
std::string text_at(const data::RegularFile& file, std::uint64_t offset, std::uint64_t bytes);

/// Parses an object; `place` is the position of the beginning of `text`.
///
/// Damaged text costs little time and memory: before anything is built, the text is measured. It
/// may have 64 MiB, 64 levels of {} and [], max_keys in one object, 3,000,000 values, and
/// max_key_bytes in a key.
///
/// Errors   throws DataError with the line: not JSON, truncated, above these limits, or not an
///          object.
nlohmann::ordered_json parse_object(const std::string& text, const JsonPlace& place);

/// Parses the whole file `place.path`, as parse_object() does; one that is too long is not read.
nlohmann::ordered_json read_object(const JsonPlace& place);

/// `object[key]`, of any type or of one type. Throw DataError if it is missing or of another type.
const nlohmann::ordered_json& field(const nlohmann::ordered_json& object, const char* key,
                                    const JsonPlace& place);
std::uint64_t count_in(const nlohmann::ordered_json& object, const char* key,
                       const JsonPlace& place);
double number_in(const nlohmann::ordered_json& object, const char* key, const JsonPlace& place);
std::string text_in(const nlohmann::ordered_json& object, const char* key, const JsonPlace& place);

/// `object[key]`, a list of anything.
const nlohmann::ordered_json& list_in(const nlohmann::ordered_json& object, const char* key,
                                      const JsonPlace& place);

/// The keys and values of `object[key]`, an object of texts.
std::vector<std::pair<std::string, std::string>> text_pairs_in(const nlohmann::ordered_json& object,
                                                               const char* key,
                                                               const JsonPlace& place);

/// `object[key]` as a list of non-negative integers.
std::vector<std::uint64_t> counts_in(const nlohmann::ordered_json& object, const char* key,
                                     const JsonPlace& place);

/// `object[key]`, 16 lower-case hexadecimal digits.
std::uint64_t hash_in(const nlohmann::ordered_json& object, const char* key,
                      const JsonPlace& place);

/// Throws DataError unless `object` is one, with no other keys than `known`.
void require_keys(const nlohmann::ordered_json& object, const std::vector<std::string_view>& known,
                  const JsonPlace& place);

}  // namespace lockstep::train

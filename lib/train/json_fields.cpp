#include "lockstep/train/json_fields.hpp"

#include <algorithm>

#include "lockstep/base/errors.hpp"

namespace lockstep::train {

using nlohmann::ordered_json;

void fail(const JsonPlace& place, const std::string& reason) {
  const std::string line = place.line == 0 ? "" : ":" + std::to_string(place.line);
  throw DataError(place.path.string() + line + ": " + reason, place.remedy);
}

ordered_json parse_object(const std::string& text, const JsonPlace& place) {
  ordered_json json;
  try {
    json = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
    fail({place.path, std::max<std::size_t>(place.line, 1) + lines, place.remedy},
         "not JSON, or cut off");
  } catch (const ordered_json::exception&) {
    fail(place, "holds a number that no double holds");
  }
  if (!json.is_object()) fail(place, "not an object in {}");
  return json;
}

const ordered_json& field(const ordered_json& object, const char* key, const JsonPlace& place) {
  if (!object.is_object()) fail(place, std::string("no object around '") + key + "'");
  const auto found = object.find(key);
  if (found == object.end()) fail(place, std::string("'") + key + "' is missing");
  return *found;
}

std::uint64_t count_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_number_unsigned()) fail(place, std::string("'") + key + "' is no whole number");
  return value.get<std::uint64_t>();
}

double number_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_number()) fail(place, std::string("'") + key + "' is no number");
  return value.get<double>();
}

std::string text_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_string()) fail(place, std::string("'") + key + "' is no text");
  return value.get<std::string>();
}

std::vector<std::uint64_t> counts_in(const ordered_json& object, const char* key,
                                     const JsonPlace& place) {
  const auto& list = field(object, key, place);
  const auto whole = [](const ordered_json& item) { return item.is_number_unsigned(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), whole)) {
    fail(place, std::string("'") + key + "' is no list of whole numbers");
  }
  return list.get<std::vector<std::uint64_t>>();
}

}  // namespace lockstep::train

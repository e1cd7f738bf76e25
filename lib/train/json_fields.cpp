#include "lockstep/train/json_fields.hpp"

#include <algorithm>
#include <string_view>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::train {

using nlohmann::ordered_json;

void fail(const JsonPlace& place, const std::string& reason) {
  const std::string line = place.line == 0 ? "" : ":" + std::to_string(place.line);
  throw DataError(place.path.string() + line + ": " + reason, place.remedy);
}

namespace {

constexpr std::size_t max_text_bytes = std::size_t{64} << 20;
constexpr std::size_t max_depth = 64;
constexpr std::size_t max_values = 3'000'000;

/// Measures JSON without storing it; fails at the first error and at the first limit.
///
/// An ordered_json compares each new key with all keys of its object. The sum of these comparisons
/// is bounded by that of two objects of max_keys.
class Measure final : public nlohmann::json_sax<ordered_json> {
 public:
  Measure(const std::string& text, const JsonPlace& place) : text_(text), place_(place) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    if (key.size() > max_key_bytes) {
      fail(place_, "a key of " + std::to_string(key.size()) + " bytes, where " +
                       std::to_string(max_key_bytes) + " can be");
    }
    comparisons_ += keys_.back()++;
    if (keys_.back() > max_keys) {
      fail(place_, "an object of more than " + std::to_string(max_keys) + " keys");
    }
    if (comparisons_ > max_keys * max_keys) fail(place_, "too many objects of thousands of keys");
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const ordered_json::exception& error) override {
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(byte, text_.size()));
    const auto lines = static_cast<std::size_t>(std::count(text_.begin(), end, '\n'));
    const bool syntax = dynamic_cast<const ordered_json::parse_error*>(&error) != nullptr;
    fail({place_.path, std::max<std::size_t>(place_.line, 1) + lines, place_.remedy},
         syntax ? "not JSON, or cut off" : "holds a number that no double holds");
  }

 private:
  bool count() {
    if (++values_ > max_values) {
      fail(place_, "more than " + std::to_string(max_values) + " values");
    }
    return true;
  }

  bool open() {
    if (keys_.size() == max_depth) {
      fail(place_, "more than " + std::to_string(max_depth) + " levels of {} and []");
    }
    keys_.push_back(0);
    return count();
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& text_;
  const JsonPlace& place_;
  std::vector<std::size_t> keys_;  // of each open object; 0 for each open list
  std::size_t comparisons_ = 0;
  std::size_t values_ = 0;
};

void require_length(std::uint64_t bytes, const JsonPlace& place) {
  if (bytes <= max_text_bytes) return;
  fail(place, std::to_string(bytes) + " bytes of JSON, where " + std::to_string(max_text_bytes) +
                  " can be");
}

}  // namespace

ordered_json read_object(const JsonPlace& place) {
  const data::RegularFile file(place.path);
  require_length(file.size(), place);
  return parse_object(text_at(file, 0, file.size()), place);
}

ordered_json parse_object(const std::string& text, const JsonPlace& place) {
  require_length(text.size(), place);
  Measure measure(text, place);
  ordered_json::sax_parse(text, &measure);
  ordered_json json = ordered_json::parse(text);
  if (!json.is_object()) fail(place, "not an object in {}");
  return json;
}

std::string text_at(const data::RegularFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

const ordered_json& field(const ordered_json& object, const char* key, const JsonPlace& place) {
  if (!object.is_object()) fail(place, std::string("no object around '") + key + "'");
  const auto found = object.find(key);
  if (found == object.end()) fail(place, std::string("'") + key + "' is missing");
  return *found;
}

std::uint64_t count_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_number_unsigned()) fail(place, std::string("'") + key + "' is not a whole number");
  return value.get<std::uint64_t>();
}

double number_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_number()) fail(place, std::string("'") + key + "' is not a number");
  return value.get<double>();
}

std::string text_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& value = field(object, key, place);
  if (!value.is_string()) fail(place, std::string("'") + key + "' is not a text");
  return value.get<std::string>();
}

const ordered_json& list_in(const ordered_json& object, const char* key, const JsonPlace& place) {
  const auto& list = field(object, key, place);
  if (!list.is_array()) fail(place, std::string("'") + key + "' is not a list in []");
  return list;
}

std::vector<std::pair<std::string, std::string>> text_pairs_in(const ordered_json& object,
                                                               const char* key,
                                                               const JsonPlace& place) {
  const auto& texts = field(object, key, place);
  if (!texts.is_object()) fail(place, std::string("'") + key + "' is not an object in {}");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, value] : texts.items()) {
    if (!value.is_string()) fail(place, "'" + name + "' is not a text");
    pairs.emplace_back(name, value.template get<std::string>());
  }
  return pairs;
}

std::vector<std::uint64_t> counts_in(const ordered_json& object, const char* key,
                                     const JsonPlace& place) {
  const auto& list = field(object, key, place);
  const auto whole = [](const ordered_json& item) { return item.is_number_unsigned(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), whole)) {
    fail(place, std::string("'") + key + "' is not a list of whole numbers");
  }
  return list.get<std::vector<std::uint64_t>>();
}

void require_keys(const ordered_json& object, const std::vector<std::string_view>& known,
                  const JsonPlace& place) {
  if (!object.is_object()) fail(place, "not an object in {}");
  for (const auto& [key, value] : object.items()) {
    if (contains(known, key)) continue;
    fail(place, "unknown key " + in_quotes(key) + ": damaged, or of a newer version");
  }
}

std::uint64_t hash_in(const ordered_json& json, const char* key, const JsonPlace& place) {
  const std::string text = text_in(json, key, place);
  const std::uint64_t hash = whole_number(text, 16).value_or(0);
  if (to_hex(hash) != text) fail(place, std::string("'") + key + "' is not 16 hexadecimal digits");
  return hash;
}

}  // namespace lockstep::train

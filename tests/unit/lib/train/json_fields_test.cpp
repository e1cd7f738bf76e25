#include "lockstep/train/json_fields.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "lockstep/base/errors.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::StartsWith;

const train::JsonPlace place{"network.json", 1, "save it again"};

nlohmann::ordered_json parse(const std::string& text) { return train::parse_object(text, place); }

/// {"t0":0,"t1":0,...}
std::string object_of(std::size_t keys) {
  std::string text;
  for (std::size_t i = 0; i < keys; ++i) text += ",\"t" + std::to_string(i) + "\":0";
  return "{" + text.substr(1) + "}";
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

std::string nested(std::size_t levels) {
  return "{\"a\":" + repeated("[", levels - 1) + repeated("]", levels - 1) + "}";
}

void check_refused(const std::string& text, const std::string& reason) {
  CHECK_THROWS_WITH(parse(text), StartsWith(reason));
  CHECK_THROWS_AS(parse(text), DataError);
}

TEST_CASE("JSON that is not an object names file and line", "[json]") {
  CHECK(parse("{\"a\": [1, {\"b\": null}]}")["a"][1]["b"].is_null());
  check_refused("[]", "network.json:1: not an object in {}");
  check_refused("", "network.json:1: not JSON, or cut off");
  check_refused("{\"a\": 1}}", "network.json:1: not JSON, or cut off");
  check_refused("{\"a\": 1,\n\"b\": tru}", "network.json:2: not JSON, or cut off");
  check_refused("{\"a\": \"\xff\"}", "network.json:1: not JSON, or cut off");
  check_refused("{\"a\": 1,\n\"b\": 1e999}", "network.json:2: holds a number that no double holds");
}

TEST_CASE("JSON up to its limits is read whole", "[json]") {
  CHECK(parse(object_of(10'000)).size() == 10'000);
  CHECK_NOTHROW(parse(nested(64)));
  CHECK(parse("{\"a\":[0" + repeated(",0", 2'999'997) + "]}")["a"].size() == 2'999'998);
  CHECK(parse("{\"" + std::string(256, 'k') + "\":0}").size() == 1);
}

TEST_CASE("damaged JSON is refused before it costs time and memory", "[json]") {
  // Limits count what JSON means, so brackets and quotes inside text count for nothing.
  CHECK_NOTHROW(parse("{\"a\":\"" + repeated("[{\\\"", 1'000) + "\"}"));
  check_refused(object_of(10'001), "network.json:1: an object of more than 10000 keys");
  const std::string large = object_of(9'999);
  check_refused("{\"a\":[" + large + "," + large + "," + large + "]}",
                "network.json:1: too many objects of thousands of keys");
  check_refused("{\"" + std::string(257, 'k') + "\":0}",
                "network.json:1: a key of 257 bytes, where 256 can be");
  check_refused(nested(65), "network.json:1: more than 64 levels of {} and []");
  check_refused("{\"a\":" + std::string(std::size_t{60} << 20, '['),
                "network.json:1: more than 64 levels of {} and []");
  check_refused("{\"a\":[0" + repeated(",{}", 3'000'000) + "]}",
                "network.json:1: more than 3000000 values");
  check_refused("{}" + std::string(std::size_t{64} << 20, ' '),
                "network.json:1: 67108866 bytes of JSON, where 67108864 can be");
}

}  // namespace
}  // namespace lockstep::test

#include "apps/cli.hpp"

#include <catch2/catch.hpp>

#include "lockstep/base/errors.hpp"

using namespace lockstep;
using namespace lockstep::apps;
using Catch::Matchers::Contains;

namespace {

Syntax baking() {
  Syntax syntax;
  syntax.command = "lockstep bake";
  syntax.operand = "run file";
  syntax.settings = {"seed", "drop-remainder"};
  syntax.flags = {{"json", "", "print JSON"}, {"output", "FILE", "where to"}};
  return syntax;
}

}  // namespace

TEST_CASE("a command line is settings, flags and one operand", "[cli]") {
  const auto found = parse_arguments(
      baking(), {"run.toml", "--seed=3", "--drop-remainder", "--json", "--set", "seed=4"});
  CHECK(found.operand() == "run.toml");
  CHECK(found.value("seed") == "4");  // the last one
  CHECK(found.value("drop-remainder") == "true");
  CHECK(found.given("json"));
  CHECK_FALSE(found.given("output"));
}

TEST_CASE("a flag's number lies within TOML's limit, as a setting does", "[cli]") {
  CHECK(flag_count("range", "9223372036854775807", 1) == 9223372036854775807U);
  CHECK_THROWS_WITH(flag_count("range", "9223372036854775808", 1),
                    Contains("--range: 9223372036854775808 is more than 9223372036854775807"));
  CHECK_FALSE(parse_arguments(baking(), {}).number("output", 1).has_value());
}

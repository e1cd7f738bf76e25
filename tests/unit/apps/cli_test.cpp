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

TEST_CASE("words that the command does not take are refused", "[cli]") {
  const auto parse = [](const std::vector<std::string>& words) {
    return parse_arguments(baking(), words);
  };
  CHECK_THROWS_WITH(parse({"--sede", "3"}),
                    Contains("unknown flag '--sede'") && Contains("did you mean '--seed'?"));
  CHECK_THROWS_WITH(parse({"--quickly"}), Contains("`lockstep bake --help` lists all flags"));
  CHECK_THROWS_WITH(parse({"--epochs", "3"}), Contains("unknown flag '--epochs'"));
  CHECK_THROWS_WITH(parse({"--output"}),
                    Contains("--output: no value") && Contains("write --output FILE"));
  CHECK_THROWS_WITH(parse({"--seed"}), Contains("--seed: no value") && Contains("write --seed N"));
  CHECK_THROWS_WITH(parse({"a.toml", "b.toml"}), Contains("2 run files: a.toml b.toml"));
  CHECK_THROWS_WITH(parse({"--set", "seed"}), Contains("there is no '='"));
  CHECK_THROWS_WITH(parse({"--set", "epochs=3"}), Contains("has no setting 'epochs'"));
}

TEST_CASE("a flag's number lies within TOML's limit, as a setting does", "[cli]") {
  CHECK(flag_count("range", "9223372036854775807", 1) == 9223372036854775807U);
  CHECK_THROWS_WITH(flag_count("range", "9223372036854775808", 1),
                    Contains("--range: 9223372036854775808 is more than 9223372036854775807"));
  CHECK_FALSE(parse_arguments(baking(), {}).number("output", 1).has_value());
}

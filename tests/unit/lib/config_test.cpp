#include "lib/train/config.hpp"

#include <catch2/catch.hpp>
#include <sstream>

#include "lib/base/errors.hpp"

using namespace lockstep;
using namespace lockstep::train;
using Catch::Matchers::Contains;

namespace {

RunConfig from_file(const std::string& text) {
  RunConfig config;
  apply_run_file(config, "run.toml", text);
  return config;
}

std::string refusal(const std::string& key, const std::string& value) {
  RunConfig config;
  try {
    set_value(config, "--" + key, key, value);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("defaults are the contract's", "[config]") {
  const RunConfig config;
  CHECK(to_toml(config).find("layers = [700, 500]\n") != std::string::npos);
  CHECK(to_toml(config).find("learning-rate = 0.001\n") != std::string::npos);
  CHECK(to_toml(config).find("train-limit = \"all\"\n") != std::string::npos);
}

TEST_CASE("what is printed is a valid run file that says the same", "[config]") {
  RunConfig config;
  for (const auto& [key, value] : {std::pair{"data", "a \"quoted\" \\ path\n"},
                                   {"layers", "2048, 1,7"},
                                   {"train-limit", "5"},
                                   {"divide-by", "2.5"},
                                   {"learning-rate", "3e-05"},
                                   {"drop-remainder", "true"},
                                   {"steps", "7"},
                                   {"shuffle", "none"},
                                   {"leaf", "4"},
                                   {"threads", "2"},
                                   {"seed", "0"}}) {
    set_value(config, "", key, value);
  }
  CHECK(to_toml(from_file(to_toml(config))) == to_toml(config));
  RunConfig linear;
  set_value(linear, "", "layers", "none");
  CHECK(from_file(to_toml(linear)).layers.empty());
}

TEST_CASE("a run file takes TOML's own types", "[config]") {
  const auto config = from_file(
      "batch-size = 64\nlearning-rate = 1e-2\nlayers = [3, 4]\ndrop-remainder = true\n"
      "data = 'mnist'\ndivide-by = 1\n");
  CHECK(config.batch_size == 64);
  CHECK(config.learning_rate == 0.01F);
  CHECK(config.layers == std::vector<std::uint64_t>{3, 4});
  CHECK(config.drop_remainder);
  CHECK(config.data == "mnist");
  CHECK(config.divide_by == 1.0F);
}

TEST_CASE("a bad run file names its line", "[config]") {
  CHECK_THROWS_WITH(from_file("\n\nbatchsize = 3\n"),
                    Contains("run.toml:3") && Contains("did you mean 'batch-size'?"));
  CHECK_THROWS_WITH(from_file("epochs = 0\n"), Contains("run.toml:1: epochs: 0 is less than 1"));
  CHECK_THROWS_WITH(from_file("epochs = 2\nepochs = 3\n"), Contains("run.toml:2"));
  CHECK_THROWS_WITH(from_file("epochs = \n"), Contains("run.toml:1") && Contains("not TOML"));
  CHECK_THROWS_WITH(from_file("[train]\nepochs = 1\n"), Contains("unknown setting 'train'"));
  CHECK_THROWS_WITH(from_file("layers = [[1]]\n"), Contains("list inside a list"));
  CHECK_THROWS_WITH(from_file("seed = 1979-05-27\n"), Contains("date"));
}

TEST_CASE("values that make no sense are refused with the reason", "[config]") {
  CHECK_THAT(refusal("batch-size", "0"), Contains("--batch-size: 0 is less than 1"));
  CHECK_THAT(refusal("batch-size", "-3"), Contains("'-3' is not a whole number"));
  CHECK_THAT(refusal("batch-size", "12x"), Contains("'12x'"));
  CHECK_THAT(refusal("batch-size", "99999999999999999999"), Contains("is more than"));
  CHECK_THAT(refusal("layers", "700,0"), Contains("0 is less than 1"));
  CHECK_THAT(refusal("layers", "700,,5"), Contains("''"));
  for (const char* rate : {"nan", "inf", "-1", "0", "1e99", "", "x", "1e-99"}) {
    CHECK_THAT(refusal("learning-rate", rate), Contains("finite number above 0"));
  }
  CHECK_THAT(refusal("divide-by", "0"), Contains("above 0"));
  CHECK_THAT(refusal("shuffle", "globl"), Contains("did you mean 'global'?"));
  CHECK_THAT(refusal("drop-remainder", "yes"), Contains("neither true nor false"));
  CHECK_THAT(refusal("learning-rat", "1"), Contains("did you mean 'learning-rate'?"));
  CHECK_THAT(refusal("data", ""), Contains("empty"));
}

TEST_CASE("what this version does not build yet is refused, never replaced", "[config]") {
  for (const auto& [key, value] : {std::pair{"precision", "bf16"},
                                   {"backend", "nccl"},
                                   {"model", "lenet"},
                                   {"resume", "auto"}}) {
    CHECK_THAT(refusal(key, value), Contains("not built yet in this version"));
  }
}

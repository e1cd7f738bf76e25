#include "apps/settings.hpp"

#include <catch2/catch.hpp>
#include <chrono>

#include "apps/flag_names.hpp"
#include "apps/library_options.hpp"
#include "apps/run_file.hpp"
#include "lockstep/base/errors.hpp"

using namespace lockstep;
using namespace lockstep::apps;
using Catch::Matchers::Contains;

namespace {

RunConfig from_file(const std::string& text) {
  RunConfig config;
  apply_run_file(config, "run.toml", text);
  return config;
}

train::MeshSizes sizes_of(const std::string& text, std::uint64_t ranks) {
  RunConfig config;
  config.mesh = text;
  return mesh_of(config, ranks);
}

}  // namespace

TEST_CASE("an item of a list may have a comma", "[config]") {
  const std::vector<std::string> names = {"price, EUR", "b"};
  const RunConfig listed = from_file("label-column = [\"price, EUR\", \"b\"]");
  CHECK(column_names("label-column", listed.label_column) == names);
  CHECK(from_file(to_toml(listed)).label_column == listed.label_column);
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
                                   {"straggler-warning", "off"},
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

TEST_CASE("the place of a setting is that of its value", "[config]") {
  RunConfig config = from_file("seed = 3\n[optimizer]\nmomentum = 0.5\n");
  CHECK(config.places.at("momentum") == "run.toml:3");
  set_value(config, "--momentum", "momentum", "0.9");
  CHECK_FALSE(config.places.contains("momentum"));
  CHECK(config.places.at("seed") == "run.toml:1");
}

TEST_CASE("a key of a table is one of its settings", "[config]") {
  CHECK_THROWS_WITH(from_file("[optimizer]\nnam = 'sgd'\n"), Contains("did you mean 'name'?"));
  CHECK_THROWS_WITH(setting_named("--set", "optimizer.name"),
                    Contains("did you mean 'optimizer'?"));
  CHECK_THROWS_WITH(setting_named("--set", "optimizer.beta3"), Contains("did you mean 'beta1'?"));
}

TEST_CASE("a list of layers is printed as it is read", "[config][layers]") {
  const auto config = from_file(
      "[[layer]]\nkind = 'conv'\nfilters = 6\nkernel = 5\npadding = 'same'\n"
      "[[layer]]\nkind = 'max-pool'\nsize = 2\n"
      "[[layer]]\nkind = 'average-pool'\nsize = 2\n"
      "[[layer]]\nkind = 'flatten'\n[[layer]]\nkind = 'dropout'\nrate = 0.5\n"
      "[[layer]]\nkind = 'layer-norm'\n"
      "[[layer]]\nkind = 'dense'\nwidth = 7\nactivation = 'identity'\n");
  CHECK(config.model == "layers");
  REQUIRE(config.layer_list.size() == 7);
  CHECK(to_toml(from_file(to_toml(config))) == to_toml(config));
  CHECK(to_toml(config).find("\n[[layer]]\nkind = \"conv\"\nfilters = 6\nkernel = 5\n"
                             "padding = \"same\"\nactivation = \"relu\"\n") != std::string::npos);
  const auto shape = network_of(config, {28, 28}, 10);
  CHECK(shape.text() ==
        "28x28x1, conv 6@5x5, max-pool 2, average-pool 2, flatten, dropout 0.5, layer-norm, dense "
        "7, dense 10");
  CHECK(shape.parameters() == 6 * 26 + 2 * 294 + 295 * 7 + 80);
}

TEST_CASE("a bad layer is refused with its place", "[config][layers]") {
  const auto layer = [](const std::string& keys) { return from_file("\n[[layer]]\n" + keys); };
  CHECK_THROWS_WITH(layer("kind = 'conf'\n"),
                    Contains("run.toml:2") && Contains("did you mean 'conv'?"));
  CHECK_THROWS_WITH(layer("width = 3\n"), Contains("no 'kind'"));
  CHECK_THROWS_WITH(layer("kind = 'dense'\n"), Contains("no 'width'"));
  CHECK_THROWS_WITH(layer("kind = 'dense'\nwidht = 3\nwidth = 3\n"),
                    Contains("did you mean 'width'?"));
  for (const char* width : {"0", "-3", "2.5", "'x'", "3000000000"}) {
    CHECK_THROWS_WITH(layer("kind = 'dense'\nwidth = " + std::string(width) + "\n"),
                      Contains("width") && Contains("whole number in [1,"));
  }
  CHECK_THROWS_WITH(layer("kind = 'dense'\nwidth = 64.0\n"), Contains("width: 64.0 is not a"));
  for (const char* rate : {"1", "-0.5", "nan", "inf", "'x'"}) {
    CHECK_THROWS_WITH(layer("kind = 'dropout'\nrate = " + std::string(rate) + "\n"),
                      Contains("number in [0, 1)"));
  }
  CHECK_THROWS_WITH(layer("kind = 'max-pool'\nsize = [2]\n"),
                    Contains("run.toml:4: layer: size: is neither text nor a number"));
  CHECK_THROWS_WITH(from_file("layer = 3\n"), Contains("run.toml:1: layer is not a list"));
  CHECK_THROWS_WITH(from_file("layer = [3]\n"), Contains("not a table"));
}

TEST_CASE("a model that the data or other settings do not fit is refused", "[config][layers]") {
  RunConfig config;
  set_value(config, "", "model", "lenet");
  CHECK(network_of(config, {28, 28}, 10).parameters() == 431080);
  CHECK_THROWS_WITH(network_of(config, {784}, 10),
                    Contains("layer 1 (conv 20@5x5)") && Contains("takes images"));
  CHECK_THROWS_WITH(network_of(config, {8, 8, 3}, 10),
                    Contains("layer 3") && Contains("kernel of 5"));
  set_value(config, "", "layers", "32");
  CHECK_THROWS_WITH(network_of(config, {28, 28}, 10), Contains("layers with model lenet"));
  RunConfig listed;
  set_value(listed, "", "model", "layers");
  CHECK_THROWS_WITH(network_of(listed, {28, 28}, 10), Contains("without a list"));
  listed.layer_list = {nn::Dense{5}};
  CHECK_THROWS_WITH(network_of(listed, {28, 28}, 10), Contains("flatten"));
  CHECK(network_of(listed, {784}, 10).is_mlp());
  set_value(listed, "", "model", "mlp");
  CHECK_THROWS_WITH(network_of(listed, {784}, 10), Contains("beside a [[layer]] list"));
}

TEST_CASE("a mesh is what its text says, and fits the ranks", "[mesh]") {
  const auto is = [](train::MeshSizes sizes, std::uint64_t batch, std::uint64_t model) {
    return sizes.batch == batch && sizes.model == model;
  };
  CHECK(is(sizes_of("auto", 7), 7, 1));
  CHECK(is(sizes_of("batch=7", 7), 7, 1));
  CHECK(is(sizes_of("batch=2,model=3", 6), 2, 3));
  CHECK(is(sizes_of("model=3,batch=2", 6), 2, 3));
  CHECK(is(sizes_of("model=3", 6), 2, 3));
  CHECK_THROWS_WITH(sizes_of("model=4", 6), Contains("6 ranks cannot be cut into groups of 4"));
  CHECK_THROWS_WITH(sizes_of("batch=2,model=2", 3), Contains("4 places are not the 3 ranks"));
  CHECK_THROWS_WITH(sizes_of("batch=2", 1), Contains("2 places are not the 1 rank that"));
  CHECK_THROWS_WITH(sizes_of("rows=2", 2), Contains("'rows' is not a dimension"));
  for (const char* bad : {"", "batch", "batch=0", "batch=x", "batch=1,batch=1", "batch=1,", "=1"}) {
    CHECK_THROWS_AS(sizes_of(bad, 1), ConfigError);
  }
}

TEST_CASE("options in a library's message are printed as flags", "[config]") {
  CHECK(with_flags("use `rebatch=ceil`, or `batch_size` of at least 4") ==
        "use --rebatch ceil, or --batch-size of at least 4");
  CHECK(with_flags("leave `backend` out, or set `share_device=true`") ==
        "leave --backend out, or set --share-device");
  CHECK(with_flags("choose more `files`") == "choose more --files");
  CHECK(with_flags("`data=synthetic`") == "--data synthetic");
  CHECK(with_flags("`policy=off`: no") == "--shard-policy off: no");
}

TEST_CASE("other words in backquotes stay as they are", "[config]") {
  for (const char* text :
       {"start it with `srun --mpi=pmix -K program ...`", "`mpirun -n 4`, then `unknown=1`",
        "`lockstep plan --help` lists them", "run.toml:3: rebatch: 'x' is none of ceil|balanced",
        "one ` alone", "", "`batch-size` is the flag's own name"}) {
    CHECK(with_flags(text) == text);
  }
}

TEST_CASE("flags are written in errors that passed through other ranks as text", "[config]") {
  const Error error(ExitCode::usage, "rank 1 on h2: too few", "use a larger `batch_size`");
  const Error agreed(ExitCode::usage, error.what());
  CHECK(agreed.problem() == "rank 1 on h2: too few");
  CHECK(agreed.remedy() == "use a larger `batch_size`");
  CHECK(with_flags(agreed.what()) == "rank 1 on h2: too few\n  remedy: use a larger --batch-size");
}

TEST_CASE("NCCL has more time than the watchdog gives a start", "[config]") {
  RunConfig config;
  config.device = "cuda";
  config.timeout = 7;
  CHECK(replica_options(config, /*threads=*/1).nccl_timeout == std::chrono::seconds(5 * 7 + 60));
}

TEST_CASE("an error about one option carries its name and value", "[config]") {
  const ConfigError error({"batch_size", "0"}, "0 is less than 1", "give at least 1");
  CHECK(error.what() == std::string("batch_size: 0 is less than 1\n  remedy: give at least 1"));
  REQUIRE(error.option() != nullptr);
  CHECK(error.option()->name == "batch_size");
  CHECK(error.option()->value == "0");
  CHECK(ConfigError("several settings disagree").option() == nullptr);
}

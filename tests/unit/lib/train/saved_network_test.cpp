#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "tests/support/manifest.hpp"
#include "tests/support/small_network.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace lockstep::train;
using nlohmann::ordered_json;
using test::SmallNetwork;
using test::TemporaryFolder;

namespace {

/// A saved network, to be damaged.
struct Saved {
  TemporaryFolder folder;
  std::filesystem::path path;

  Saved() {
    const SmallNetwork small;
    path = save_checkpoint(folder.path(), small.network,
                           {.step = 7, .examples = 11, .divide_by = 0.1F, .data = "here"});
  }

  std::string text(const char* name) const {
    const auto bytes = test::read_bytes(path / name);
    return {bytes.begin(), bytes.end()};
  }

  void write(const char* name, const std::string& content) const {
    test::write_signed(path, name, content);
  }

  /// Another header before the same tensors.
  void edit_header(const std::function<void(ordered_json&)>& edit) const {
    const std::string whole = text("model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof length);
    auto header = ordered_json::parse(whole.substr(8, length));
    edit(header);
    const std::string edited = header.dump();
    length = edited.size();
    std::string begin(8, '\0');
    std::memcpy(begin.data(), &length, sizeof length);
    write("model.safetensors", begin + edited + whole.substr(whole.size() - 104));
  }

  void edit_description(const std::function<void(ordered_json&)>& edit) const {
    auto json = ordered_json::parse(text("network.json"));
    edit(json);
    write("network.json", json.dump());
  }

  /// The message of the DataError that loading throws; "" where it throws none.
  std::string problem() const {
    try {
      SmallNetwork small;
      read_weights(read_description(path), small.network);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }
};

void require_says(const Saved& saved, const std::vector<std::string>& needles) {
  const std::string problem = saved.problem();
  for (const auto& needle : needles) CHECK_THAT(problem, Catch::Contains(needle));
  CHECK_THAT(problem, Catch::Contains(saved.path.string()) && Catch::Contains("remedy:"));
}

}  // namespace

TEST_CASE("a checkpoint comes back as it was saved", "[saved]") {
  const Saved saved;
  const SavedNetwork read = read_description(saved.path);
  CHECK(read.shape.widths() == std::vector<std::size_t>{5, 3, 2});
  CHECK(read.info.step == 7);
  CHECK(read.info.examples == 11);
  CHECK(read.info.divide_by == 0.1F);
  CHECK(read.info.data == "here");
  SmallNetwork small;
  read_weights(read, small.network);
  CHECK(nn::weights_hash(small.network.parameters()) == read.weights_hash);
  CHECK(read.weights_hash != 0);
}

TEST_CASE("a replica that only evaluates does not train", "[saved]") {
  const Saved saved;
  comm::SelfCommunicator alone;
  Replica replica(read_description(saved.path), alone);
  const auto says = Catch::Contains("made without a plan");
  CHECK_THROWS_WITH(replica.train(0, {}, {}), says);
  CHECK_THROWS_WITH(replica.begin_training(), says);
  CHECK_THROWS_WITH(replica.restore(read_description(saved.path), {}), says);
  CHECK_THROWS_WITH(replica.make_shared_snapshot(), says);
  CHECK_THROWS_WITH(replica.skipped_steps(), says);
  CHECK_THROWS_WITH(replica.reduction(), says);
  const TemporaryFolder copies;  // of the step that was trained
  const auto copy = read_description(replica.save(copies.path()));
  CHECK(copy.folder.filename() == "step-00000007");
  CHECK(copy.info.step == 7);
  CHECK(copy.info.examples == 11);
}

TEST_CASE("weights of layers with other functions are refused", "[saved]") {
  const Saved saved;
  const auto products = make_strict_products(Simd::automatic);
  const auto problem = [&](const nn::LayerFunction& first) {
    const nn::NetworkShape shape(nn::flat(5), {first}, 2);
    nn::Network<float> network(shape, 1, *products);
    try {
      read_weights(read_description(saved.path), network);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(problem(nn::Dense{3}).empty());
  CHECK_THAT(problem(nn::Dense{3, Activation::identity}),
             Catch::Contains("network.json: layer 1 (dense 3") &&
                 Catch::Contains("has activation = \"relu\"; of") &&
                 Catch::Contains("has activation = \"identity\"") && Catch::Contains("remedy:"));
}

TEST_CASE("tensors may stand in any order, with other metadata", "[saved]") {
  const Saved saved;
  saved.edit_header([](ordered_json& header) {
    const ordered_json first = header["0.weight"];
    header.erase("0.weight");
    header["0.weight"] = first;
    header["__metadata__"] = {{"by", "another tool"}};
  });
  CHECK(saved.problem().empty());
}

TEST_CASE("every cut of the weights is found", "[saved]") {
  const Saved saved;
  const std::string whole = saved.text("model.safetensors");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    saved.write("model.safetensors", whole.substr(0, size));
    REQUIRE_THAT(saved.problem(), Catch::Contains("model.safetensors"));
  }
  saved.write("model.safetensors", whole + "x");
  require_says(saved, {"1 bytes that no tensor describes"});
}

TEST_CASE("every flipped bit of the weights is found", "[saved]") {
  const Saved saved;
  const std::string whole = saved.text("model.safetensors");
  for (std::size_t back = 1; back <= 104; ++back) {
    std::string bad = whole;
    bad[bad.size() - back] = static_cast<char>(bad[bad.size() - back] ^ 1);
    saved.write("model.safetensors", bad);
    REQUIRE_THAT(saved.problem(), Catch::Contains("hash"));
  }
}

TEST_CASE("weights that are not finite are refused", "[saved]") {
  const Saved saved;
  std::string bad = saved.text("model.safetensors");
  bad.replace(bad.size() - 4, 4, std::string("\0\0\x80\x7f", 4));  // infinity
  saved.write("model.safetensors", bad);
  require_says(saved, {"model.safetensors", "is inf, and weights must be finite"});
}

TEST_CASE("headers are not trusted", "[saved]") {
  const Saved saved;
  const std::string whole = saved.text("model.safetensors");
  for (const std::uint64_t length :
       {whole.size() - 7, std::size_t{1} << 32, ~std::size_t{0}, ~std::size_t{0} - 7}) {
    std::string bad = whole;
    std::memcpy(bad.data(), &length, sizeof length);
    saved.write("model.safetensors", bad);
    require_says(saved, {"byte 0", std::to_string(length)});
  }
  saved.write("model.safetensors", whole);
  saved.edit_header([](ordered_json& header) {
    header["9.bias"] = header["1.bias"];
    header.erase("1.bias");
  });
  require_says(saved, {"tensor 1.bias is missing"});
  saved.write("model.safetensors", whole);
  saved.edit_header([](ordered_json& header) {
    header["2.bias"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  require_says(saved, {"2.bias", "no place"});
  const std::vector<std::pair<std::function<void(ordered_json&)>, std::string>> damages = {
      {[](ordered_json& t) { t["dtype"] = "F64"; }, "F64"},
      {[](ordered_json& t) { t["dtype"] = 3; }, "dtype"},
      {[](ordered_json& t) {
         t["shape"] = {3, 5};
       },
       "[3, 5]"},
      {[](ordered_json& t) {
         t["shape"] = {5, -3};
       },
       "shape"},
      {[](ordered_json& t) {
         t["data_offsets"] = {0, 64};
       },
       "data_offsets"},
      {[](ordered_json& t) {
         t["data_offsets"] = {60, 0};
       },
       "data_offsets"},
      {[](ordered_json& t) { t["data_offsets"] = {0}; }, "data_offsets"},
      {[](ordered_json& t) {
         t["data_offsets"] = {60, 120};
       },
       "cut off"},
      {[](ordered_json& t) {
         t["data_offsets"] = {4, 64};
       },
       "gap"},
      {[](ordered_json& t) {
         t["data_offsets"] = {~0ULL - 59, ~0ULL};
       },
       "data_offsets"},
      {[](ordered_json& t) { t = 3; }, "no description"}};
  for (const auto& [damage, needle] : damages) {
    saved.write("model.safetensors", whole);
    saved.edit_header([&](ordered_json& header) { damage(header["0.weight"]); });
    require_says(saved, {needle});
  }
}

TEST_CASE("descriptions are not trusted", "[saved]") {
  const Saved saved;
  const std::string whole = saved.text("network.json");
  for (std::size_t size = 0; size + 2 < whole.size(); size += 3) {
    saved.write("network.json", whole.substr(0, size));
    REQUIRE_THAT(saved.problem(), Catch::Contains("network.json"));
  }
  const std::vector<std::pair<std::function<void(ordered_json&)>, std::string>> damages = {
      {[](ordered_json& j) { j["model"] = "lenet"; }, "lenet"},
      {[](ordered_json& j) { j["activation"] = "tanh"; }, "tanh"},
      {[](ordered_json& j) { j.erase("widths"); }, "'widths' is missing"},
      {[](ordered_json& j) { j["widths"] = {5}; }, "widths"},
      {[](ordered_json& j) {
         j["widths"] = {5, 0, 2};
       },
       "widths"},
      {[](ordered_json& j) {
         j["widths"] = {5, 4, 2};
       },
       "parameters"},
      {[](ordered_json& j) {
         j["widths"] = {5, ~0ULL, 2};
       },
       "widths"},
      {[](ordered_json& j) {
         j["widths"] = {"5", 3, 2};
       },
       "widths"},
      {[](ordered_json& j) {
         j["widths"] = {99999, 99999};
         j["parameters"] = 100000ULL * 99999;
       },
       "too short"},
      {[](ordered_json& j) { j["divide_by"] = 0; }, "divide_by"},
      {[](ordered_json& j) { j["divide_by"] = 1e300; }, "divide_by"},
      {[](ordered_json& j) { j["step"] = -1; }, "step"},
      {[](ordered_json& j) { j["weights_hash"] = "xyz"; }, "weights_hash"},
      {[](ordered_json& j) { j["weights_hash"] = "00000000000000ab"; }, "hash"},
      {[](ordered_json& j) { j["loss"] = 5; }, "loss"},
      {[](ordered_json& j) { j["optimiser"] = "x"; }, "unknown key 'optimiser'"},
      {[](ordered_json& j) { j["data"] = 5; }, "data"}};
  for (const auto& [damage, needle] : damages) {
    saved.write("network.json", whole);
    saved.edit_description(damage);
    require_says(saved, {needle});
  }
}

TEST_CASE("a path means a checkpoint, a run or its checkpoints", "[saved]") {
  const Saved saved;
  CHECK(find_checkpoint(saved.path) == saved.path);
  CHECK(find_checkpoint(saved.folder.path()) == saved.path);
  const auto run = saved.folder.path() / "run";
  for (const char* name : {"step-00000099", "step-100000000", "step-x", ".step-200000000.tmp"}) {
    std::filesystem::create_directories(run / "checkpoints" / name);
    std::ofstream(run / "checkpoints" / name / "manifest.json") << "{}";
  }
  std::filesystem::create_directories(run / "checkpoints" / "step-300000000");  // holds none
  CHECK(find_checkpoint(run) == run / "checkpoints" / "step-100000000");
  std::ofstream(run / "checkpoints" / "step-300000000" / "model.safetensors") << "";
  CHECK(find_checkpoint(run) == run / "checkpoints" / "step-300000000");  // damaged, which is said
  const TemporaryFolder empty;
  CHECK_THROWS_WITH(find_checkpoint(empty.path()), Catch::Contains("holds no checkpoint"));
  CHECK_THROWS_WITH(find_checkpoint(empty.path() / "x"), Catch::Contains("no such checkpoint"));
  CHECK_THROWS_AS(find_checkpoint(saved.path / "network.json"), DataError);
}

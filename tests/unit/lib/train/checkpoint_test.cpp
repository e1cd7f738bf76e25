#include "lockstep/train/checkpoint.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/run_directory.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "tests/support/small_network.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace lockstep::train;
using nlohmann::json;
using test::SmallNetwork;
using test::TemporaryFolder;

namespace {

json json_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

}  // namespace

TEST_CASE("a checkpoint holds plain tensors without padding", "[checkpoint]") {
  const TemporaryFolder folder;
  SmallNetwork small;
  small.network.parameters().value(1)[0] = 7;
  const auto path = save_checkpoint(folder.path(), small.network, {.step = 1200, .examples = 5});
  CHECK(path == folder.path() / "step-00001200");

  const auto bytes = test::read_bytes(path / "model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  CHECK(length % 8 == 0);
  const auto header = json::parse(bytes.begin() + 8, bytes.begin() + 8 + static_cast<long>(length));
  CHECK(header["0.weight"]["shape"] == json({5, 3}));
  CHECK(header["0.bias"]["shape"] == json({3}));
  CHECK(header["1.weight"]["dtype"] == "F32");
  CHECK(header["0.weight"]["data_offsets"] == json({0, 60}));
  CHECK(header["1.bias"]["data_offsets"] == json({96, 104}));
  CHECK(bytes.size() == 8 + length + 104);
  float bias = 0;
  std::memcpy(&bias, bytes.data() + 8 + length + 60, sizeof bias);
  CHECK(bias == 7.0F);

  const auto info = json_in(path / "network.json");
  CHECK(info["widths"] == json({5, 3, 2}));
  CHECK(info["step"] == 1200);
  CHECK(info["parameters"] == 5 * 3 + 3 + 3 * 2 + 2);
}

TEST_CASE("records of more than a million values are described, too", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto products = make_library_products<float>();
  const nn::FeatureShape input = {1, std::size_t{1} << 21, 1, true};
  nn::Network<float> network({input, {nn::GlobalPool{}}, 2}, 1, *products);
  const auto path = save_checkpoint(folder.path(), network, {.step = 1});
  CHECK(read_description(path).shape.input == input);
}

TEST_CASE("what is saved stays when saving fails", "[checkpoint]") {
  const TemporaryFolder folder;
  const SmallNetwork small;
  const auto first = save_checkpoint(folder.path(), small.network, {.step = 1});
  std::ofstream(folder.path() / "step-00000002") << "a file where the folder should be";
  CHECK_THROWS_AS(save_checkpoint(folder.path(), small.network, {.step = 1}), OutputError);
  CHECK_THROWS_AS(save_checkpoint(folder.path(), small.network, {.step = 2}), OutputError);
  verify_checkpoint(first);
  const auto entries = std::filesystem::directory_iterator(folder.path());
  CHECK(std::distance(begin(entries), end(entries)) == 2);  // nothing temporary is left
}

TEST_CASE("the hash is of the logical weights", "[checkpoint]") {
  SmallNetwork small;
  auto& block = small.network.parameters();
  const auto before = nn::weights_hash(block);
  CHECK(before == nn::weights_hash(SmallNetwork().network.parameters()));

  const auto products = make_library_products<float>();  // stored otherwise, logically the same
  nn::Network<float> other({5, {3}, 2}, 1, *products);
  nn::initialise(other, {22, 23});
  CHECK(before == nn::weights_hash(other.parameters()));
  CHECK(block.values().size() != other.parameters().values().size());

  block.value(2)[1] += 1e-6F;
  const auto changed = nn::weights_hash(block);
  CHECK(before != changed);
  block.value(2)[15] = 1;  // 1.weight has 2 outputs: this is padding
  CHECK(changed == nn::weights_hash(block));
}

TEST_CASE("a hash is of name, shape and values", "[checkpoint]") {
  const SmallNetwork small;
  const auto& block = small.network.parameters();
  Hash all;
  for (std::size_t t = 0; t < block.tensors().size(); ++t) {
    Hash one;
    for (Hash* hash : {&one, &all}) {
      hash->add(block.tensors()[t].name);
      hash->add(std::uint64_t{block.tensors()[t].rows});
      hash->add(std::uint64_t{block.tensors()[t].cols});
      hash->add(block.logical_value(t));
    }
    nn::WeightsHash tensor;
    tensor.add(block.tensors()[t], block.logical_value(t));
    CHECK(tensor.value() == one.value());
  }
  CHECK(nn::weights_hash(block) == all.value());
}

TEST_CASE("ranks that go on keep the records before the newest checkpoint", "[run]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run";
  const SmallNetwork small;
  const optim::OptimizerOptions adam;
  const Snapshot snapshot(small.network.shape(), small.network.loss_function(),
                          small.network.parameters().layout(), &adam);
  const auto record = [&](RunDirectory& directory, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t step = from; step <= to; ++step) {
      const std::uint64_t epoch = (step + 1) / 2;  // of two steps
      directory.on_step({step, epoch, 128, 2.0, 0.5, 0.004});
      if (step % 2 == 0) directory.on_epoch({.epoch = epoch, .weights_hash = step});
    }
  };
  const auto open = [&](const std::optional<Continued>& continued) {
    return RunDirectory(path.string(), "epochs = 5\n", {.version = "1", .ranks = 2}, {}, continued);
  };
  {
    auto directory = open(std::nullopt);
    record(directory, 1, 5);
    directory.on_checkpoint({snapshot, {.epoch = 2, .step = 1}, 5, 5 * 128});
    directory.finish_checkpoint();
    record(directory, 6, 8);
    directory.flush();
  }
  const Continued loss = {.checkpoint = "", .steps = 1, .in_place = true};
  {
    auto directory = open(loss);
    CHECK(directory.recorded_steps() == 5);
    CHECK(directory.recorded_epochs() == 2);
    record(directory, 2, 3);
  }
  // A job that found the run before the checkpoint was saved.
  const Continued late = {.checkpoint = "", .steps = 3, .position = {.epoch = 1}};
  CHECK_THROWS_WITH(open(late), Catch::Contains("has continued this run meanwhile, to step 5"));
  auto directory = open(loss);
  CHECK(directory.recorded_steps() == 5);
  record(directory, 2, 10);
  directory.flush();
  const RecordedRun run = read_run(path);
  REQUIRE(run.steps.size() == 10);
  for (std::size_t i = 0; i < 10; ++i) CHECK(run.steps[i].step == i + 1);
  CHECK(directory.recorded_epochs() == 5);
}

TEST_CASE("a run directory records a run and refuses a second one", "[run]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run";
  RunDirectory directory(path.string(), "epochs = 3\n", {.version = "1", .ranks = 2});
  directory.on_step({1, 1, 128, 2.327221, 0.0625, 0.0041});
  directory.on_step({2, 1, 128, 2.0, 0.5, 0.004, {{"0.weight", 0xab}, {"0.bias", 1}}});
  const SmallNetwork small;
  const optim::OptimizerOptions adam;
  const Snapshot snapshot(small.network.shape(), small.network.loss_function(),
                          small.network.parameters().layout(), &adam);
  directory.on_epoch({.epoch = 1, .weights_hash = 0xab});
  directory.on_checkpoint({snapshot, {}, 1, 128});
  directory.finish_checkpoint();
  const auto running = json_in(path / "summary.json");
  CHECK(running["status"] == "running");
  CHECK(running["epochs"][0]["weights_hash"] == "00000000000000ab");
  CHECK_FALSE(is_finished(path));
  directory.end(ExitCode::diverged, "the loss is\x1b not finite \xff");
  const auto failed = json_in(path / "summary.json");
  CHECK(failed["status"] == "failed");
  CHECK(failed["exit_code"] == 76);
  CHECK_THAT(failed["cause"].get<std::string>(), Catch::StartsWith("the loss is? not finite"));
  directory.end(ExitCode::stopped, "stopped by SIGINT");
  CHECK(json_in(path / "summary.json")["status"] == "stopped");
  CHECK_FALSE(is_finished(path));
  RunReport report;
  report.steps = 1;
  directory.finish(report);
  CHECK(is_finished(path));

  std::ifstream metrics(path / "metrics.jsonl");
  std::string line;
  std::getline(metrics, line);
  CHECK(
      line ==
      R"({"step":1,"epoch":1,"examples":128,"loss":2.327221,"accuracy":0.0625,"seconds":0.0041})");
  std::getline(metrics, line);
  CHECK_THAT(line, Catch::Contains(R"("seconds":0.004,"hashes":{"0.weight":"00000000000000ab",)"
                                   R"("0.bias":"0000000000000001"}})"));
  const auto summary = json_in(path / "summary.json");
  CHECK(summary["status"] == "finished");
  CHECK_FALSE(summary.contains("cause"));
  CHECK(summary["ranks"] == 2);
  CHECK(summary["epochs"][0]["weights_hash"] == "00000000000000ab");
  for (const char* key : {"version", "parameters", "examples", "step_seconds", "startup_seconds",
                          "examples_per_second", "weights_hash", "plan_digest", "peak_rss_bytes"}) {
    CHECK(summary.contains(key));
  }
  CHECK(directory.last_checkpoint() == path / "checkpoints" / "step-00000001");
  CHECK_THROWS_WITH(RunDirectory(path.string(), "", {}),
                    Catch::Contains(path.string()) && Catch::Contains("is in use by another job"));
  CHECK_THROWS_AS(RunDirectory("/proc/nothing", "", {}), OutputError);
}

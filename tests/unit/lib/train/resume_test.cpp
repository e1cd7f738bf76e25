// Training continued from a checkpoint, on other ranks, saves the bytes of training that never
// stopped; damaged checkpoints are found.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;
using test::TemporaryFolder;

namespace {

void train_and_save(const std::filesystem::path& folder, int ranks, const ToyRun& run) {
  CheckpointSaver saver(folder);
  comm::run_ranks(ranks, [&](comm::Communicator& comm) { train_toy(comm, run, {&saver}); });
}

}  // namespace

TEST_CASE("checkpoints of continued training have the bytes of uninterrupted training",
          "[resume][canonical]") {
  const std::vector<nn::LayerSpec> statistics = {
      nn::Convolution{4, 3, nn::Padding::same, Activation::relu}, nn::BatchNorm{}, nn::Flatten{},
      nn::Dense{9, Activation::relu}, nn::Dropout{0.5}};
  // 9 steps an epoch: steps 4 and 13 are within one, 9 is at its end.
  ToyRun run = GENERATE_COPY(ToyRun{}, ToyRun{.layers = statistics});
  run.exchange = GENERATE(Exchange::activations, Exchange::partial_sums);
  run.epochs = 2;
  const TemporaryFolder whole;
  run.checkpoint_every = 1;
  train_and_save(whole.path(), 3, run);

  const TemporaryFolder parts;
  std::filesystem::copy(whole.path() / checkpoint_name(4), parts.path() / checkpoint_name(4));
  struct Part {
    std::uint64_t from;
    std::uint64_t to;
    int ranks;
    std::uint64_t model;
  };
  for (const auto& [from, to, ranks, model] :
       {Part{4, 9, 8, 1}, Part{9, 10, 1, 1}, Part{10, 13, 4, 2}, Part{13, 18, 2, 1}}) {
    run.resume_from = parts.path() / checkpoint_name(from);
    run.steps = to;
    run.model = model;
    train_and_save(parts.path(), ranks, run);
    for (std::uint64_t step = from; step <= to; ++step) {
      require_same_checkpoint(whole.path(), parts.path(), step);
    }
  }
}

TEST_CASE("all-reduce training continues on as many ranks", "[resume]") {
  const TemporaryFolder whole;
  ToyRun run = {.canonical = false, .epochs = 2, .checkpoint_every = 5};
  train_and_save(whole.path(), 2, run);
  const TemporaryFolder rest;
  run.resume_from = whole.path() / checkpoint_name(5);
  train_and_save(rest.path(), 2, run);
  for (const std::uint64_t step : {10, 15, 18}) {
    require_same_checkpoint(whole.path(), rest.path(), step);
  }
}

TEST_CASE("every cut, bit flip and exchange of a checkpoint's files is found", "[resume]") {
  const TemporaryFolder folder;
  train_and_save(folder.path(), 1, {.hidden = {3}, .epochs = 1, .checkpoint_every = 5});
  const auto path = folder.path() / checkpoint_name(5);
  const auto other = folder.path() / checkpoint_name(9);
  verify_checkpoint(path);
  const auto refuses = [&] {
    try {
      verify_checkpoint(path);
      read_state(path);
      read_description(path);
    } catch (const DataError& error) {
      return std::string(error.what()).find(path.string()) != std::string::npos;
    }
    return false;
  };
  for (const auto& name : checkpoint_files) {
    INFO(name);
    const auto bytes = test::read_bytes(path / name);
    const std::string whole(bytes.begin(), bytes.end());
    const auto write = [&](const std::string& content) {
      std::ofstream(path / name, std::ios::binary) << content;
    };
    for (std::size_t at = 0; at + 2 < whole.size(); at += 1 + whole.size() / 97) {
      write(whole.substr(0, at));
      REQUIRE(refuses());
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ 4);
      write(flipped);
      INFO("byte " << at << " of " << flipped);
      REQUIRE(refuses());
    }
    const auto others = test::read_bytes(other / name);
    write({others.begin(), others.end()});
    REQUIRE(refuses());
    std::filesystem::remove(path / name);
    REQUIRE(refuses());
    std::filesystem::create_directory(path / name);
    REQUIRE(refuses());
    std::filesystem::remove(path / name);
    write(whole);
    REQUIRE_FALSE(refuses());
  }
  for (const auto& name : checkpoint_files) {  // a whole checkpoint under the name of another step
    std::filesystem::copy_file(other / name, path / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  REQUIRE(refuses());
}

TEST_CASE("a replica refuses damaged moments", "[resume]") {
  const TemporaryFolder folder;
  ToyRun run{.hidden = {}, .epochs = 1, .checkpoint_every = 2};
  train_and_save(folder.path(), 1, run);
  run.resume_from = folder.path() / checkpoint_name(4);
  const auto moments = run.resume_from / "optimizer.safetensors";
  auto bytes = test::read_bytes(moments);
  bytes.back() ^= 1;
  std::ofstream(moments, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  CHECK_THROWS_WITH(per_rank(3, run), Catch::Contains("optimizer.safetensors: its checksum is"));
}

TEST_CASE("the newest valid checkpoint is found, and each skipped one named", "[resume]") {
  const TemporaryFolder folder;
  train_and_save(folder.path(), 1, {.hidden = {}, .epochs = 1, .checkpoint_every = 2});
  std::vector<std::string> skipped;
  CHECK(newest_valid_checkpoint(folder.path(), skipped) == folder.path() / checkpoint_name(9));
  CHECK(skipped.empty());
  std::filesystem::remove(folder.path() / checkpoint_name(9) / "manifest.json");
  std::ofstream(folder.path() / checkpoint_name(8) / "model.safetensors", std::ios::app) << "x";
  const auto manifest = folder.path() / checkpoint_name(6) / "manifest.json";
  const auto bytes = test::read_bytes(manifest);
  auto json = nlohmann::ordered_json::parse(bytes);
  json["version"] = 4;
  std::ofstream(manifest) << json;
  CHECK(newest_valid_checkpoint(folder.path(), skipped) == folder.path() / checkpoint_name(4));
  REQUIRE(skipped.size() == 3);
  CHECK_THAT(skipped[0], Catch::Contains("incomplete"));
  CHECK_THAT(skipped[1], Catch::Contains("model.safetensors: has"));
  CHECK_THAT(skipped[2], Catch::Contains("format 4; this version of lockstep reads format 3"));
}

TEST_CASE("old checkpoints are removed, except those to keep", "[resume]") {
  const TemporaryFolder folder;
  for (std::uint64_t step = 1; step <= 9; ++step) {
    std::filesystem::create_directory(folder.path() / checkpoint_name(step));
  }
  std::filesystem::create_directory(folder.path() / "best");
  remove_old_checkpoints(folder.path(), 7, 2, 3);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    left.push_back(entry.path().filename());
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"best", "step-00000003", "step-00000006", "step-00000007",
                                         "step-00000008", "step-00000009"});
}

// Fine-tuning in a program: frozen layers, and weights to start from.
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "lockstep/base/files.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/safetensors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using test::TemporaryFolder;

namespace {

constexpr std::size_t features = 6;
constexpr std::uint64_t records = 40;

nn::NetworkShape shape_of(std::size_t classes, bool freezes) {
  nn::LayerSpec first(nn::Dense{5}, "first");
  nn::LayerSpec second(nn::BatchNorm{}, "second");
  first.frozen = second.frozen = freezes;
  return {nn::flat(features), {first, second, nn::Dense{4}}, classes};
}

data::Plan plan() { return data::Plan({.records = records, .batch_size = 8, .ranks = 1}); }

void train_epoch(train::Replica& replica, int classes) {
  ToySource source(records, features, classes, 1);
  data::BatchReader reader(source, plan(), 0);
  for (std::uint64_t step = 0; step < plan().steps(); ++step) {
    std::vector<float> x(reader.piece(step).size() * features);
    const auto batch = reader.read(0, step, x);
    replica.train(step, x, batch.labels);
  }
}

}  // namespace

TEST_CASE("a replica starts from weights and leaves frozen ones as they are", "[train][init]") {
  comm::SelfCommunicator self;
  const TemporaryFolder folder;
  train::Replica first(shape_of(3, false), plan(), self);
  train_epoch(first, 3);
  const auto saved = first.save(folder.path());

  const train::ReplicaOptions options = {
      .optimizer = {.kind = optim::OptimizerKind::adamw, .weight_decay = 0.1, .clip_norm = 0.1}};
  train::Replica second(shape_of(2, true), plan(), self, options);
  const auto taken = second.start_from({.from = folder.path(), .fresh = {"last"}});
  CHECK(taken.takes_first);
  CHECK(taken.taken.size() == 8);
  CHECK(taken.fresh == std::vector<std::string>{"3.weight", "3.bias"});
  train_epoch(second, 2);
  for (std::size_t i = 0; i < 8; ++i) {
    const bool is_same = second.network().parameters().logical_value(i) ==
                         first.network().parameters().logical_value(i);
    CHECK(is_same == (i < 6));
  }

  CHECK_THROWS_WITH(second.start_from({.from = folder.path()}), Contains("steps of training"));
  const auto description = train::read_description(second.save(folder.path() / "second"));
  CHECK(description.shape.layers[1].frozen);
  CHECK_FALSE(description.shape.layers[2].frozen);
  CHECK(description.shape.trained_weights() == 5 * 4 + 4 + 4 * 2 + 2);
  train::Replica read(description, self);
  CHECK(read.weights_hash() == second.weights_hash());
  CHECK_THROWS_AS(read.start_from({.from = folder.path()}), comm::AgreedError);
  const auto digits = data::open_data_set("synthetic", {}).test;
  CHECK_THROWS_WITH(read.evaluate(*digits), Contains("784 features for a network of 6"));
  auto own = description;
  own.loss = "mine";
  train::Replica with_own_loss(own, self);
  CHECK_THROWS_WITH(with_own_loss.save(folder.path() / "own"),
                    Contains("save") && Contains("mine"));
}

TEST_CASE("not all layers can be frozen", "[train][init]") {
  comm::SelfCommunicator self;
  auto shape = shape_of(3, true);
  shape.layers[2].frozen = shape.layers[3].frozen = true;
  CHECK_THROWS_WITH(train::Replica(shape, plan(), self), Contains("nothing would be trained"));
}

TEST_CASE("halves are read exactly", "[train][init]") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "halves.safetensors";
  std::string header = R"({"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]}})";
  const std::uint64_t length = header.size();
  const std::vector<std::uint16_t> bits = {0x3C00, 0xC000, 0x0001, 0x83FF, 0x7BFF, 0x7C00};
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(bits.data()), bits.size() * 2);
  write_file(path, bytes);
  const train::SafetensorsReader file(path, "");
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(file.read(0) == std::vector<float>{1, -2, 0x1p-24F, -0x3FFp-24F, 65504, infinity});
}

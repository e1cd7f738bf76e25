// Meshes of batch x model: whatever their sizes, the bits of one rank alone.
#include <catch2/catch.hpp>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/train/tensor_parallel.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

struct Size {
  int ranks;
  std::uint64_t model;
};

std::vector<ToyResult> on_mesh(Size size, ToyRun run,
                               const std::vector<Observer*>& observers = {}) {
  run.model = size.model;
  return test::per_rank(size.ranks,
                        [&](comm::Communicator& comm) { return train_toy(comm, run, observers); });
}

/// The last weights of a run, as a checkpoint would have them.
struct Saver final : Observer {
  std::vector<float> weights;
  std::vector<StepReport> steps;

  void on_step(const StepReport& report) override { steps.push_back(report); }
  void on_epoch(const EpochReport&) override {}
  void on_checkpoint(const DueCheckpoint& due) override {
    weights.clear();
    const auto& layout = due.snapshot.layout;
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const auto tensor = layout.logical(due.snapshot.blocks.weights, t);
      weights.insert(weights.end(), tensor.begin(), tensor.end());
    }
  }
};

}  // namespace

TEST_CASE("canonical: one hash for any mesh and both exchanges", "[mesh][canonical]") {
  const std::vector<nn::LayerSpec> image = {
      nn::Convolution{5, 3, nn::Padding::same, Activation::relu},
      nn::Flatten{},
      nn::Dense{30, Activation::relu},
      nn::Dense{9, Activation::identity},
      nn::LayerNorm{},
      nn::Dense{40, Activation::relu},
      nn::Dropout{0.5}};
  // Dense layers whose outputs more than the next layer takes.
  const std::vector<nn::LayerSpec> graph = {{nn::Flatten{}, "x"},
                                            {nn::Dense{12, Activation::relu}, "a"},
                                            {nn::Dense{12, Activation::identity}, "b"},
                                            {nn::Dense{12, Activation::relu}, "c", {"x"}},
                                            {nn::Add{Activation::relu}, "add", {"a", "b", "c"}},
                                            nn::Dense{16, Activation::relu},
                                            {nn::Dense{9, Activation::relu}, "d"},
                                            {nn::Concatenate{}, "", {"d", "add"}}};
  ToyRun run = GENERATE_COPY(ToyRun{}, ToyRun{.batch_size = 1}, ToyRun{.hidden = {}},
                             ToyRun{.batch_size = 60, .layers = graph},
                             ToyRun{.batch_size = 300, .hidden = {70, 130, 33}},
                             ToyRun{.batch_size = 60, .hidden = {9, 200, 64, 70}},
                             ToyRun{.batch_size = 60, .layers = image});
  run.epochs = 2;
  const auto alone = on_mesh({1, 1}, run).front();
  run.exchange = GENERATE(Exchange::activations, Exchange::partial_sums);
  for (const Size size : {Size{2, 2}, {3, 3}, {4, 4}, {4, 2}, {6, 2}, {6, 3}, {10, 2}, {12, 4}}) {
    INFO(size.ranks << " ranks, model " << size.model);
    for (const auto& result : on_mesh(size, run)) {
      REQUIRE(result.weights == alone.weights);
      REQUIRE(result.report.weights_hash == alone.report.weights_hash);
      REQUIRE(result.report.epochs.back().train_loss == alone.report.epochs.back().train_loss);
      REQUIRE(result.report.epochs.back().test.loss == alone.report.epochs.back().test.loss);
    }
  }
}

TEST_CASE("what rank 0 saves under a mesh is whole", "[mesh]") {
  ToyRun run{.hidden = {20, 19}};
  run.hash_every = 1;
  Saver alone;
  Saver meshed;
  on_mesh({1, 1}, run, {&alone});
  on_mesh({6, 3}, run, {&meshed});
  REQUIRE(meshed.weights == alone.weights);
  REQUIRE(meshed.steps.size() == alone.steps.size());
  for (std::size_t i = 0; i < alone.steps.size(); ++i) {
    REQUIRE(!alone.steps[i].hashes.empty());
    REQUIRE(meshed.steps[i].hashes == alone.steps[i].hashes);
  }
}

TEST_CASE("a replica that differs in one group of a mesh ends all of them", "[mesh]") {
  ToyRun run;
  run.model = 2;
  run.sentinel_steps = 1;
  run.disturb = [](nn::Network<float>& network, int rank, std::uint64_t step) {
    if (rank == 3 && step == 4) network.parameters().values()[1] += 1;
  };
  std::atomic<int> agreed{0};
  comm::run_ranks(6, [&](comm::Communicator& comm) {
    try {
      train_toy(comm, run);
    } catch (const comm::AgreedError& error) {
      const std::string text = error.what();
      const bool named = text.find("before step 4") != std::string::npos &&
                         text.find("on ranks 0, 2, 4") == std::string::npos &&
                         text.find("on rank 3 on ") != std::string::npos &&
                         text.find("0.weight") != std::string::npos;
      if (named && error.code() == ExitCode::invariant) ++agreed;
    }
  });
  CHECK(agreed == 6);
}

TEST_CASE("what one group of a mesh agrees to be wrong ends all of them, as the first says it",
          "[mesh]") {
  const auto texts = test::per_rank(6, [](comm::Communicator& comm) -> std::string {
    const auto mesh = make_mesh(comm, {2, 3});
    try {
      Groups(*mesh).fail_together([&] {
        const int at = mesh->coordinate("model");
        if (at == 1) throw comm::AgreedError(ExitCode::invariant, "odd one", "look at it");
        if (at == 2) throw comm::AgreedError(ExitCode::diverged, "not said");
      });
    } catch (const comm::AgreedError& error) {
      return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    return "nothing";
  });
  for (const auto& text : texts) CHECK_THAT(text, Catch::StartsWith("70: odd one"));
}

TEST_CASE("a mesh of more ranks than an int holds is refused", "[mesh]") {
  const auto make = [](comm::Communicator& comm) { make_mesh(comm, {4294967298, 1}); };
  CHECK_THROWS_WITH(comm::run_ranks(2, make), Catch::Contains("batch=4294967298"));
}

TEST_CASE("a run that diverges under a mesh ends on all of its ranks", "[mesh]") {
  ToyRun run;
  run.model = 2;
  run.learning_rate = 1e30F;
  std::atomic<int> agreed{0};
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    try {
      train_toy(comm, run);
    } catch (const comm::AgreedError& error) {
      if (error.code() == ExitCode::diverged) ++agreed;
    }
  });
  CHECK(agreed == 4);
}

TEST_CASE("shards cover a width in order, in whole vectors where it is wide", "[mesh]") {
  for (const std::size_t width : {1, 2, 3, 10, 31, 32, 33, 48, 500, 700, 701}) {
    for (int ranks = 1; ranks <= 8 && static_cast<std::size_t>(ranks) <= width; ++ranks) {
      std::size_t at = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range part = shard_of(width, rank, ranks);
        REQUIRE(part.begin == at);
        REQUIRE(part.size() > 0);
        const bool wide = width >= 16 * static_cast<std::size_t>(ranks);
        if (wide) REQUIRE(part.begin % 16 == 0);
        at = part.end;
      }
      REQUIRE(at == width);
    }
  }
}

TEST_CASE("dense layers of more than a vector of outputs are shared out", "[mesh]") {
  using enum Sharding;
  const nn::NetworkShape pair = {12, {48, 30}, 4};
  CHECK(shardings_of(pair, 1) == std::vector{none, none, none});
  CHECK(shardings_of(pair, 2) == std::vector{columns, rows, none});
  CHECK(shardings_of(pair, 31) == std::vector{columns, rows, none});
  CHECK(shardings_of({12, {16, 17}, 4}, 3) == std::vector{none, columns, rows});
  CHECK(shardings_of({12, {}, 64}, 4) == std::vector{gathered_columns});
  // All outputs of a layer are one vector.
  CHECK(shardings_of({12, {3, 9}, 4}, 4) == std::vector{none, columns, rows});
  CHECK(shardings_of({12, {}, 10}, 2) == std::vector{gathered_columns});
  const nn::FeatureShape image = nn::FeatureShape{3, 4, 1, true};
  const nn::Dense wide = {40, Activation::relu};
  CHECK(shardings_of({image, {nn::Convolution{2, 3}, nn::Flatten{}, wide, nn::Flatten{}}, 10}, 2) ==
        std::vector{none, none, columns, none, rows});
  CHECK(shardings_of({nn::flat(12), {{wide, "a"}, {wide, "b"}, {nn::Add{}, "", {"a", "b"}}}, 10},
                     2) == std::vector{gathered_columns, gathered_columns, none, none});
  CHECK_THROWS_WITH(shardings_of({12, {2, 9}, 4}, 10),
                    Catch::StartsWith("mesh model=10: no dense layer has 10 outputs"));
}

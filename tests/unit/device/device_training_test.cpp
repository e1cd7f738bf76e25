#include <catch2/catch.hpp>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/synthetic.hpp"
#include "tests/support/device.hpp"
#include "tests/support/greatest_error.hpp"
#include "tests/unit/device/toy_device.hpp"

using namespace lockstep;
using namespace lockstep::test;
using train::DeviceExchange;

namespace {

/// Whether there are the devices that `ranks` need; else the test skips them.
bool devices_for(int ranks, DeviceExchange exchange) {
  return test::devices(ranks, exchange == DeviceExchange::nccl ? ranks : 1) != 0;
}

ToyResult on_processor(ToyRun run) {
  run.options = nullptr;
  comm::SelfCommunicator self;
  return train_toy(self, run);
}

void require_same(const std::vector<ToyResult>& results, const ToyResult& expected) {
  for (const auto& result : results) {
    REQUIRE(result.weights == expected.weights);
    REQUIRE(result.report.weights_hash == expected.report.weights_hash);
    for (std::size_t e = 0; e < expected.report.epochs.size(); ++e) {
      REQUIRE(result.report.epochs[e].train_loss == expected.report.epochs[e].train_loss);
      REQUIRE(result.report.epochs[e].test.loss == expected.report.epochs[e].test.loss);
      REQUIRE(result.report.epochs[e].test.score == expected.report.epochs[e].test.score);
    }
  }
}

}  // namespace

TEST_CASE("device: canonical replicas on devices have the processor's bits", "[device][train]") {
  ToyRun run = GENERATE(ToyRun{.epochs = 2}, ToyRun{.batch_size = 1, .steps = 30},
                        ToyRun{.batch_size = 7, .epochs = 1},
                        ToyRun{.batch_size = 500, .leaf = 3, .epochs = 2},
                        ToyRun{.batch_size = 128, .hidden = {}, .epochs = 2},
                        ToyRun{.batch_size = 100, .hidden = {70, 130, 5}, .epochs = 1});
  const ToyResult expected = on_processor(run);
  const auto exchange = GENERATE(DeviceExchange::staged, DeviceExchange::nccl);
  run.options = on_device(exchange);
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const Seeded seeded(seeds()[static_cast<std::size_t>(ranks) % seeds().size()]);
    if (devices_for(ranks, exchange)) require_same(per_rank(ranks, run), expected);
  }
}

TEST_CASE("device: ranks on devices and on processors train one network", "[device][train]") {
  test::devices(2, 1);
  ToyRun run{.batch_size = 60, .exchange = train::Exchange::partial_sums, .epochs = 2};
  const ToyResult expected = on_processor(run);
  const int processors = GENERATE(1, 2, 3);
  const auto exchange = GENERATE(DeviceExchange::staged, DeviceExchange::automatic);
  std::vector<ToyResult> results(4);
  comm::run_ranks(4, [&](comm::Communicator& comm) {
    const bool has_device = comm.rank() >= processors;
    const auto alike = comm.split(has_device ? 1 : 0);
    ToyRun mine = run;
    if (has_device) mine.options = on_device(exchange, true, alike.get());
    results[static_cast<std::size_t>(comm.rank())] = train_toy(comm, mine);
  });
  require_same(results, expected);
}

// Buffers of a megabyte and more: shared memory sends those outside it in pieces.
TEST_CASE("device: ranks on devices and on processors share memory", "[device][train]") {
  test::devices(2, 1);
  ToyRun run{
      .exchange = train::Exchange::partial_sums, .hidden = {520, 520}, .epochs = 1, .steps = 2};
  const ToyResult expected = on_processor(run);
  std::vector<ToyResult> results(2);
  comm::run_ranks(2, [&](comm::Communicator& wire) {
    comm::SharedCommunicator comm(wire, wire.place());
    const auto alike = comm.split(comm.rank());
    ToyRun mine = run;
    if (comm.rank() == 1) mine.options = on_device(DeviceExchange::staged, true, alike.get());
    results[static_cast<std::size_t>(comm.rank())] = train_toy(comm, mine);
  });
  require_same(results, expected);
}

TEST_CASE("device: a replica takes features of one kind", "[device][train]") {
  test::devices(1, 1);
  constexpr std::uint64_t records = 16;
  data::ReadOptions read;
  read.limit = records;
  data::SyntheticSource bytes(*data::drawn_set("synthetic"), data::Part::train, read);
  const data::Plan plan({.records = records, .batch_size = 8});
  comm::SelfCommunicator comm;
  train::ReplicaOptions options;
  on_device(DeviceExchange::automatic)(options);
  train::Replica replica(nn::NetworkShape(bytes.features(), {4}, 10), plan, comm, options);
  data::BatchReader reader(bytes, plan, 0);
  data::Prefetch batches = replica.prefetch(reader, plan.steps());
  train::PhaseSeconds seconds;
  replica.train(replica.load(batches, 0, 0), seconds);
  const std::vector<float> features(8 * bytes.features());
  const std::vector<std::int32_t> labels(8);
  CHECK_THROWS_WITH(replica.train(1, features, labels), Catch::Contains("of another kind"));
}

TEST_CASE("device: training continues on devices what the processor began, and back",
          "[device][train][resume]") {
  ToyRun run{.epochs = 2, .checkpoint_every = 1};
  const TemporaryFolder whole;
  CheckpointSaver saver(whole.path());
  comm::run_ranks(3, [&](comm::Communicator& comm) { train_toy(comm, run, {&saver}); });
  const auto exchange = GENERATE(DeviceExchange::staged, DeviceExchange::nccl);
  if (!devices_for(2, exchange)) return;
  const TemporaryFolder parts;
  saver.folder = parts.path();
  std::filesystem::copy(whole.path() / train::checkpoint_name(4),
                        parts.path() / train::checkpoint_name(4));
  struct Part {
    std::uint64_t from;
    std::uint64_t to;
    bool on_devices;
  };
  for (const auto& [from, to, on_devices] :
       {Part{4, 9, true}, Part{9, 11, false}, Part{11, 18, true}}) {
    run.resume_from = parts.path() / train::checkpoint_name(from);
    run.steps = to;
    run.options = nullptr;
    if (on_devices) run.options = on_device(exchange);
    comm::run_ranks(2, [&](comm::Communicator& comm) { train_toy(comm, run, {&saver}); });
    for (std::uint64_t step = from; step <= to; ++step) {
      require_same_checkpoint(whole.path(), parts.path(), step);
    }
  }
}

TEST_CASE("device: every optimizer has the processor's bits", "[device][train][optim]") {
  using optim::OptimizerKind;
  const auto schedule = optim::Schedule{.kind = optim::ScheduleKind::constant, .warmup = 5};
  const optim::OptimizerOptions optimizer = GENERATE_COPY(
      optim::OptimizerOptions{.kind = OptimizerKind::sgd, .learning_rate = 0.1},
      optim::OptimizerOptions{.kind = OptimizerKind::sgd,
                              .learning_rate = 0.05,
                              .schedule = schedule,
                              .momentum = 0.9,
                              .nesterov = true,
                              .weight_decay = 0.01,
                              .clip_value = 0.01},
      optim::OptimizerOptions{.kind = OptimizerKind::adamw, .weight_decay = 0.1},
      optim::OptimizerOptions{.kind = OptimizerKind::adam, .clip_norm = 0.2},
      optim::OptimizerOptions{.kind = OptimizerKind::lamb, .weight_decay = 0.01, .clip_norm = 0.5},
      optim::OptimizerOptions{
          .kind = OptimizerKind::lars, .learning_rate = 0.5, .momentum = 0.9, .trust = 0.02});
  ToyRun run{.batch_size = 50, .hidden = {33, 20}, .epochs = 2};
  const auto set = [&](train::ReplicaOptions& options) { options.optimizer = optimizer; };
  run.options = set;
  comm::SelfCommunicator self;
  const ToyResult expected = train_toy(self, run);
  const auto exchange = GENERATE(DeviceExchange::staged, DeviceExchange::nccl);
  run.options = [&](train::ReplicaOptions& options) {
    on_device(exchange)(options);
    set(options);
  };
  for (const int ranks : {1, 2, 5}) {
    if (devices_for(ranks, exchange)) require_same(per_rank(ranks, run), expected);
  }
  if (!devices_for(2, exchange)) return;
  run.canonical = false;  // the textbook's step learns alike
  run.options = [&](train::ReplicaOptions& options) {
    on_device(exchange, false)(options);
    set(options);
  };
  for (const auto& result : per_rank(2, run)) {
    REQUIRE(greatest_error(result.weights, expected.weights) < 1e-3);
  }
}

TEST_CASE("device: every built-in loss has the processor's bits", "[device][train]") {
  const std::string name = GENERATE(
      nn::smoothed_loss(0.1), std::string(nn::squared_error), std::string(nn::regression_loss),
      std::string(nn::absolute_error), nn::huber_loss(0.5), std::string(nn::binary_cross_entropy));
  const bool has_weights = GENERATE(false, true);
  ToyRun run{.batch_size = 50, .loss = nn::built_in_loss<float>(name), .epochs = 2};
  REQUIRE(run.loss != nullptr);
  if (run.loss->target() != nn::TargetKind::label) {
    run.values = [=](std::uint64_t record, std::size_t output) {
      const auto number = static_cast<float>((record * 7 + output * 5) % 11);
      if (has_weights && record == 200 && name != nn::binary_cross_entropy) return 3e38F;
      return name == nn::binary_cross_entropy ? (number > 5 ? 1.0F : 0.0F) : number / 3 - 1;
    };
  }
  if (has_weights) {
    run.weights = [](std::uint64_t record) {  // record 200 has none
      return 0.5F * static_cast<float>(record % 4);
    };
  }
  const ToyResult expected = on_processor(run);
  run.options = on_device(DeviceExchange::staged);
  if (devices_for(5, DeviceExchange::staged)) require_same(per_rank(5, run), expected);
  run.canonical = false;
  run.options = on_device(DeviceExchange::staged, false);
  for (const auto& result : per_rank(2, run)) {
    REQUIRE(greatest_error(result.weights, expected.weights) < 1e-3);
  }
}

TEST_CASE("device: a batch of the caller's has values to predict", "[device][train]") {
  test::devices(1, 1);
  const data::Plan plan({.records = 6, .batch_size = 3, .ranks = 1});
  const std::vector<float> x = {1, 2, 0.5F, -1, 0, 3};
  const std::vector<float> y = {0.5F, 1, -1, 2, 0, 4};
  const auto weights = [&](bool is_on_device) {
    train::ReplicaOptions options;
    options.loss = nn::built_in_loss<float>(nn::regression_loss);
    if (is_on_device) on_device(DeviceExchange::automatic)(options);
    comm::SelfCommunicator self;
    train::Replica replica({2, {5}, 2}, plan, self, options);
    for (std::uint64_t step = 0; step < 2; ++step) replica.train(step, x, {{}, y});
    return replica.weights_hash();
  };
  CHECK(weights(true) == weights(false));
}

TEST_CASE("device: weights of examples and classes, and frozen layers",
          "[device][train][weights]") {
  const bool is_frozen = GENERATE(false, true);
  const bool skips = GENERATE(false, true);
  ToyRun run{.batch_size = 7, .epochs = 1};
  run.weights = [](std::uint64_t record) { return 0.3F * static_cast<float>(record % 7); };
  if (is_frozen) {
    run.layers = {nn::Flatten{}, {nn::Dense{9}}, {nn::Dense{8}}};
    run.layers[1].frozen = true;
  }
  const auto set = [&](train::ReplicaOptions& options) {
    options.class_weights = {1, 2.5F, 0.1F, 1};
    if (skips) options.on_nonfinite = train::OnNonfinite::skip;
  };
  run.options = set;
  comm::SelfCommunicator self;
  const ToyResult expected = train_toy(self, run);
  run.options = [&](train::ReplicaOptions& options) {
    on_device(DeviceExchange::staged)(options);
    set(options);
  };
  for (const int ranks : {1, 2, 8}) {  // of 8 some are idle
    if (devices_for(ranks, DeviceExchange::staged)) require_same(per_rank(ranks, run), expected);
  }
}

TEST_CASE("device: uneven pieces and idle ranks under FILE", "[device][train]") {
  test::devices(3, 1);
  ToyRun run{.records = 60,
             .batch_size = 12,
             .exchange = train::Exchange::partial_sums,
             .policy = data::ShardPolicy::file,
             .files = {30, 17, 13},
             .epochs = 2};
  const auto expected = per_rank(3, run);
  const Seeded seeded(GENERATE(from_range(seeds())));
  run.options = on_device(DeviceExchange::automatic);
  require_same(per_rank(3, run), expected.front());
}

TEST_CASE("device: leaves move between devices", "[device][train][balance]") {
  test::devices(3, 1);
  ToyRun run{.epochs = 3};
  const ToyResult expected = on_processor(run);
  const Seeded seeded(GENERATE(from_range(seeds())));
  run.options = on_device(DeviceExchange::automatic);
  run.shares = {7, 4, 1};
  run.slow_rank = 1;
  run.slow_record = std::chrono::milliseconds(20);  // more than all else, with sanitizers too
  const auto results = per_rank(3, run);
  require_same(results, expected);
  CHECK_FALSE(results.front().report.epochs[1].new_shares.empty());
}

TEST_CASE("device: the textbook's step learns as the processor's does", "[device][train]") {
  ToyRun run{.batch_size = 24, .canonical = false, .hidden = {70, 30}, .epochs = 1};
  const ToyResult expected = on_processor(run);
  const auto exchange = GENERATE(DeviceExchange::staged, DeviceExchange::nccl);
  const Seeded seeded(GENERATE(from_range(seeds())));
  run.options = on_device(exchange, false);
  for (const int ranks : {1, 2, 3}) {
    if (!devices_for(ranks, exchange)) continue;
    const auto results = per_rank(ranks, run);
    for (const auto& result : results) {
      REQUIRE(result.weights == results.front().weights);
      REQUIRE(greatest_error(result.weights, expected.weights) < 2e-4);
    }
  }
}

TEST_CASE("device: what has no device code is refused", "[device][train]") {
  test::devices(1, 1);
  const auto message = [](const ToyRun& run) -> std::string {
    comm::SelfCommunicator self;
    try {
      train_toy(self, run);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  ToyRun run{.layers = {nn::Dropout{0.5}, nn::Flatten{}, nn::Dense{5}}, .epochs = 1};
  run.options = on_device(DeviceExchange::automatic);
  REQUIRE_THAT(message(run), Catch::Contains("layer 1 (dropout 0.5) is not dense"));
  run.layers = {nn::Flatten{}, {nn::Dense{5}, "a"}, {nn::Add{}, "sum", {"a", "a"}}};
  REQUIRE_THAT(message(run), Catch::Contains("layer 3 (add) 'sum' is not dense"));
  run.layers = {};
  struct OwnLoss final : nn::Loss<float> {
    const char* name() const noexcept override { return "own"; }
    void run(Matrix<const float>, const nn::Targets&, std::span<nn::ExampleResult>,
             Matrix<float>) const override {}
  };
  const OwnLoss own;
  run.loss = &own;
  REQUIRE_THAT(message(run), Catch::Contains("the loss 'own' is not built in") &&
                                 Catch::Contains("`device=cpu`"));
}

TEST_CASE("device: a gradient that is not finite ends training", "[device][train]") {
  test::devices(2, 1);
  ToyRun run{.epochs = 2, .learning_rate = 1e30F};
  run.options = on_device(DeviceExchange::automatic);
  REQUIRE_THROWS_WITH(per_rank(2, run), Catch::Contains("training diverged"));
}

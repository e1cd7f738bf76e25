#include <catch2/catch.hpp>

#include "tests/fakes/cuda/fake.hpp"
#include "tests/unit/device/toy_device.hpp"

using namespace lockstep;
using namespace lockstep::test;
using train::DeviceExchange;

TEST_CASE("device: a call that fails on one rank ends all, and nothing is left",
          "[device][train]") {
  fake_cuda::set_devices(2);
  const bool canonical = GENERATE(true, false);
  const std::string function = GENERATE("cudaGraphLaunch", "cudaStreamEndCapture",
                                        "cudaEventRecord", "cudaMalloc", "cudaMallocHost");
  const auto objects = fake_cuda::live_objects();
  ToyRun run{.batch_size = 60, .canonical = canonical, .epochs = 1};
  run.device = on_device(DeviceExchange::staged, canonical);
  int failed = 0;
  for (int count = 1; count <= 12; ++count) {
    CAPTURE(canonical, function, count);
    fake_cuda::fail(function, cudaErrorMemoryAllocation, count);
    try {
      per_rank(2, run);
    } catch (const Error& error) {
      ++failed;
      REQUIRE_THAT(error.what(), Catch::Contains("memory"));
    }
    fake_cuda::fail_no_more();
    REQUIRE(fake_cuda::live_objects() == objects);
  }
  REQUIRE(failed > 0);
}

namespace {

/// A step that finds other weights on its device from the fifth look on.
class FaultyStep final : public train::Step {
 public:
  explicit FaultyStep(std::unique_ptr<train::Step> step) : step_(std::move(step)) {}

  const char* name() const noexcept override { return step_->name(); }
  Matrix<float> inputs(Range piece) override { return step_->inputs(piece); }
  std::pmr::memory_resource* staging() noexcept override { return step_->staging(); }
  void stage(const data::StagedBatch& staged, float divisor) override {
    step_->stage(staged, divisor);
  }
  void forget_staged() noexcept override { step_->forget_staged(); }
  train::StepResult run(const data::Batch& batch, train::PhaseSeconds& seconds) override {
    return step_->run(batch, seconds);
  }
  std::optional<std::uint64_t> hash_of_weights(Range slice) override {
    return *step_->hash_of_weights(slice) + (++looks_ < 5 ? 0 : 1);
  }
  void show_weights(Range slice) override { step_->show_weights(slice); }

 private:
  std::unique_ptr<train::Step> step_;
  int looks_ = 0;
};

class FaultyReplica final : public train::DeviceReplica {
 public:
  explicit FaultyReplica(std::unique_ptr<train::DeviceReplica> replica)
      : replica_(std::move(replica)) {}

  train::Inference& inference() override { return replica_->inference(); }
  std::unique_ptr<train::Step> make_step(bool canonical,
                                         const train::CanonicalOptions& options) override {
    return std::make_unique<FaultyStep>(replica_->make_step(canonical, options));
  }
  const std::string& device() const noexcept override { return replica_->device(); }
  const std::string& exchange() const noexcept override { return replica_->exchange(); }
  const char* products() const noexcept override { return replica_->products(); }
  bool shares_device() const noexcept override { return replica_->shares_device(); }

 private:
  std::unique_ptr<train::DeviceReplica> replica_;
};

}  // namespace

TEST_CASE("device: the sentinel compares what stands on the devices", "[device][train]") {
  fake_cuda::set_devices(3);
  ToyRun run{.epochs = 2};
  run.device = [](nn::Network<float>& network, std::size_t rows, comm::Communicator& comm) {
    auto replica = on_device(DeviceExchange::automatic)(network, rows, comm);
    if (comm.rank() != 2) return replica;
    return std::unique_ptr<train::DeviceReplica>(
        std::make_unique<FaultyReplica>(std::move(replica)));
  };
  REQUIRE_THROWS_WITH(per_rank(3, run), Catch::Contains("replicas differed before step 4"));
}

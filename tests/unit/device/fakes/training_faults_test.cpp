#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "lockstep/collectives/threads.hpp"
#include "lockstep/train/device.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/fakes/cuda/fake_nccl.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/unit/device/toy_device.hpp"

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;
using train::DeviceExchange;

TEST_CASE("device: a call that fails on one rank ends all, and nothing is left",
          "[device][train]") {
  fake_cuda::set_devices(2);
  const bool canonical = GENERATE(true, false);
  const std::string function = GENERATE("cudaGraphLaunch", "cudaStreamEndCapture",
                                        "cudaEventRecord", "cudaMalloc", "cudaMallocHost");
  const auto objects = fake_cuda::live_objects();
  ToyRun run{.batch_size = 60, .canonical = canonical, .epochs = 1};
  run.options = on_device(DeviceExchange::staged, canonical);
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

TEST_CASE("device: training waits for NCCL as long as nccl_timeout", "[device][train]") {
  fake_cuda::set_devices(2);
  ToyRun run{.canonical = false, .epochs = 1};
  run.options = [](train::ReplicaOptions& options) {
    on_device(DeviceExchange::nccl, /*strict=*/false)(options);
    options.nccl_timeout = 1s;
  };
  fake_nccl::fail("ncclAllReduce", ncclInvalidUsage, 1);
  const auto errors = per_rank(2, [&](comm::Communicator& comm) -> std::string {
    std::string text;
    try {
      train_toy(comm, run);
    } catch (const Error& error) {
      text = error.what();
    }
    comm.all_agree(true);  // no rank leaves while another one looks for the cause
    return text;
  });
  CHECK_THAT(errors[0], Catch::Contains(": not done after 1.0 s; rank 1 on "));
  CHECK_THAT(errors[1], Catch::StartsWith("ncclAllReduce on rank 1 of 2: invalid usage"));
}

namespace {

/// A replica that hashes other weights on its device from the fifth hash on.
class FaultyReplica final : public train::DeviceReplica {
 public:
  explicit FaultyReplica(std::unique_ptr<train::DeviceReplica> replica)
      : replica_(std::move(replica)) {}

  const nn::NetworkShape& shape() const noexcept override { return replica_->shape(); }
  Matrix<float> inputs(std::size_t rows) override { return replica_->inputs(rows); }
  Matrix<const float> forward(std::size_t rows) override { return replica_->forward(rows); }
  std::unique_ptr<train::Step> make_step(bool canonical, const train::StepOptions& options,
                                         train::Sentinel& sentinel) override {
    return replica_->make_step(canonical, options, sentinel);
  }
  std::pmr::memory_resource& staging_memory() noexcept override {
    return replica_->staging_memory();
  }
  void stage(const data::StagedBatch& staged, float divisor) override {
    replica_->stage(staged, divisor);
  }
  void drop_staged() noexcept override { replica_->drop_staged(); }
  std::uint64_t hash_of_weights(Range slice) override {
    return replica_->hash_of_weights(slice) + (++hashes_ < 4 ? 0 : 1);
  }
  void copy_weights_to_host(Range slice) override { replica_->copy_weights_to_host(slice); }
  void copy_weights_from_host() override { replica_->copy_weights_from_host(); }
  Matrix<const float> copy_activation(std::size_t i, std::size_t rows) override {
    return replica_->copy_activation(i, rows);
  }
  Matrix<const float> copy_gradient(std::size_t i, std::size_t rows) override {
    return replica_->copy_gradient(i, rows);
  }
  const std::string& device() const noexcept override { return replica_->device(); }
  const std::string& exchange() const noexcept override { return replica_->exchange(); }
  const char* products() const noexcept override { return replica_->products(); }
  bool shares_device() const noexcept override { return replica_->shares_device(); }

 private:
  std::unique_ptr<train::DeviceReplica> replica_;
  int hashes_ = 0;
};

}  // namespace

TEST_CASE("device: the sentinel compares what stands on the devices", "[device][train]") {
  fake_cuda::set_devices(3);
  const ToyRun run{.epochs = 2};
  const auto train = [&](comm::Communicator& comm) {
    ToyRun mine = run;
    mine.options = [&](train::ReplicaOptions& options) {
      on_device(DeviceExchange::automatic)(options);
      if (comm.rank() != 2) return;
      options.wrap_device = [](std::unique_ptr<train::DeviceReplica> replica) {
        return std::make_unique<FaultyReplica>(std::move(replica));
      };
    };
    train_toy(comm, mine);
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(3, train),
                      Catch::Contains("replicas differed before step 4"));
}

#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/cuda/device.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/two_levels.hpp"

using namespace lockstep;
using comm::Communicator;
using comm::DeviceOfRank;

namespace {

/// Another communicator, whose ranks are said to be on several hosts.
class OnHosts final : public Communicator {
 public:
  OnHosts(Communicator& base, const std::vector<int>& hosts)
      : Communicator(base.rank(), base.size()), base_(base), place_(test::place_in(hosts, rank())) {
    place_.host = "h" + std::to_string(place_.node);
  }
  const char* backend() const noexcept override { return "threads"; }
  const comm::Place& place() const noexcept override { return place_; }

 private:
  static std::span<std::uint8_t> bytes(comm::Elements values) {
    return {reinterpret_cast<std::uint8_t*>(values.data), values.count * comm::width(values.type)};
  }
  void do_all_reduce(comm::Elements values, comm::Op op) override {
    base_.all_reduce(bytes(values), op);
  }
  void do_broadcast(comm::Elements values, int root) override {
    base_.broadcast(bytes(values), root);
  }
  void do_all_gather(comm::Elements values) override { base_.all_gather(bytes(values)); }
  void do_all_to_all(const std::byte*, comm::Elements) override {
    throw std::logic_error("unused");
  }
  void do_shift(const std::byte*, comm::Elements) override { throw std::logic_error("unused"); }

  Communicator& base_;
  comm::Place place_;
};

struct Case {
  int devices;             // of each host
  std::vector<int> hosts;  // of the ranks
  bool share = false;
  std::vector<std::vector<int>> visible = {};  // by rank; empty: all
};

/// What `choose_device` gives every rank.
std::vector<DeviceOfRank> chosen(const Case& asked) {
  fake_cuda::set_devices(asked.devices);
  return test::per_rank(static_cast<int>(asked.hosts.size()), [&](Communicator& threads) {
    if (!asked.visible.empty()) {
      fake_cuda::set_visible(asked.visible[static_cast<std::size_t>(threads.rank())]);
    }
    OnHosts host(threads, asked.hosts);
    return comm::choose_device(host, asked.share);
  });
}

std::vector<int> devices_of(const std::vector<DeviceOfRank>& all) {
  std::vector<int> devices;
  devices.reserve(all.size());
  for (const auto& one : all) devices.push_back(one.device);
  return devices;
}

/// The text that all ranks get, with code 2.
std::string refusal(const Case& asked) {
  fake_cuda::set_devices(asked.devices);
  return test::on_all(
      static_cast<int>(asked.hosts.size()), [&](Communicator& threads) -> std::string {
        if (!asked.visible.empty()) {
          fake_cuda::set_visible(asked.visible[static_cast<std::size_t>(threads.rank())]);
        }
        OnHosts host(threads, asked.hosts);
        try {
          comm::choose_device(host, asked.share);
        } catch (const comm::AgreedError& error) {
          if (error.code() == ExitCode::usage) return error.what();
          return "another code";
        }
        return "no error";
      });
}

}  // namespace

TEST_CASE("device: a rank takes the device of its number on the host", "[device]") {
  const auto all = chosen({.devices = 3, .hosts = {0, 0, 1, 0, 1}});
  REQUIRE(devices_of(all) == std::vector<int>{0, 1, 0, 2, 1});
  CHECK(all[1].bus_id == "0000:02:00.0");
  CHECK(all[1].name == "a processor that plays a device");
  for (const auto& one : all) CHECK_FALSE(one.shared);
}

TEST_CASE("device: a rank that sees one device takes that", "[device]") {
  const auto all = chosen({.devices = 4, .hosts = {0, 0, 0}, .visible = {{3}, {1}, {0}}});
  REQUIRE(devices_of(all) == std::vector<int>{0, 0, 0});
  CHECK(all[0].bus_id == "0000:04:00.0");
  CHECK(all[1].bus_id == "0000:02:00.0");
  CHECK_FALSE(all[2].shared);
}

TEST_CASE("device: ranks that see different devices", "[device]") {
  const auto all = chosen({.devices = 4, .hosts = {0, 0}, .visible = {{2}, {0, 1}}});
  REQUIRE(devices_of(all) == std::vector<int>{0, 1});
  CHECK(
      refusal({.devices = 4, .hosts = {0, 0}, .visible = {{1}, {0, 1}}}) ==
      "ranks 0-1 on h0 take the same device, 0000:02:00.0 (a processor that plays a device)\n"
      "  remedy: give each rank a device of its own (Slurm: --gpus-per-task=1, not --gres), start "
      "fewer ranks, or pass `share_device`, which is slow");
}

TEST_CASE("device: the chosen device is current", "[device]") {
  fake_cuda::set_devices(3);
  const auto current = test::per_rank(3, [](Communicator& host) {
    comm::choose_device(host, false);
    int device = -1;
    cudaGetDevice(&device);
    return device;
  });
  REQUIRE(current == std::vector<int>{0, 1, 2});
}

TEST_CASE("device: two ranks on one device are named", "[device]") {
  const auto text = refusal({.devices = 1, .hosts = {0, 1, 1, 0, 1}});
  CHECK_THAT(text, Catch::StartsWith("ranks 0, 3 on h0 take the same device, 0000:01:00.0"));
  CHECK_THAT(text, Catch::Contains("\n  ranks 1-2, 4 on h1 take the same device, 0000:01:00.0"));
  CHECK_THAT(text, Catch::Contains("`share_device`"));
}

TEST_CASE("device: the same device number on two hosts is not the same device", "[device]") {
  const auto all = chosen({.devices = 1, .hosts = {0, 1}});
  CHECK_FALSE(all[0].shared);
}

TEST_CASE("device: more ranks than devices", "[device]") {
  const auto text = refusal({.devices = 2, .hosts = {0, 0, 0, 1}});
  CHECK_THAT(
      text, Catch::StartsWith("rank 0 on h0 (the first of 3 that failed, of 4 ranks): 3 ranks on "
                              "h0, but only 2 devices are visible\n  remedy: start no more ranks"));
}

TEST_CASE("device: ranks share devices where that was asked for", "[device]") {
  const auto all = chosen({.devices = 2, .hosts = {0, 0, 0, 1}, .share = true});
  REQUIRE(devices_of(all) == std::vector<int>{0, 1, 0, 0});
  for (const auto& one : all) CHECK(one.shared);  // also those that share with nobody
  for (const auto& one : chosen({.devices = 2, .hosts = {0, 0}, .share = true})) {
    CHECK_FALSE(one.shared);
  }
}

TEST_CASE("device: a rank without a device is named", "[device]") {
  const auto text = refusal({.devices = 0, .hosts = {0, 0}});
  CHECK_THAT(text,
             Catch::StartsWith("no CUDA device is visible (no CUDA-capable device is detected)\n"));
  CHECK_THAT(text, Catch::Contains("CUDA_VISIBLE_DEVICES") && Catch::Contains("`device=cpu`"));
  fake_cuda::fail("cudaGetDeviceCount", cudaErrorNoDevice);
  CHECK_THAT(refusal({.devices = 2, .hosts = {0, 1}}),
             Catch::Contains(" on h") && Catch::Contains(": no CUDA device is visible"));
  fake_cuda::set_devices(1);
}

#include <catch2/catch.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/communicator_contract.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/unit/device/on_devices.hpp"

using namespace lockstep;
using comm::Communicator;
using comm::DeviceCommunicator;
using comm::Op;
using test::downloaded;
using test::Findings;
using test::Kind;
using test::on_devices;
using test::uploaded;

namespace {

template <class T>
std::vector<T> numbers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<std::size_t>(rank + 1) * (i % 7 + 1));
  }
  return values;
}

/// The collectives of one type on device and host, which must agree.
template <class T>
struct Both {
  Communicator& host;
  DeviceCommunicator& device;
  const cuda::Stream& stream;
  Findings& findings;

  void expect(const cuda::DeviceBuffer<T>& there, const std::vector<T>& here, const char* what) {
    findings.expect(downloaded(there, device, stream) == here,
                    std::string(what) + " of " + std::to_string(here.size()) + " elements, type " +
                        std::to_string(static_cast<int>(comm::TypeOf<T>::value)) + ", rank " +
                        std::to_string(host.rank()));
  }

  void check(std::size_t count) {
    const auto ranks = static_cast<std::size_t>(host.size());
    for (const Op op : {Op::sum, Op::min, Op::max}) {
      auto here = numbers<T>(host.rank(), count);
      const auto there = uploaded(here, stream);
      host.all_reduce(std::span(here), op);
      device.all_reduce(there.span(), op);
      expect(there, here, "all_reduce");
    }
    for (int root = 0; root < host.size(); ++root) {
      auto here = numbers<T>(host.rank(), count);
      const auto there = uploaded(here, stream);
      host.broadcast(std::span(here), root);
      device.broadcast(there.span(), root);
      expect(there, here, "broadcast");
    }
    auto here = numbers<T>(host.rank(), count * ranks);
    const auto there = uploaded(here, stream);
    host.all_gather(std::span(here));
    device.all_gather(there.span());
    expect(there, here, "all_gather");
    exchange(count);
  }

  void exchange(std::size_t count) {
    const auto ranks = static_cast<std::size_t>(host.size());
    const auto send = numbers<T>(host.rank(), count * ranks);
    const auto send_there = uploaded(send, stream);
    std::vector<T> here(send.size());
    const cuda::DeviceBuffer<T> there(send.size());
    host.all_to_all(std::span<const T>(send), std::span(here));
    device.all_to_all(std::span<const T>(send_there.span()), there.span());
    expect(there, here, "all_to_all");
    host.shift(std::span<const T>(send), std::span(here));
    device.shift(std::span<const T>(send_there.span()), there.span());
    expect(there, here, "shift");
  }
};

template <class T>
void check_type(Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream,
                Findings& findings) {
  for (const std::size_t count : {0, 1, 33, 1025}) {
    Both<T>{host, device, stream, findings}.check(count);
  }
}

}  // namespace

TEST_CASE("device: collectives leave what those of the host leave", "[device][collectives]") {
  const auto kind = GENERATE(Kind::nccl, Kind::staged);
  const int ranks = GENERATE(1, 2, 3, 4, 5);
  const auto objects = test::live_objects();
  std::vector<Findings> findings(static_cast<std::size_t>(ranks));
  on_devices(ranks, kind,
             [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
               auto& mine = findings[static_cast<std::size_t>(host.rank())];
               check_type<std::uint8_t>(host, device, stream, mine);
               check_type<std::uint64_t>(host, device, stream, mine);
               check_type<float>(host, device, stream, mine);
               check_type<double>(host, device, stream, mine);
             });
  for (const auto& found : findings) CHECK(found.text().empty());
  REQUIRE(test::live_objects() == objects);
}

TEST_CASE("device: collectives are in the stream's order", "[device][collectives]") {
  const auto kind = GENERATE(Kind::nccl, Kind::staged);
  std::vector<std::vector<float>> results(3);
  const bool ran = on_devices(
      3, kind, [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const cuda::PinnedBuffer<float> first(4);
        std::fill(first.span().begin(), first.span().end(), 1.0F);
        const cuda::DeviceBuffer<float> values(4);
        cuda::copy(first.span(), values.span(), stream);
        device.all_reduce(values.span());
        device.all_reduce(values.span());
        results[static_cast<std::size_t>(host.rank())] = downloaded(values, device, stream);
      });
  if (!ran) return;
  for (const auto& values : results) CHECK(values == std::vector<float>(4, 9.0F));
}

TEST_CASE("device: NCCL's collectives can be recorded and repeated", "[device][collectives]") {
  std::vector<std::vector<float>> results(2);
  const bool ran = on_devices(
      2, Kind::nccl,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(5, 1.0F), stream);
        const auto graph = cuda::Graph::record(stream, [&] { device.all_reduce(values.span()); });
        for (int i = 0; i < 3; ++i) graph.enqueue(stream);
        results[static_cast<std::size_t>(host.rank())] = downloaded(values, device, stream);
      });
  if (!ran) return;
  for (const auto& values : results) CHECK(values == std::vector<float>(5, 8.0F));
}

TEST_CASE("device: NCCL and the host give the same bits for two ranks", "[device][collectives]") {
  std::vector<std::vector<float>> results;
  for (const Kind kind : {Kind::nccl, Kind::staged}) {
    std::vector<float> sums;
    const bool ran = on_devices(
        2, kind, [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
          std::vector<float> mine(1000);
          for (std::size_t i = 0; i < mine.size(); ++i) {
            mine[i] = 1.0F / static_cast<float>(i + 3 + static_cast<std::size_t>(host.rank()));
          }
          const auto values = uploaded(mine, stream);
          device.all_reduce(values.span());
          auto sum = downloaded(values, device, stream);
          if (host.rank() == 0) sums = std::move(sum);
        });
    if (!ran) return;
    results.push_back(std::move(sums));
  }
  REQUIRE(results[0] == results[1]);
}

TEST_CASE("device: host memory is refused", "[device][collectives]") {
  const auto kind = GENERATE(Kind::nccl, Kind::staged);
  std::vector<Findings> findings(2);
  on_devices(2, kind, [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& s) {
    auto& mine = findings[static_cast<std::size_t>(host.rank())];
    std::vector<float> here(4);
    const cuda::PinnedBuffer<float> pinned(4);
    const auto there = uploaded(here, s);
    const std::span<const float> sent(here);
    const auto refuse = [&](const char* what, const std::function<void()>& call) {
      const auto text = mine.expect_throw<std::invalid_argument>(what, call);
      mine.expect(text.starts_with(what) && text.find("host memory") != text.npos, text);
    };
    refuse("all_reduce", [&] { device.all_reduce(std::span(here)); });
    refuse("all_reduce", [&] { device.all_reduce(pinned.span()); });
    refuse("broadcast", [&] { device.broadcast(std::span(here)); });
    refuse("all_gather", [&] { device.all_gather(std::span(here)); });
    refuse("all_to_all", [&] { device.all_to_all(sent, there.span()); });
    refuse("all_to_all",
           [&] { device.all_to_all(std::span<const float>(there.span()), std::span(here)); });
    refuse("shift", [&] { device.shift(sent, there.span()); });
    refuse("all_reduce", [&] { device.all_agree(true); });
    refuse("all_gather", [&] { device.split(0); });
    device.all_reduce(there.span());  // and the communicator is as it was
    device.wait("the sum");
  });
  for (const auto& found : findings) CHECK(found.text().empty());
}

TEST_CASE("device: a communicator over a part of the ranks", "[device][collectives]") {
  const auto kind = GENERATE(Kind::nccl, Kind::staged);
  const int devices = test::devices_for(5, kind);
  if (devices == 0) return;
  const auto sums = test::per_rank(5, [&](Communicator& world) {
    cuda::select_device(world.rank() % devices);
    const cuda::Stream stream;
    const auto host = world.split(world.rank() % 2);
    const auto device = test::make(kind, *host, stream);
    const auto values = uploaded(std::vector<float>{static_cast<float>(world.rank())}, stream);
    device->all_reduce(values.span());
    const auto sum = downloaded(values, *device, stream)[0];
    return std::pair(sum, device->world_rank(device->rank()));
  });
  using Sum = std::pair<float, int>;
  REQUIRE(sums == std::vector<Sum>{{6, 0}, {4, 1}, {6, 2}, {4, 3}, {6, 4}});
}

TEST_CASE("device: what a staged communicator is called, and where it is",
          "[device][collectives]") {
  using Seen = std::pair<std::string, int>;
  std::vector<Seen> seen(2);
  const bool ran = on_devices(
      2, Kind::staged, [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream&) {
        seen[static_cast<std::size_t>(host.rank())] = {device.backend(), device.place().local_rank};
      });
  if (!ran) return;
  REQUIRE(seen == std::vector<Seen>{{"staged over threads", 0}, {"staged over threads", 1}});
}

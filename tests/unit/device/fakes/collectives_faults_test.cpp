// What a communicator between devices asks of NCCL, and how it ends when something breaks.
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "tests/fakes/cuda/fake.hpp"
#include "tests/fakes/cuda/fake_nccl.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/soon.hpp"
#include "tests/unit/device/on_devices.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using comm::Communicator;
using comm::DeviceCommunicator;
using comm::Op;
using test::Body;
using test::Kind;
using test::on_devices;
using test::uploaded;

namespace {

constexpr auto short_limit = 1000ms;  // also of steps that succeed, on a busy machine

/// The error of every rank, or "" for one that has none.
std::vector<std::string> errors(int ranks, const Body& body, std::chrono::milliseconds limit) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::vector<int> codes(texts.size());
  on_devices(
      ranks, Kind::nccl,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto me = static_cast<std::size_t>(host.rank());
        try {
          body(host, device, stream);
        } catch (const Error& error) {
          texts[me] = error.what();
          codes[me] = static_cast<int>(error.code());
        }
        host.all_agree(true);  // nobody leaves while others look
      },
      limit);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) CHECK(codes[rank] == 86);
  }
  return texts;
}

/// Of ranks that all fail to start NCCL: their errors.
std::vector<std::string> start_errors(int ranks, std::chrono::milliseconds limit, bool one_device) {
  fake_cuda::set_devices(5);
  return test::per_rank(ranks, [&](Communicator& host) -> std::string {
    cuda::select_device(one_device ? 0 : host.rank());
    const cuda::Stream stream;
    try {
      make_nccl_communicator(host, stream, limit);
    } catch (const Error& error) {
      return std::to_string(static_cast<int>(error.code())) + ' ' + error.what();
    }
    return "";
  });
}

/// Waits for threads that were left alone; false if one of them or a communicator does not end.
bool all_end() {
  return test::soon(
      [] { return fake_nccl::calls_in_progress() + fake_nccl::live_communicators() == 0; });
}

}  // namespace

TEST_CASE("device: communicators are destroyed, and give back what they took",
          "[device][collectives]") {
  const auto kind = GENERATE(Kind::nccl, Kind::staged);
  const int ranks = GENERATE(1, 3);
  const auto objects = fake_cuda::live_objects();
  const auto aborted = fake_nccl::aborted();
  const auto destroyed = fake_nccl::destroyed();
  on_devices(ranks, kind,
             [](Communicator&, DeviceCommunicator& device, const cuda::Stream& stream) {
               const auto values = uploaded(std::vector<float>(33), stream);
               device.all_reduce(values.span());
               device.wait("the sum");
             });
  REQUIRE(fake_cuda::live_objects() == objects);
  REQUIRE(fake_nccl::live_communicators() == 0);
  REQUIRE(fake_nccl::aborted() == aborted);
  const auto made = static_cast<std::size_t>(kind == Kind::nccl ? ranks : 0);
  REQUIRE(fake_nccl::destroyed() == destroyed + made);
}

TEST_CASE("device: the calls that NCCL gets, in order", "[device][collectives]") {
  fake_nccl::take_calls(1);
  std::string error;
  on_devices(3, Kind::nccl,
             [&](Communicator&, DeviceCommunicator& device, const cuda::Stream& stream) {
               const auto values = uploaded(std::vector<double>(6), stream);
               const auto more = uploaded(std::vector<double>(6), stream);
               device.all_reduce(values.span(), Op::max);
               device.broadcast(values.span(), 2);
               device.all_gather(values.span());
               device.all_to_all(std::span<const double>(values.span()), more.span());
               device.shift(std::span<const double>(values.span()), more.span());
               device.all_reduce(values.span().first(0));
               device.wait("all of it");
             });
  REQUIRE(fake_nccl::take_calls(1) ==
          std::vector<std::string>{
              "ncclCommInitRank", "ncclAllReduce 6 f64", "ncclBroadcast 6 f64 from 2",
              "ncclAllGather 2 f64", "ncclSend 2 f64 to 0", "ncclRecv 2 f64 from 0",
              "ncclSend 2 f64 to 2", "ncclRecv 2 f64 from 2", "ncclGroupEnd", "ncclSend 6 f64 to 2",
              "ncclRecv 6 f64 from 0", "ncclGroupEnd", "ncclCommDestroy"});
}

TEST_CASE("device: blocks that need not travel are not staged", "[device][collectives]") {
  std::vector<std::string> log;
  on_devices(1, Kind::staged,
             [&](Communicator&, DeviceCommunicator& device, const cuda::Stream& s) {
               const auto values = uploaded(std::vector<float>(4), s);
               const auto more = uploaded(std::vector<float>(4), s);
               fake_cuda::take_log();
               device.shift(std::span<const float>(values.span()), more.span());
               device.all_to_all(std::span<const float>(values.span()), more.span());
               log = fake_cuda::take_log();
               device.wait("the copies");
             });
  std::erase(log, "cudaPointerGetAttributes");
  REQUIRE(log == std::vector<std::string>{"cudaMemcpyAsync", "cudaMemcpyAsync"});
}

TEST_CASE("device: NCCL that cannot start ends all ranks with the reason",
          "[device][collectives]") {
  SECTION("no id") {
    fake_nccl::fail("ncclGetUniqueId", ncclSystemError);
    for (const auto& text : start_errors(3, 5s, false)) {
      CHECK_THAT(text, Catch::StartsWith("86 rank 0 on "));
      CHECK_THAT(text, Catch::Contains("ncclGetUniqueId on rank 0 of 3: unhandled system error: "
                                       "what NCCL said last"));
    }
  }
  SECTION("one rank fails at once, and the others wait for it") {
    fake_nccl::fail("ncclCommInitRank", ncclSystemError, 1);
    const auto begin = std::chrono::steady_clock::now();
    const auto texts = start_errors(3, short_limit, false);
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
    for (const auto& text : texts) {
      CHECK_THAT(text, Catch::StartsWith("86 rank 1 on "));
      CHECK_THAT(
          text, Catch::EndsWith(": ncclCommInitRank: unhandled system error: what NCCL said last"));
    }
    fake_nccl::release_initialising();
  }
  SECTION("one rank never ends") {
    fake_nccl::hold_start(1, true);
    for (const auto& text : start_errors(3, short_limit, false)) {
      CHECK_THAT(text,
                 Catch::StartsWith("86 ncclCommInitRank between 3 ranks: not done after 1.0 s"));
    }
    fake_nccl::hold_start(1, false);  // the three then start, and abort
  }
  SECTION("two ranks on one device") {
    for (const auto& text : start_errors(2, 5s, true)) {
      CHECK_THAT(text, Catch::Contains("ncclCommInitRank: invalid usage"));
    }
  }
  REQUIRE(all_end());
}

TEST_CASE("device: a call that fails aborts", "[device][collectives]") {
  const auto aborted = fake_nccl::aborted();
  const std::string function = GENERATE("ncclAllReduce", "ncclRecv", "ncclGroupEnd");
  fake_nccl::fail(function, ncclInvalidUsage, 1);
  const auto texts = errors(
      2,
      [&](Communicator&, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(4), stream);
        const auto more = uploaded(std::vector<float>(4), stream);
        device.all_reduce(values.span());
        device.shift(std::span<const float>(values.span()), more.span());
        device.wait("the sums of step 3");
      },
      short_limit);
  CHECK_THAT(texts[1],
             Catch::Equals(function + " on rank 1 of 2: invalid usage: what NCCL said last"));
  CHECK_THAT(texts[0],
             Catch::StartsWith(
                 "the sums of step 3, by NCCL on rank 0 of 2: not done after 1.0 s; rank 1 on "));
  REQUIRE(fake_nccl::aborted() == aborted + 2);
  REQUIRE(fake_nccl::live_communicators() == 0);
}

TEST_CASE("device: a rank that does not come is named", "[device][collectives]") {
  const auto begin = std::chrono::steady_clock::now();
  const auto aborted = fake_nccl::aborted();
  const auto texts = errors(
      3,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(4), stream);
        device.all_reduce(values.span());
        device.wait("the first sum");
        if (host.rank() == 1) return;
        device.all_reduce(values.span());
        device.wait("the second sum");
      },
      short_limit);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK(texts[1].empty());
  const std::string lagging = " of 3: not done after 1.0 s; rank 1 on " + host_name() +
                              " lags: it came to wait 1, this is 2";
  CHECK_THAT(texts[0], Catch::Equals("the second sum, by NCCL on rank 0" + lagging));
  CHECK_THAT(texts[2], Catch::Equals("the second sum, by NCCL on rank 2" + lagging));
  REQUIRE(fake_nccl::aborted() == aborted + 2);
  REQUIRE(fake_nccl::live_communicators() == 0);
}

TEST_CASE("device: a rank that has left is named", "[device][collectives]") {
  fake_cuda::set_devices(5);
  std::string text;
  comm::run_ranks(2, [&](Communicator& host) {
    cuda::select_device(host.rank());
    const cuda::Stream stream;
    auto device = make_nccl_communicator(host, stream, short_limit);
    const auto values = uploaded(std::vector<float>(4), stream);
    if (host.rank() == 1) device.reset();
    host.all_agree(true);
    if (host.rank() == 1) return;
    device->all_reduce(values.span());
    try {
      device->wait("the sum");
    } catch (const comm::CommError& error) {
      text = error.what();
    }
  });
  CHECK_THAT(text, Catch::Contains("rank 1 on ") &&
                       Catch::Contains(" has left: it came to wait 0, this is 1"));
}

TEST_CASE("device: ranks that all came blame a device or a link", "[device][collectives]") {
  const auto texts = errors(
      2,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(4), stream);
        if (host.rank() == 0) device.all_reduce(values.span());
        device.wait("the sum");
      },
      short_limit);
  // Rank 1 forgot its call, which no count tells.
  CHECK_THAT(texts[0], Catch::Contains("all 2 ranks of ") &&
                           Catch::Contains(" have come to it: a device, or the link"));
}

TEST_CASE("device: what NCCL notices meanwhile ends the wait", "[device][collectives]") {
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = errors(
      2,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(4), stream);
        if (host.rank() == 1) {
          fake_nccl::break_link(0, ncclRemoteError);
          return;
        }
        device.all_reduce(values.span());
        device.wait("the sum");
      },
      60s);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK_THAT(texts[0],
             Catch::StartsWith("the sum, by NCCL on rank 0 of 2: remote process exited or "
                               "there was a network error: what NCCL said last; rank 1 on "));
}

TEST_CASE("device: an error that comes with the result is not missed", "[device][collectives]") {
  const auto texts = errors(
      1,
      [&](Communicator&, DeviceCommunicator& device, const cuda::Stream&) {
        fake_nccl::break_link(0, ncclSystemError);
        device.wait("nothing");
      },
      short_limit);
  CHECK_THAT(texts[0], Catch::Contains("unhandled system error"));
}

TEST_CASE("device: an abort that waits for graphs holds nobody up", "[device][collectives]") {
  fake_nccl::hold_aborts(true);
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = errors(
      2,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        const auto values = uploaded(std::vector<float>(4), stream);
        const auto graph = cuda::Graph::record(stream, [&] { device.all_reduce(values.span()); });
        if (host.rank() == 1) return;
        graph.enqueue(stream);
        device.wait("the step");
      },
      short_limit);
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK_THAT(texts[0], Catch::Contains("rank 1 on "));
  CHECK(fake_nccl::calls_in_progress() == 1);
  fake_nccl::hold_aborts(false);
  REQUIRE(all_end());
}

TEST_CASE("device: after an error the communicator refuses", "[device][collectives]") {
  std::string text;
  errors(
      2,
      [&](Communicator& host, DeviceCommunicator& device, const cuda::Stream& stream) {
        if (host.rank() == 1) return;
        const auto values = uploaded(std::vector<float>(4), stream);
        device.all_reduce(values.span());
        try {
          device.wait("the sum");
        } catch (const comm::CommError&) {
        }
        try {
          device.all_reduce(values.span());
        } catch (const comm::CommError& error) {
          text = error.what();
        }
      },
      short_limit);
  CHECK_THAT(text,
             Catch::Equals("nccl on rank 0 of 2: the communicator was aborted after an error"));
}

TEST_CASE("device: an exception aborts instead of destroying", "[device][collectives]") {
  const auto aborted = fake_nccl::aborted();
  REQUIRE_THROWS_WITH(on_devices(2, Kind::nccl,
                                 [](Communicator&, DeviceCommunicator&, const cuda::Stream&) {
                                   throw std::runtime_error("disk full");
                                 }),
                      "disk full");
  REQUIRE(fake_nccl::aborted() == aborted + 2);
  REQUIRE(fake_nccl::live_communicators() == 0);
}

TEST_CASE("device: a failed device is its own error", "[device][collectives]") {
  REQUIRE_THROWS_AS(
      on_devices(2, Kind::nccl,
                 [](Communicator& host, DeviceCommunicator& device, const cuda::Stream&) {
                   if (host.rank() == 0) {
                     fake_cuda::fail("cudaEventQuery", cudaErrorIllegalAddress);
                     device.wait("the step");
                   }
                   host.all_agree(true);
                 }),
      cuda::DeviceError);
  REQUIRE(fake_nccl::live_communicators() == 0);
}

// Shared memory between ranks that are threads here: every rank still opens its peers' regions.
#include "lockstep/collectives/shared.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "tests/support/communicator_contract.hpp"
#include "tests/support/two_levels.hpp"

using namespace lockstep;
using comm::Communicator;

namespace {

using Wrap = std::function<std::unique_ptr<Communicator>(Communicator& wire)>;

/// Runs `check` on what `wrap` makes of `ranks` threads; returns what each rank found wrong.
std::string findings_of(int ranks, const Wrap& wrap,
                        const std::function<void(Communicator&, test::Findings&)>& check) {
  return test::findings_of(ranks, [&](Communicator& wire, test::Findings& findings) {
    const auto comm = wrap(wire);
    check(*comm, findings);
  });
}

std::unique_ptr<Communicator> shared(Communicator& wire) {
  return std::make_unique<comm::SharedCommunicator>(wire, wire.place());
}

std::unique_ptr<Communicator> two_levels(Communicator& wire, const test::Nodes& nodes) {
  return std::make_unique<comm::TwoLevelCommunicator>(wire, test::place_in(nodes, wire.rank()));
}

}  // namespace

TEST_CASE("shared memory keeps the communicator's contract", "[collectives]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  for (const auto& check : test::communicator_contract()) {
    INFO(check.name << " on " << ranks);
    CHECK(findings_of(ranks, shared, check.run) == "");
  }
}

TEST_CASE("ranks know on which cores those of their node may run", "[collectives]") {
  std::vector<int> found(8);
  comm::run_ranks(4, [&](Communicator& wire) {
    const auto comm = shared(wire);
    const auto part = comm->split(comm->rank() % 2);
    const auto at = static_cast<std::size_t>(2 * wire.rank());
    found[at] = wire.place().cores;
    found[at + 1] = part->place().cores;
  });
  CHECK(found == std::vector<int>(8, bound_cores()));
}

TEST_CASE("two levels keep the communicator's contract", "[collectives]") {
  const int ranks = GENERATE(2, 3, 4, 5);
  for (const test::Nodes& nodes : test::layouts(ranks)) {
    const auto wrap = [&](Communicator& wire) { return two_levels(wire, nodes); };
    for (const auto& check : test::communicator_contract()) {
      INFO(check.name << " on " << ranks << ", the last on node " << nodes.back());
      CHECK(findings_of(ranks, wrap, check.run) == "");
    }
  }
}

TEST_CASE("sums run in rank order, within nodes first", "[collectives]") {
  const auto value = [](int rank) { return 0.1F / static_cast<float>(rank + 1); };
  const auto findings = [&](const Wrap& wrap, float expected) {
    return findings_of(5, wrap, [&](Communicator& comm, test::Findings& found) {
      std::vector<float> values(5000, value(comm.rank()));
      comm.all_reduce(std::span(values));
      found.expect(values == std::vector<float>(5000, expected), "another sum");
    });
  };
  CHECK(findings(shared, (((value(0) + value(1)) + value(2)) + value(3)) + value(4)) == "");
  const auto nodes = test::layouts(5)[0];
  const auto wrap = [&](Communicator& wire) { return two_levels(wire, nodes); };
  CHECK(findings(wrap, ((value(0) + value(1)) + (value(2) + value(3))) + value(4)) == "");
}

TEST_CASE("ranks whose collectives differ are named in shared memory", "[collectives]") {
  const auto text = findings_of(3, shared, [](Communicator& comm, test::Findings& findings) {
    std::vector<float> values(comm.rank() == 2 ? 7 : 8);
    const auto what = findings.expect_throw<comm::CommError>(
        "different counts", [&] { comm.all_reduce(std::span(values)); });
    findings.expect(what.find("rank 2 calls all_reduce (sum) of 7 f32") != std::string::npos, what);
  });
  CHECK(text == "");
}

TEST_CASE("a group reads nothing that the one before has left in shared memory",
          "[collectives][survive]") {
  const auto text = test::findings_of(3, [](Communicator& wire, test::Findings& findings) {
    comm::SharedCommunicator before(wire, wire.place());
    std::vector<float> values(500, 1.0F);
    before.all_reduce(std::span(values));
    const auto group = wire.split(wire.rank() == 2);
    if (wire.rank() == 2) return before.leave();
    comm::SharedCommunicator rest(before, *group);
    values.assign(500, 10.0F);
    if (wire.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    rest.all_reduce(std::span(values));
    findings.expect(values == std::vector<float>(500, 20.0F), "sums of old values");
  });
  CHECK(text == "");
}

namespace {

/// A page that cannot be read, until 50 ms after the first attempt.
class SlowPage {
 public:
  SlowPage() {
    struct sigaction action = {};
    action.sa_flags = SA_RESETHAND;  // another fault is a crash
    action.sa_handler = [](int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ::mprotect(data, bytes, PROT_READ | PROT_WRITE);
    };
    ::sigaction(SIGSEGV, &action, &before_);
    data = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
  }
  SlowPage(const SlowPage&) = delete;
  SlowPage& operator=(const SlowPage&) = delete;
  ~SlowPage() {
    ::munmap(data, bytes);
    ::sigaction(SIGSEGV, &before_, nullptr);
  }
  static float* floats() { return static_cast<float*>(data); }

 private:
  static constexpr std::size_t bytes = 65536;
  static inline void* data = nullptr;
  struct sigaction before_ = {};
};

}  // namespace

TEST_CASE("a rank may end while a slower one still writes its part of the last collective",
          "[collectives]") {
  const SlowPage page;
  const auto text = test::findings_of(3, [&](Communicator& wire, test::Findings& findings) {
    comm::SharedCommunicator comm(wire, wire.place());
    const auto alone = wire.split(wire.rank());
    comm.wait_like(comm::SharedCommunicator(*alone, alone->place()));  // spins
    std::vector<float> own(8, 2.0F);
    const bool is_slow = wire.rank() == 1;
    if (wire.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::span<float> values = is_slow ? std::span(SlowPage::floats(), 8) : std::span(own);
    comm.broadcast(values, 2);
    findings.expect(std::vector<float>(values.begin(), values.end()) == std::vector<float>(8, 2.0F),
                    "another value");
  });
  CHECK(text == "");
}

TEST_CASE("counts that differ beyond the window are named, as ranks of the world",
          "[collectives]") {
  const auto nodes = test::layouts(4)[0];  // of two nodes: ranks 0 and 1, 2 and 3
  const auto wrap = [&](Communicator& wire) { return two_levels(wire, nodes); };
  const auto text = findings_of(4, wrap, [](Communicator& comm, test::Findings& findings) {
    const std::size_t pieces = comm.rank() == 3 ? 1 : 2;  // of a window of 1 MiB
    std::vector<float> values(pieces << 18);
    const auto what = findings.expect_throw<comm::CommError>(
        "different counts", [&] { comm.all_reduce(std::span(values)); });
    if (comm.rank() < 2) return;  // of the other node, where none differs
    findings.expect(
        what.find("rank 2 calls all_reduce (sum) of 524288 f32, in pieces of 262144, rank 3 "
                  "calls all_reduce (sum) of 262144 f32") != std::string::npos,
        what);
  });
  CHECK(text == "");
}

TEST_CASE("a region that is not there is an error with a way out", "[collectives]") {
  CHECK_THROWS_AS(comm::SharedRegion::open("1 4096 /proc/self/fd/999"), ConfigError);
  auto region = comm::SharedRegion::create(10000);
  std::string address = region.address();
  CHECK(comm::SharedRegion::open(address).size() == region.size());
  CHECK_THROWS_WITH(comm::SharedRegion::open("7" + address), Catch::Contains("another file"));
}

TEST_CASE("a region longer than files may be is an error, and no signal", "[collectives]") {
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::string refusal;
  try {
    comm::SharedRegion::create((1 << 20) + 1);
  } catch (const ConfigError& error) {
    refusal = error.what();
  }
  const bool is_restored = ::setrlimit(RLIMIT_FSIZE, &before) == 0;
  REQUIRE(is_restored);
  CHECK_THAT(refusal, Catch::Contains("1.0 MB") && Catch::Contains("ulimit -f"));
}

TEST_CASE("a region's memory ends", "[collectives]") {
  const auto region = comm::SharedRegion::create(1 << 16);
  comm::RegionMemory memory(region, 0);
  void* first = memory.allocate(100, 64);
  CHECK_THROWS_AS(memory.allocate(1 << 16, 64), std::bad_alloc);
  memory.deallocate(first, 100, 64);
  CHECK(memory.allocate(100, 64) == first);
}

TEST_CASE("a region's memory is reused in whatever order it is freed", "[collectives]") {
  const auto region = comm::SharedRegion::create(1 << 16);
  comm::RegionMemory memory(region, 64);
  constexpr std::size_t size = 20'000;
  void* const before = memory.allocate(100, 64);
  void* const first = memory.allocate(size, 64);
  void* const second = memory.allocate(size, 64);
  memory.deallocate(first, size, 64);
  void* const third = memory.allocate(size, 64);
  CHECK(third > second);
  CHECK_THROWS_AS(memory.allocate(size, 64), std::bad_alloc);
  memory.deallocate(second, size, 64);
  memory.deallocate(third, size, 64);
  CHECK(memory.allocate(size, 64) == first);
  memory.deallocate(before, 100, 64);
}

TEST_CASE("a region that was moved keeps what others write in it", "[collectives]") {
  auto region = comm::SharedRegion::create(1 << 16);
  comm::RegionMemory old(region, 0);
  constexpr std::size_t size = 20'000;
  void* const block = old.allocate(size, 64);
  const auto moved = std::move(region);
  std::fill_n(moved.data(), size, std::byte{1});
  old.deallocate(block, size, 64);
  CHECK(std::count(moved.data(), moved.data() + size, std::byte{1}) == size);
}

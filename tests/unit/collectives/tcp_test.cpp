// TCP between ranks that are threads here. A rank is lost when its communicator is destroyed.
#include "lockstep/collectives/tcp.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <memory_resource>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "tests/support/communicator_contract.hpp"
#include "tests/support/two_levels.hpp"

using namespace lockstep;
using comm::Communicator;

namespace {

/// Runs `check` on `ranks` ranks that are connected by TCP; returns what they found wrong.
std::string tcp_findings(int ranks,
                         const std::function<void(Communicator&, test::Findings&)>& check) {
  return test::findings_of(ranks, [&](Communicator& wire, test::Findings& findings) {
    comm::TcpCommunicator tcp(wire);
    check(tcp, findings);
  });
}

/// The world ranks of those that take part.
std::vector<int> members_of(Communicator& comm) {
  std::vector<std::uint64_t> members(static_cast<std::size_t>(comm.size()));
  members[static_cast<std::size_t>(comm.rank())] =
      static_cast<std::uint64_t>(comm.world_rank(comm.rank()));
  comm.all_gather(std::span(members));
  return {members.begin(), members.end()};
}

}  // namespace

TEST_CASE("TCP keeps the communicator's contract", "[collectives]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  for (const auto& check : test::communicator_contract()) {
    INFO(check.name << " on " << ranks);
    CHECK(tcp_findings(ranks, check.run) == "");
  }
}

TEST_CASE("cores over TCP are those of the wire", "[collectives]") {
  CHECK(test::findings_of(2, [](Communicator& wire, test::Findings& findings) {
          const comm::TcpCommunicator tcp(wire);
          findings.expect(tcp.place().cores == wire.place().cores, "other cores");
        }) == "");
}

TEST_CASE("ranks whose collectives differ are named over TCP", "[collectives]") {
  std::atomic<int> mismatches = 0;  // a rank may lose its peer before it has read the header
  CHECK(tcp_findings(2, [&](Communicator& comm, test::Findings& findings) {
          std::vector<float> values(comm.rank() == 1 ? 7 : 8);
          const auto what = findings.expect_throw<comm::CommError>(
              "different counts", [&] { comm.all_reduce(std::span(values)); });
          const bool is_named =
              what.find("rank 0") != std::string::npos || what.find("rank 1") != std::string::npos;
          findings.expect(is_named, what);
          const auto peer = "collective mismatch: rank " + std::to_string(1 - comm.rank());
          if (what.find(peer) == std::string::npos) return;
          ++mismatches;
          findings.expect(what.find(" bytes for all_reduce (sum), call 1") != std::string::npos,
                          what);
        }) == "");
  CHECK(mismatches >= 1);
}

TEST_CASE("a loss is reported once over TCP", "[collectives][survive]") {
  constexpr int ranks = 4;
  for (int round = 0; round < 40; ++round) {
    comm::run_ranks(ranks, [&](Communicator& wire) {
      const auto first = std::make_unique<comm::TcpCommunicator>(wire);
      if (wire.rank() == round % ranks) return;
      try {
        for (;;) first->all_agree(true);
      } catch (const comm::RankLost&) {  // not again, in the group that is left
        const auto rest = first->living();
        for (int step = 0; step < 20; ++step) rest->all_agree(true);
      }
    });
  }
}

TEST_CASE("a communicator that living() has replaced releases no memory of the new one",
          "[collectives][survive]") {
  constexpr int ranks = 4;
  constexpr std::size_t count = 100'000;
  std::array<std::ptrdiff_t, ranks> kept = {count, count, count, count};
  comm::run_ranks(ranks, [&](Communicator& wire) {
    auto before = std::make_unique<comm::TwoLevelCommunicator>(
        std::make_unique<comm::TcpCommunicator>(wire), test::place_in({0, 0, 0, 1}, wire.rank()));
    std::vector<std::byte> a(60'000);
    std::vector<std::byte> b(40'000);
    const std::array<std::span<std::byte>, 2> buffers{a, b};
    before->all_gather(buffers);  // packs in the region
    if (wire.rank() == 3) return;
    std::unique_ptr<Communicator> rest;
    try {
      for (;;) before->barrier();
    } catch (const comm::RankLost&) {
      rest = before->living();
    }
    const std::pmr::vector<float> values(count, 1.0F, &rest->memory());
    before.reset();
    kept[static_cast<std::size_t>(wire.rank())] = std::count(values.begin(), values.end(), 1.0F);
    rest->all_agree(true);
  });
  CHECK(kept == std::array<std::ptrdiff_t, ranks>{count, count, count, count});
}

TEST_CASE("ranks agree on who is left over TCP", "[collectives][survive]") {
  // Rank r leaves after round leaves_in[r], within a long collective or before it.
  const auto leaves_in = GENERATE(std::vector<int>{9, 0, 9, 9, 9}, std::vector<int>{0, 9, 9, 0, 9},
                                  std::vector<int>{1, 0, 3, 2, 9}, std::vector<int>{0, 0, 9, 0, 0});
  const auto ranks = static_cast<int>(leaves_in.size());
  std::vector<std::vector<int>> groups(leaves_in.size());
  comm::run_ranks(ranks, [&](Communicator& wire) {
    const auto mine = static_cast<std::size_t>(wire.rank());
    auto own = std::make_unique<comm::TcpCommunicator>(wire);
    std::unique_ptr<Communicator> comm = std::move(own);
    std::vector<float> values(300'000, 1.0F);
    bool is_done = false;
    for (std::uint64_t round = 0; !is_done;) {
      try {
        comm->all_reduce(std::span(&round, 1), comm::Op::max);  // not all have come as far
        for (; round < 5; ++round) {
          if (leaves_in[mine] == static_cast<int>(round)) return;
          for (int step = 0; step < 20; ++step) comm->all_reduce(std::span(values));
        }
        groups[mine] = members_of(*comm);
        is_done = comm->all_agree(true);
      } catch (const comm::RankLost&) {
        comm = comm->living();
      }
    }
  });
  std::vector<int> left;
  for (int rank = 0; rank < ranks; ++rank) {
    if (leaves_in[static_cast<std::size_t>(rank)] > 4) left.push_back(rank);
  }
  for (const int rank : left) CHECK(groups[static_cast<std::size_t>(rank)] == left);
}

#include "lockstep/collectives/threads.hpp"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "tests/support/communicator_contract.hpp"

using namespace lockstep;
using comm::Communicator;

TEST_CASE("a rank that leaves releases its peers in every part", "[collectives]") {
  const auto body = [](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2);
    if (comm.rank() == 3) throw std::runtime_error("disk full");
    std::vector<float> values(1000);
    part->all_reduce(std::span(values));
    if (comm.rank() == 2) throw std::logic_error("went on without rank 3");
  };
  CHECK_THROWS_WITH(comm::run_ranks(4, body), "disk full");
}

TEST_CASE("a part names ranks by their numbers in the job", "[collectives]") {
  std::array<std::string, 4> texts;
  comm::run_ranks(4, [&](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2);
    std::string& text = texts[static_cast<std::size_t>(comm.rank())];
    try {
      comm::together(*part, [&] {
        if (comm.rank() == 3) throw std::runtime_error("disk full");
      });
      comm::require_equal(*part, "the plan", {{"ranks", std::to_string(comm.rank())}});
    } catch (const comm::AgreedError& error) {
      text = error.what();
    }
    try {
      if (comm.rank() != 3) part->all_agree(true);
    } catch (const comm::CommError& lost) {
      text += lost.what();
    }
  });
  CHECK_THAT(texts[0],
             Catch::Contains("ranks is 0 on rank 0 on") && Catch::Contains("1 on rank 1"));
  CHECK_THAT(texts[2], Catch::Contains("rank 3 on ") && Catch::Contains(": disk full"));
  CHECK_THAT(texts[2], Catch::Contains("all_reduce: rank 3 has left the group"));
}

TEST_CASE("threads keep the communicator's contract", "[collectives]") {
  const int ranks = GENERATE(1, 2, 3, 4, 5, 8);
  for (const auto& check : test::communicator_contract()) {
    INFO(check.name << " on " << ranks);
    CHECK(test::findings_of(ranks, check.run) == "");
  }
}

TEST_CASE("threads add in rank order", "[collectives]") {
  const std::size_t count = GENERATE(std::size_t{1}, 5000);
  const auto value = [](int rank) { return 0.1F / static_cast<float>(rank + 1); };
  float expected = value(0);
  for (int rank = 1; rank < 5; ++rank) expected += value(rank);
  std::vector<std::vector<float>> results(5);
  comm::run_ranks(5, [&](Communicator& comm) {
    std::vector<float> values(count, value(comm.rank()));
    comm.all_reduce(std::span(values));
    results[static_cast<std::size_t>(comm.rank())] = values;
  });
  for (const auto& result : results) REQUIRE(result == std::vector<float>(count, expected));
}

TEST_CASE("a rank that throws takes its peers with it", "[collectives]") {
  const int ranks = GENERATE(2, 3, 8);
  std::atomic<int> released{0};
  const auto body = [&](Communicator& comm) {
    comm.all_agree(true);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the peers are asleep by then
      throw std::runtime_error("disk full");
    }
    try {
      comm.all_agree(true);
    } catch (const comm::CommError&) {
      ++released;
      throw;
    }
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(ranks, body), "disk full");
  REQUIRE(released == ranks - 1);
}

TEST_CASE("the failure that came first in time is rethrown", "[collectives]") {
  const auto body = [](Communicator& comm) {
    if (comm.rank() == 0) {
      try {
        comm.all_agree(true);
      } catch (const comm::CommError&) {  // rank 1 has left
      }
    }
    throw std::runtime_error("rank " + std::to_string(comm.rank()));
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(2, body), "rank 1");
}

TEST_CASE("a rank that returns early releases its peers", "[collectives]") {
  const auto body = [](Communicator& comm) {
    if (comm.rank() != 2) comm.all_agree(true);
  };
  REQUIRE_THROWS_AS(comm::run_ranks(3, body), comm::CommError);
  REQUIRE_THROWS_WITH(comm::run_ranks(3, body), Catch::Contains("rank 2 has left the group"));
}

TEST_CASE("a rank may leave right after its last collective", "[collectives]") {
  for (int i = 0; i < 300; ++i) {
    comm::run_ranks(3, [](Communicator& comm) {
      std::vector<double> values(1000, 1.0);
      comm.all_reduce(std::span(values));
      comm.all_agree(true);
    });
  }
}

TEST_CASE("ranks whose collectives differ are named", "[collectives]") {
  const auto counts = [](Communicator& comm) {
    std::vector<float> values(comm.rank() == 2 ? 9 : 800);
    comm.all_reduce(std::span(values));
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(4, counts),
                      "ranks differ in a collective: rank 0 calls all_reduce (sum) of 800 f32, "
                      "rank 2 calls all_reduce (sum) of 9 f32");
  const auto kinds = [](Communicator& comm) {
    std::vector<double> values(4);
    if (comm.rank() == 0) comm.broadcast(std::span(values), 1);
    if (comm.rank() == 1) comm.all_gather(std::span(values));
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(2, kinds),
                      "ranks differ in a collective: rank 0 calls broadcast from rank 1 of 4 f64, "
                      "rank 1 calls all_gather of 4 f64");
  const auto lengths = [](Communicator& comm) {
    std::vector<std::byte> values(1200);
    const std::size_t first = comm.rank() == 0 ? 400 : 800;
    const std::span<std::byte> buffers[] = {std::span(values).first(first),
                                            std::span(values).subspan(first)};
    comm.all_gather(buffers);
  };
  REQUIRE_THROWS_WITH(comm::run_ranks(2, lengths),
                      Catch::Contains("rank 1 calls grouped all_gather of 1200 bytes (lengths "));
  const auto ops = [](Communicator& comm) {
    std::vector<double> values(1000);
    comm.all_reduce(std::span(values), comm.rank() == 0 ? comm::Op::min : comm::Op::max);
  };
  REQUIRE_THROWS_AS(comm::run_ranks(2, ops), comm::CommError);
}

TEST_CASE("a group knows its size", "[collectives]") {
  REQUIRE_THROWS_AS(comm::run_ranks(0, [](Communicator&) {}), std::invalid_argument);
  std::atomic<int> sum{0};
  comm::run_ranks(1, [&](Communicator& comm) { sum += comm.size() + comm.rank(); });
  REQUIRE(sum == 1);
}

TEST_CASE("rounds of all lengths may follow each other at once", "[collectives]") {
  std::atomic<int> wrong{0};
  comm::run_ranks(4, [&](Communicator& comm) {
    std::vector<std::uint64_t> values(3000);
    for (std::uint64_t round = 1; round <= 500; ++round) {
      const std::span<std::uint64_t> some(values.data(), 1 + round * 7 % values.size());
      std::fill(some.begin(), some.end(), round + static_cast<std::uint64_t>(comm.rank()));
      comm.all_reduce(some, comm::Op::max);
      if (some.front() != round + 3 || some.back() != round + 3) ++wrong;
    }
  });
  REQUIRE(wrong == 0);
}

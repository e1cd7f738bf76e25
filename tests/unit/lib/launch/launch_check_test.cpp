#include "lockstep/launch/launch_check.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <mutex>

#include "lockstep/base/process.hpp"
#include "lockstep/collectives/threads.hpp"

using namespace lockstep;
using launching::Finding;
using launching::Level;
using launching::RankFacts;

namespace {

/// Ranks, in order, of hosts with `local_ranks` each: h1, h2, ... All is well.
std::vector<RankFacts> healthy(int hosts, int local_ranks) {
  std::vector<RankFacts> ranks;
  for (int host = 0; host < hosts; ++host) {
    for (int local = 0; local < local_ranks; ++local) {
      RankFacts one;
      one.host = "h" + std::to_string(host + 1);
      one.node = host;
      one.build = "1.0 a";
      one.mpi = "Open MPI v4.1.4";
      one.cores = std::to_string(local);
      one.machine_cores = 8;
      one.device = "GPU (0000:0" + std::to_string(local) + ":00.0)";
      one.shm_bytes = std::uint64_t{1} << 30;
      one.clock = 1000;
      one.clock_error = 0.01;
      one.slurm_tasks = hosts * local_ranks;
      one.data = "d";
      ranks.push_back(one);
    }
  }
  return ranks;
}

/// The only problem of the ranks; with the remedy.
std::string problem_of(const std::vector<RankFacts>& ranks, Level level,
                       const std::string& backend = "shared+mpi") {
  const auto found = launching::find_problems(ranks, backend);
  REQUIRE(found.size() == 1);
  CHECK(found[0].level == level);
  CHECK_FALSE(found[0].remedy.empty());
  return found[0].text + "; " + found[0].remedy;
}

}  // namespace

TEST_CASE("nothing is found on a healthy launch", "[launch_check]") {
  CHECK(launching::find_problems(healthy(1, 1), "self").empty());
  CHECK(launching::find_problems(healthy(2, 3), "shared+mpi").empty());
  CHECK(launching::find_problems(healthy(2, 8), "mpi").empty());
  CHECK(launching::find_problems(std::array{RankFacts()}, "self").empty());
}

TEST_CASE("builds, MPI libraries and data that differ", "[launch_check]") {
  auto ranks = healthy(2, 2);
  ranks[3].build = "1.0 b";
  CHECK(problem_of(ranks, Level::error) ==
        "ranks run different builds: 1.0 a on ranks 0-2, 1.0 b on rank 3 (h2); install the same "
        "executable on all hosts");
  ranks = healthy(2, 2);
  ranks[1].mpi = ranks[2].mpi = "Open MPI v5.0.0";
  CHECK_THAT(problem_of(ranks, Level::error),
             Catch::Contains("v4.1.4 on ranks 0, 3, Open MPI v5.0.0 on ranks 1-2"));
  ranks = healthy(2, 2);
  ranks[0].data = "other";
  CHECK_THAT(problem_of(ranks, Level::error),
             Catch::Contains("different data") && Catch::Contains("other on rank 0 (h1)"));
}

TEST_CASE("data that hosts cannot read is one problem, with the hosts", "[launch_check]") {
  auto ranks = healthy(3, 2);
  for (const std::size_t rank : {2, 3, 4, 5}) {
    ranks[rank].data = "";
    ranks[rank].data_error = "/data: no such folder";
    ranks[rank].data_remedy = "mount it";
  }
  CHECK(problem_of(ranks, Level::error) == "h2, h3: /data: no such folder; mount it");
}

TEST_CASE("ranks of a host that use one GPU", "[launch_check]") {
  auto ranks = healthy(2, 3);
  ranks[5].device = ranks[3].device;
  CHECK_THAT(problem_of(ranks, Level::error),
             Catch::StartsWith("h2: ranks 3, 5 use the same GPU, GPU (0000:00:00.0)") &&
                 Catch::Contains("--gpus-per-task=1"));
}

TEST_CASE("more threads than cores that ranks may use", "[launch_check]") {
  auto ranks = healthy(2, 2);  // a rank bound to 1 core
  for (auto& one : ranks) one.threads = 4;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("h1, h2: a rank with 4 threads may use 1 of 8 cores") &&
                 Catch::Contains("slot:PE=4"));
  ranks = healthy(1, 3);  // two ranks bound to the same core
  ranks[2].cores = ranks[1].cores;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("h1: 2 ranks share 1 of 8 cores"));
  ranks = healthy(1, 9);  // all cores
  for (auto& one : ranks) {
    one.cores = "0-7";
    one.bound_cores = 8;
  }
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("h1: 9 ranks share 8 cores; start no more ranks"));
  ranks.pop_back();
  for (auto& one : ranks) one.slurm_tasks = 0;
  CHECK(launching::find_problems(ranks, "shared").empty());
  ranks[0].threads = 2;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("h1: 8 ranks with 9 threads in all share 8 cores"));
}

TEST_CASE("a small /dev/shm matters to ranks of a host that use MPI", "[launch_check]") {
  auto ranks = healthy(2, 4);
  for (std::size_t rank = 4; rank < 8; ++rank) ranks[rank].shm_bytes = (16U << 20) - 1;
  CHECK_THAT(problem_of(ranks, Level::warning, "mpi"),
             Catch::StartsWith("h2: /dev/shm has 16.8 MB free") && Catch::Contains("4 ranks"));
  CHECK(launching::find_problems(ranks, "shared+mpi").empty());
  for (std::size_t rank = 4; rank < 8; ++rank) ranks[rank].shm_bytes = 16U << 20;
  CHECK(launching::find_problems(ranks, "mpi").empty());
  ranks = healthy(4, 1);
  for (auto& one : ranks) one.shm_bytes = 0;
  CHECK(launching::find_problems(ranks, "mpi").empty());
}

TEST_CASE("clocks that differ by more than the time of the exchange", "[launch_check]") {
  auto ranks = healthy(3, 2);
  for (const std::size_t rank : {2, 3}) ranks[rank].clock += 3.25;
  for (const std::size_t rank : {4, 5}) ranks[rank].clock -= 2;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("clocks differ from that of h1: h2 (+3.2 s), h3 (-2.0 s)") &&
                 Catch::Contains("NTP"));
  for (auto& one : ranks) one.clock_error = 1;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("clocks differ from that of h1: h2 (+3.2 s);"));
  for (auto& one : ranks) one.clock_error = 1.2;
  CHECK(launching::find_problems(ranks, "mpi").empty());
}

TEST_CASE("a world that is smaller than what Slurm allotted", "[launch_check]") {
  auto ranks = healthy(1, 4);
  for (auto& one : ranks) one.slurm_tasks = 8;
  CHECK_THAT(problem_of(ranks, Level::warning),
             Catch::StartsWith("Slurm allotted 8 tasks, but the job has 4 ranks"));
}

TEST_CASE("problems are independent, and many values are cut short", "[launch_check]") {
  auto ranks = healthy(20, 1);
  for (std::size_t rank = 0; rank < 20; ++rank) ranks[rank].build = std::to_string(rank);
  for (auto& one : ranks) one.threads = 9;
  const auto found = launching::find_problems(ranks, "mpi");
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0].text, Catch::EndsWith("... (20 in all)"));
  CHECK_THAT(found[1].text, Catch::StartsWith("h1, h2, h3, h4, h5, h6, h7, h8, ... (20 in all): "));
}

TEST_CASE("facts and links of ranks that are threads", "[launch_check]") {
  for (const int size : {1, 2, 4}) {
    std::mutex mutex;  // Catch2 is not thread-safe
    comm::run_ranks(size, [&](comm::Communicator& comm) {
      RankFacts mine = launching::own_facts(comm);
      mine.data = "data of rank " + std::to_string(comm.rank());
      mine.data_error = "\xff not UTF-8";
      const auto all = launching::gather_facts(comm, mine);
      const auto links = launching::measure_links(comm);
      const std::lock_guard lock(mutex);
      REQUIRE(all.size() == static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        const RankFacts& one = all[static_cast<std::size_t>(rank)];
        CHECK(one.data == "data of rank " + std::to_string(rank));
        CHECK(one.host == host_name());
        CHECK(one.bound_cores >= 1);
        CHECK(one.machine_cores >= one.bound_cores);
        CHECK(one.cores != "unknown");
        CHECK(one.clock > 1e9);
      }
      CHECK(links.size() == static_cast<std::size_t>(size * (size - 1) / 2));
      for (const auto& link : links) {
        CHECK(link.from < link.to);
        CHECK(link.latency > 0);
        CHECK(link.bandwidth > 1e6);
      }
    });
  }
}

#include "lockstep/launch/launch.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;

namespace {

int run(std::vector<std::string> words, const RankBody& body) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  argv.reserve(words.size());
  for (auto& word : words) argv.push_back(word.data());
  return run_replicas(static_cast<int>(argv.size()), argv.data(), body);
}

/// Ranks that the body saw; 0 where the program was refused.
int ranks_under(const std::vector<std::string>& words) {
  std::atomic<int> size = 0;
  const int code = run(words, [&](comm::Communicator& comm) { size = comm.size(); });
  return code == 0 ? size.load() : (code == 2 && size == 0 ? 0 : -1);
}

}  // namespace

TEST_CASE("the words of a program choose its ranks", "[launch]") {
  CHECK(ranks_under({}) == 1);
  CHECK(ranks_under({"--ranks", "3"}) == 3);
  CHECK(ranks_under({"--ranks=2"}) == 2);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--ranks"},
                                             {"--ranks", "0"},
                                             {"--ranks", "two"},
                                             {"--ranks", "2", "more"},
                                             {"--ranks", "1025"},
                                             {"--ranks="},
                                             {"--rank", "2"},
                                             {"2"}}) {
    CAPTURE(words);
    CHECK(ranks_under(words) == 0);
  }
}

TEST_CASE("a program's own words reach it, but for misspelt ones of the library", "[launch]") {
  const auto words_of = [](std::vector<std::string> words) {
    words.insert(words.begin(), "program");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    std::string given;
    const int code =
        run_replicas(static_cast<int>(argv.size()), argv.data(),
                     [&](comm::Communicator& comm, const std::vector<std::string>& arguments) {
                       if (comm.rank() > 0) return;
                       given = std::to_string(comm.size());
                       for (const std::string& word : arguments) given += " " + word;
                     });
    return code == 0 ? given : std::to_string(code);
  };
  CHECK(words_of({"--ranks", "2", "--range", "5", "file"}) == "2 --range 5 file");
  CHECK(words_of({"-12", "--ranks=2", "-0.5", "-lr", ""}) == "2 -12 -0.5 -lr ");
  for (const char* misspelt : {"--rank", "--Rank", "-ranks", "--rnaks", "--rank=2", "--rankss"}) {
    CAPTURE(misspelt);
    CHECK(words_of({misspelt, "2"}) == "2");
  }
  CHECK(words_of({"--ranks", "2", "--", "--rank", "8"}) == "2 --rank 8");
}

TEST_CASE("what a rank throws decides the exit code", "[launch]") {
  const auto code_of = [](auto error) {
    return run_replicas(2, [&](comm::Communicator& comm) {
      if (comm.rank() == 1) throw error;
      comm.all_agree(true);  // released by its peer's end
    });
  };
  CHECK(code_of(DataError("a file")) == 65);
  CHECK(code_of(OutputError("a disk")) == 74);
  CHECK(code_of(std::runtime_error("anything")) == 1);
  CHECK(code_of(std::bad_alloc()) == 1);
  CHECK(code_of(42) == 1);
  CHECK(run_replicas(3, [](comm::Communicator&) {
          throw comm::AgreedError(ExitCode::diverged, "all alike");
        }) == 76);
  CHECK(run_replicas(3, [](comm::Communicator&) {}) == 0);
}

TEST_CASE("only a launcher's ranks belong to an MPI world", "[launch]") {
  CHECK_FALSE(launching::is_rank(std::nullopt));
  CHECK_FALSE(launching::is_rank(comm::Launch{"sbatch", 4, 0}));
  CHECK_FALSE(launching::is_rank(comm::Launch{"srun", 1, 0}));
  CHECK(launching::is_rank(comm::Launch{"srun", 1, 0, true}));
  CHECK(launching::is_rank(comm::Launch{"srun", 2, 0}));  // and is refused there: no PMIx
  CHECK(launching::is_rank(comm::Launch{"mpirun", 1, 0, true}));
}

TEST_CASE("the shell of a batch script is told how to start ranks", "[launch]") {
  CHECK_NOTHROW(launching::require_no_batch_shell(std::nullopt, "program"));
  CHECK_NOTHROW(launching::require_no_batch_shell(comm::Launch{"mpirun", 4, 0, true}, "program"));
  CHECK_THROWS_WITH(launching::require_no_batch_shell(comm::Launch{"sbatch", 4, 0}, "program"),
                    Catch::Contains("4 tasks") && Catch::Contains("srun --mpi=pmix -K program"));
}

TEST_CASE("the first exit code of a job is recorded, in the room that was reserved", "[launch]") {
  const test::TemporaryFolder folder;
  const auto& flight = folder.path();
  const auto file = flight / launching::exit_code_name;
  CHECK(launching::recorded_exit_code(flight) == std::nullopt);
  launching::reserve_exit_code(flight);
  CHECK(launching::recorded_exit_code(flight) == std::nullopt);
  const auto size = std::filesystem::file_size(file);
  launching::record_exit_code(flight, 86);
  launching::record_exit_code(flight, 75);
  CHECK(launching::recorded_exit_code(flight) == 86);
  CHECK(std::filesystem::file_size(file) == size);
  launching::reserve_exit_code(flight);
  CHECK(launching::recorded_exit_code(flight) == std::nullopt);
  std::filesystem::remove(file);
  launching::record_exit_code(flight, 2);
  CHECK(launching::recorded_exit_code(flight) == 2);
}

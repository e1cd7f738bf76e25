#include "lockstep/collectives/launcher.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "lockstep/base/errors.hpp"

using namespace lockstep;

namespace {

using Environment = std::map<std::string, std::string>;

std::optional<comm::Launch> detect(const Environment& environment) {
  return comm::detect_launcher([&](const char* variable) -> const char* {
    const auto found = environment.find(variable);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

void require_launch(const Environment& environment, const std::string& launcher, int ranks,
                    int rank) {
  const auto found = detect(environment);
  REQUIRE(found.has_value());
  CHECK(found->launcher == launcher);
  CHECK(found->ranks == ranks);
  CHECK(found->rank == rank);
}

comm::Launch promise(const std::string& launcher, int ranks, int rank) {
  return {.launcher = launcher, .ranks = ranks, .rank = rank};
}

const Environment batch = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}};

Environment with(Environment base, const Environment& more) {
  base.insert(more.begin(), more.end());
  return base;
}

}  // namespace

TEST_CASE("launchers are told by the environment", "[collectives]") {
  CHECK_FALSE(detect({}).has_value());
  require_launch({{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}}, "mpirun", 3, 2);
  require_launch({{"PMI_SIZE", "5"}, {"PMI_RANK", "4"}}, "a PMI launcher", 5, 4);
  require_launch({{"PMIX_RANK", "4"}}, "a PMI launcher", 0, 4);
}

TEST_CASE("a Slurm step, a batch script and mpirun inside them", "[collectives]") {
  const Environment step = {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  require_launch(batch, "sbatch", 4, 0);
  require_launch(with(batch, step), "srun", 2, 0);
  require_launch(with(batch, {{"SLURM_STEP_ID", "0"}}), "srun", 4, 0);
  require_launch(with(with(batch, step), {{"PMIX_RANK", "0"}}), "srun", 2, 0);
  const Environment mpirun = {{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}};
  require_launch(with(with(batch, step), mpirun), "mpirun", 8, 5);
  CHECK_FALSE(detect({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "1"}}).has_value());
}

TEST_CASE("an srun that goes on without lost tasks", "[collectives]") {
  const auto recovers = [](const Environment& environment) {
    return comm::srun_recovers([&](const char* variable) -> const char* {
      const auto found = environment.find(variable);
      return found == environment.end() ? nullptr : found->second.c_str();
    });
  };
  const Environment no_kill = {{"SLURM_NO_KILL", "set"}};
  const Environment options = with(no_kill, {{"SLURM_KILL_BAD_EXIT", "0"}});
  const Environment step = with(batch, {{"SLURM_STEP_ID", "0"}});
  CHECK(recovers(with(step, options)));
  CHECK_FALSE(recovers(step));
  CHECK_FALSE(recovers(with(step, no_kill)));
  CHECK_FALSE(recovers(with(step, {{"SLURM_NO_KILL", "off"}, {"SLURM_KILL_BAD_EXIT", "0"}})));
  CHECK_FALSE(recovers(with(with(step, no_kill), {{"SLURM_KILL_BAD_EXIT", "1"}})));
  CHECK_FALSE(recovers(with(batch, options)));
  const Environment mpirun = {{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}};
  CHECK_FALSE(recovers(with(with(step, options), mpirun)));
}

TEST_CASE("what is not a number promises nothing", "[collectives]") {
  const std::string bad = GENERATE("", "two", "2x", "-1", "99999999999");
  CHECK_FALSE(detect({{"PMI_SIZE", bad}, {"PMI_RANK", "0"}}).has_value());
  CHECK_FALSE(detect({{"PMI_SIZE", "0"}, {"PMI_RANK", "0"}}).has_value());
}

TEST_CASE("N worlds of one are refused where one of N was promised", "[collectives]") {
  CHECK_NOTHROW(comm::require_promised_world(promise("srun", 4, 1), 4));
  CHECK_NOTHROW(comm::require_promised_world(promise("a PMI launcher", 0, 3), 4));
  CHECK_THROWS_AS(comm::require_promised_world(promise("a PMI launcher", 0, 3), 1), ConfigError);
  CHECK_THROWS_WITH(comm::require_promised_world(promise("srun", 4, 1), 1),
                    Catch::Contains("srun started 4 ranks") && Catch::Contains("world of 1") &&
                        Catch::Contains("srun --mpi=pmix -K"));
  CHECK_THROWS_WITH(comm::require_promised_world(promise("mpirun", 2, 1), 1, "Open MPI v4.1.4"),
                    Catch::Contains("the mpirun of Open MPI v4.1.4"));
}

TEST_CASE("Slurm without PMIx is refused before MPI starts", "[collectives]") {
  CHECK_THROWS_WITH(comm::require_pmix(*detect(batch)), Catch::Contains("sbatch allotted 4 ranks"));
  const Environment step = with(batch, {{"SLURM_STEP_ID", "0"}});
  CHECK_THROWS_AS(comm::require_pmix(*detect(step)), ConfigError);
  CHECK_NOTHROW(comm::require_pmix(*detect(with(step, {{"PMIX_NAMESPACE", "slurm.pmix.1.0"}}))));
  CHECK_NOTHROW(comm::require_pmix(promise("srun", 1, 0)));
  CHECK_NOTHROW(comm::require_pmix(promise("mpirun", 2, 0)));
}

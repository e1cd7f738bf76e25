#include "lockstep/collectives/launcher.hpp"

#include <array>
#include <limits>
#include <string_view>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::comm {
namespace {

std::optional<int> number(const Lookup& lookup, const char* variable) {
  const char* const found = lookup(variable);
  const auto value = found == nullptr ? std::nullopt : whole_number(found);
  if (!value || *value > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*value);
}

std::optional<Launch> launch(const char* launcher, std::optional<int> ranks,
                             std::optional<int> rank) {
  if (!ranks || !rank || *ranks < 1) return std::nullopt;
  return Launch{.launcher = launcher, .ranks = *ranks, .rank = *rank};
}

std::optional<Launch> slurm(const Lookup& lookup) {
  const auto allotted = number(lookup, "SLURM_NTASKS");
  if (lookup("SLURM_STEP_ID") != nullptr) {
    const auto tasks = number(lookup, "SLURM_STEP_NUM_TASKS");
    return launch("srun", tasks ? tasks : allotted, number(lookup, "SLURM_PROCID"));
  }
  if (lookup("SLURM_JOB_ID") != nullptr && allotted.value_or(0) > 1) {
    return Launch{.launcher = "sbatch", .ranks = *allotted, .rank = 0};
  }
  return std::nullopt;
}

bool is_slurm(const Launch& launch) {
  return launch.launcher == "srun" || launch.launcher == "sbatch";
}

std::string describe(const Launch& launch) {
  const std::string ranks = launch.ranks > 0 ? std::to_string(launch.ranks)
                                             : "at least " + std::to_string(launch.rank + 1);
  return launch.launcher + (launch.launcher == "sbatch" ? " allotted " : " started ") + ranks +
         " ranks";
}

std::string remedy(const Launch& launch, const std::string& library) {
  if (is_slurm(launch)) {
    return "start it with `srun --mpi=pmix -K ...` (`srun --mpi=list` shows whether Slurm has it)";
  }
  const std::string mpi = library.empty() ? "the MPI library" : library + ", the MPI library";
  return "use the mpirun of " + mpi + " that this program was built with";
}

std::optional<Launch> first_found(const Lookup& lookup) {
  const auto from = [&](const char* launcher, const char* ranks, const char* rank) {
    return launch(launcher, number(lookup, ranks), number(lookup, rank));
  };
  if (auto found = from("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")) return found;
  const auto in_slurm = slurm(lookup);
  if (in_slurm && in_slurm->launcher == "srun") return in_slurm;
  if (auto found = from("a PMI launcher", "PMI_SIZE", "PMI_RANK")) return found;
  if (const auto rank = number(lookup, "PMIX_RANK")) {
    return Launch{.launcher = "a PMI launcher", .ranks = 0, .rank = *rank};
  }
  return in_slurm;
}

}  // namespace

std::optional<Launch> detect_launcher(const Lookup& lookup) {
  auto found = first_found(lookup);
  if (found) found->pmix = lookup("PMIX_NAMESPACE") != nullptr;
  return found;
}

bool is_mpirun(std::string_view program) noexcept {
  constexpr std::string_view of_debian = ".openmpi";  // mpirun.openmpi
  if (program.ends_with(of_debian)) program.remove_suffix(of_debian.size());
  return program == "mpirun" || program == "mpiexec" || program == "orterun";
}

bool is_on(std::string_view value) noexcept {
  return contains(std::array<std::string_view, 5>{"1", "t", "true", "enabled", "yes"}, value);
}

bool srun_recovers(const Lookup& lookup) {
  const auto found = first_found(lookup);
  if (!found || found->launcher != "srun") return false;
  const char* const no_kill = lookup("SLURM_NO_KILL");
  return no_kill != nullptr && std::string_view(no_kill) == "set" &&
         number(lookup, "SLURM_KILL_BAD_EXIT") == 0;
}

void require_pmix(const Launch& launch) {
  if (!is_slurm(launch) || launch.pmix || launch.ranks == 1) return;
  throw ConfigError(describe(launch) + " without PMIx, so they cannot find each other",
                    remedy(launch, ""));
}

void require_promised_world(const Launch& launch, int world_size, const std::string& library) {
  const bool kept = launch.ranks > 0 ? launch.ranks == world_size : launch.rank < world_size;
  if (kept) return;
  throw ConfigError(describe(launch) + ", but this process is in a world of " +
                        std::to_string(world_size) + ": each world would train alone",
                    remedy(launch, library));
}

}  // namespace lockstep::comm

// Detects the launcher (mpirun, srun, a batch script) from the environment, before MPI starts.
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::comm {

/// How this process was launched: as rank `rank` of `ranks`.
struct Launch {
  std::string launcher;  ///< "mpirun", "srun", "sbatch" or "a PMI launcher"
  int ranks;             ///< number of processes; 0 if unknown
  int rank;              ///< this process's rank
  bool pmix = false;     ///< the launcher provides PMIx, which Open MPI needs to connect ranks
};

/// Reads one environment variable; null if it is not set.
using Lookup = std::function<const char*(const char* variable)>;

/// The environment of this process.
inline const char* of_environment(const char* variable) { return std::getenv(variable); }

/// The launcher of this process, from its environment; empty if there is none. Local.
///
/// Checked in this order, because mpirun runs inside Slurm jobs and srun inside batch scripts:
///   mpirun          OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK
///   srun            SLURM_STEP_ID with SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_PROCID
///   a PMI launcher  PMI_SIZE, PMI_RANK; or PMIX_RANK alone, which leaves `ranks` 0
///   sbatch          SLURM_JOB_ID without a step and SLURM_NTASKS above 1: the shell of a batch
///                   script or of salloc: one process in an allocation for several
/// Variables that are not integers count as not set.
std::optional<Launch> detect_launcher(const Lookup& lookup = of_environment);

/// True for the names of Open MPI's launcher as a program: mpirun, mpiexec, orterun, with
/// .openmpi behind it on Debian. Local.
bool is_mpirun(std::string_view program) noexcept;

/// True for a value that Open MPI takes as true of a parameter: 1, t, true, enabled, yes. Local.
bool is_on(std::string_view value) noexcept;

/// True in an srun step that goes on when tasks or nodes are lost: the variables SLURM_NO_KILL and
/// SLURM_KILL_BAD_EXIT=0 are set. Tasks do not see the same options of srun's command line. Local.
///
/// Slurm 22.05's PMIx nevertheless ends the step when a task is lost between MPI_Init and
/// MPI_Finalize.
bool srun_recovers(const Lookup& lookup = of_environment);

/// Throws for a Slurm launch of several ranks without PMIx, before MPI starts. Local; the same on
/// all ranks.
///
/// Open MPI would terminate such a process in MPI_Init with exit code 1. A step of one rank (srun
/// --pty bash) has the same problem: use SelfCommunicator there.
/// Errors   ConfigError (exit code 2) with the command to use.
void require_pmix(const Launch& launch);

/// Throws if the MPI world size differs from the launch: the mpirun of another MPI library starts N
/// worlds of one rank, each of which would train separately. Local; the same on all ranks.
///
/// `library` is this program's MPI (mpi_version()), for the message; may be empty.
/// Errors   ConfigError (exit code 2) with both numbers, the launcher and the remedy.
void require_promised_world(const Launch& launch, int world_size, const std::string& library = "");

}  // namespace lockstep::comm

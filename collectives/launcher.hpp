// What the environment says about the launch, before MPI is started.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep::comm {

/// A launcher's promise: this process is rank `rank` of `ranks`.
struct Launch {
  std::string launcher;  ///< "mpirun", "srun", "sbatch" or "a PMI launcher"
  int ranks;             ///< processes of the launch; 0 where the launcher does not say
  int rank;              ///< this process among them
  bool pmix = false;     ///< the launcher offers PMIx, by which Open MPI's ranks find each other
};

/// Reads one environment variable; null where it is not set.
using Lookup = std::function<const char*(const char* variable)>;

/// Who started this process, or nothing where nobody did. Local; reads the environment only.
///
/// In this order, since mpirun works inside a Slurm job and srun inside a batch script:
///   mpirun          OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_RANK
///   srun            SLURM_STEP_ID with SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_PROCID
///   a PMI launcher  PMI_SIZE, PMI_RANK; or PMIX_RANK alone, which leaves `ranks` 0
///   sbatch          SLURM_JOB_ID without a step and SLURM_NTASKS above 1: the shell of a batch
///                   script or of salloc, where one process stands for an allotment of many, so
///                   that a caller about to train may refuse
/// Variables that are not whole numbers count as not set.
std::optional<Launch> detect_launcher(const Lookup& lookup);

/// detect_launcher over this process's environment.
std::optional<Launch> detect_launcher();

/// Refuses, before MPI starts, a Slurm launch of several ranks that does not offer PMIx. Local; all
/// ranks see the same.
///
/// Open MPI ends such a process inside MPI_Init, with advice on how to build it and exit code 1.
/// A step of one rank (srun --pty bash) has the same trouble: use SelfCommunicator there.
/// Errors   ConfigError (exit code 2) with the command to use.
void require_pmix(const Launch& launch);

/// Refuses a world that is smaller or larger than the one promised, as when the mpirun of
/// another MPI starts N worlds of one that would each train alone. Local; all ranks see the same.
///
/// `library` is this program's own MPI (mpi_version()), for the message; may be empty.
/// Errors   ConfigError (exit code 2) that names both numbers, the launcher and the remedy.
void require_promised_world(const Launch& launch, int world_size, const std::string& library = "");

}  // namespace lockstep::comm

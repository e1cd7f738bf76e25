// Checks of a launch: facts about every rank and its host, problems in them, and the speed of the
// network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/launch/messages.hpp"

namespace lockstep::launching {

/// Facts about a rank and its host. Empty texts are not compared.
struct RankFacts {
  std::string host;
  int node = 0;                 ///< see comm::Place
  std::string build;            ///< hash of the executable
  std::string mpi;              ///< comm::mpi_version()
  std::string cores;            ///< the cores that this rank may run on: "0-3,8"
  int bound_cores = 1;          ///< their number
  int machine_cores = 1;        ///< cores of the host
  int threads = 1;              ///< of this rank's products
  std::string device;           ///< name and bus id of the GPU; empty: none
  std::uint64_t shm_bytes = 0;  ///< free in /dev/shm
  double clock = 0;             ///< seconds since 1970; all ranks read it at the same time
  double clock_error = 0;       ///< maximum difference between these times, in seconds
  int slurm_tasks = 0;          ///< tasks that Slurm allotted; 0: unknown, or started by srun
  std::string data;             ///< hash of the data's identity; empty: not opened
  std::string data_error;       ///< the reason why the data could not be opened
  std::string data_remedy;
};

/// The facts about this rank, without build, device and data; one thread.
/// Ranks    collective: reads the clocks behind a barrier.
RankFacts own_facts(comm::Communicator& comm);

/// The facts about all ranks, in their order. Collective.
std::vector<RankFacts> gather_facts(comm::Communicator& comm, const RankFacts& mine);

/// A problem of the launch. error: training would be refused; warning: it runs, but slowly, or
/// differently than intended.
struct Finding {
  Level level;
  std::string text;
  std::string remedy;
  std::vector<std::string> hosts = {};  ///< whose problem it is; the text names them
};

/// All problems in `ranks`, which communicate over `backend` (Communicator::backend()). Pure.
std::vector<Finding> find_problems(std::span<const RankFacts> ranks, const std::string& backend);

/// Gathers own_facts() and prints problems as warnings, on rank 0. For every start: it takes less
/// than a millisecond. Collective.
void warn_of_problems(comm::Communicator& comm);

/// The speed of messages between two ranks, in both directions at the same time.
struct Link {
  int from = 0;
  int to = 0;
  double latency = 0;    ///< seconds for 8 bytes
  double bandwidth = 0;  ///< bytes per second and direction, of 4 MB
};

/// Measures one link after the other: between the first ranks of hosts, or between the ranks of a
/// single host. Up to 8 of these ranks are measured pairwise, more of them in a ring.
/// Ranks    collective; every rank returns all links.
std::vector<Link> measure_links(comm::Communicator& comm);

}  // namespace lockstep::launching

// A program's main: the same body on every rank, however the program was started.
#pragma once

#include <cstdint>

#include "lib/launch/world.hpp"

namespace lockstep {

/// Runs `body` on every rank and returns what main() shall return.
///
///   int main(int argc, char** argv) { return lockstep::run_replicas(argc, argv, program); }
///
/// Under mpirun or srun the ranks are the processes that were started; those of one machine share
/// memory. Elsewhere they are `threads` threads of this process, each with a communicator of its
/// own; `body` is shared by them.
/// Errors   never throws. Prints "PROGRAM: error: ..." once: what all ranks share by rank 0, any
///          other error by the rank that met it, with its number; the whole job then ends. Returns
///          the exit code of the error (ExitCode), or output (74) where stdout cannot be written.
/// Ranks    called once, by main(), before anything else touches MPI.
int run_replicas(std::uint64_t threads, const RankBody& body) noexcept;

/// The same for programs that take `--ranks N`, threads, and no other words. One rank unless given.
///
/// Errors   other words, and `--ranks` under a launcher, which says how many there are, end with
///          code 2.
int run_replicas(int argc, char** argv, const RankBody& body) noexcept;

}  // namespace lockstep

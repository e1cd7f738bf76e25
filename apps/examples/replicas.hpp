// Replicas for an example: the ranks of a launcher, or threads where nobody launched any.
#pragma once

#include <cstdint>
#include <exception>

#include "apps/failure.hpp"
#include "apps/world.hpp"

namespace lockstep::apps {

/// Runs `body` on every rank of the job, or on `threads` threads. Returns the exit code.
inline int run_replicas(std::uint64_t threads, const RankBody& body) {
  try {
    const auto launch = comm::detect_launcher();
    if (launch) return run_over_mpi(launch, [&](comm::MpiCommunicator& comm) { body(comm); });
    run_over_threads(threads, body);
    return 0;
  } catch (const std::exception& error) {
    print_error(what_of(error));
    return exit_code(error);
  }
}

}  // namespace lockstep::apps

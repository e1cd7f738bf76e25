// The parts of `bench`: what one rank of `comm` measures. Rank 0 prints.
#pragma once

#include "apps/cli.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::apps {

/// `bench data`: reads the training set as `train` would.
Syntax bench_data_syntax();
void bench_data(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm);

/// `bench collectives`: the time of collectives, by size, operation and backend, beside MPI's own.
Syntax bench_collectives_syntax();
void bench_collectives(const Arguments& arguments, const RunConfig& config,
                       comm::Communicator& comm);

/// `bench step`: the phases of a training step, beside what these cores and caches can do.
Syntax bench_step_syntax();
void bench_step(const Arguments& arguments, const RunConfig& config, comm::Communicator& comm);

}  // namespace lockstep::apps

// A subcommand on all ranks of this job: how it was launched, and what the ranks agree on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/arguments.hpp"
#include "collectives/communicator.hpp"
#include "lib/train/config.hpp"

namespace lockstep::apps {

/// One rank's part of a subcommand, with the configuration that all ranks agreed on.
using RankCommand =
    std::function<void(const Arguments&, const train::RunConfig&, comm::Communicator&)>;

/// Runs `command` on all ranks of this job: under a launcher over MPI, else as threads of this
/// process. `words` follow the subcommand's name.
///
/// The configuration is the defaults, then the run file as rank 0 reads it (where the operand is
/// one), then each rank's flags.
/// Returns the exit code. Errors are printed here where other ranks might be waiting, which then
/// end too; they come out as exceptions where this process is alone. A bad flag or run file, a
/// launch that contradicts the settings, and ranks that were started with different flags, files
/// or builds (names the odd rank and the key) all end with code 2.
int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command);

}  // namespace lockstep::apps

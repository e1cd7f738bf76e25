// How ranks find out together, before any work, that they cannot go on, and say so as one.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::comm {

/// An error that all ranks throw in the same place, with the same code and text.
///
/// So nobody waits in a collective: rank 0 alone prints it, and every rank may finalize MPI and
/// return the code. No other error promises that.
struct AgreedError : Error {
  using Error::Error;
};

/// Runs `local_work` on every rank; if it throws on any, every rank throws the same AgreedError.
///
/// For what each rank finds out alone: opening its files, reading its configuration, claiming its
/// device. `local_work` itself must not communicate.
///
/// Code     that of the lowest failing rank; ExitCode::internal for what is not an Error.
/// Text     that rank's. Unless all ranks failed with the same text it begins "rank R on HOST: "
///          and, where several failed, says how many of how many.
/// Ranks    collective; one all_agree where nothing fails.
void together(Communicator& comm, const std::function<void()>& local_work);

/// All ranks' texts in rank order, the same on every rank. Collective.
///
/// Texts may differ in length, be empty, and hold any bytes. Moves size() times the longest.
std::vector<std::string> gather_text(Communicator& comm, const std::string& mine);

/// The text of `root`, on every rank; what the others pass is ignored. Collective.
std::string broadcast_text(Communicator& comm, std::string text, int root = 0);

/// A setting and its value, both as a person would write them.
using KeyValues = std::vector<std::pair<std::string, std::string>>;

/// Throws the same AgreedError, with `code`, on every rank unless all pass the same pairs.
///
/// `what` names the whole, as "the configuration". The message names the keys that differ, the
/// odd ranks with their hosts and value, and the value of the majority; where no value has a
/// majority, all groups of ranks. The order of the pairs does not matter; each key stands once. A
/// key that a rank lacks counts as different.
/// `remedy` ends the message.
/// Ranks    collective; where all is equal it costs one all_gather of 8 bytes a rank.
void require_equal(Communicator& comm, const std::string& what, const KeyValues& mine,
                   const std::string& remedy = "", ExitCode code = ExitCode::usage);

}  // namespace lockstep::comm

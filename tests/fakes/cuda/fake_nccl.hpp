// An NCCL without devices, which moves data between ranks that are threads, and what tests ask of
// it.
//
// A call, or a group of them, is one piece of work in its stream: it ends once the peers' calls
// have come to the front of theirs. Collectives of all ranks must be the same; what is sent must
// have the receiver's count and type. Where they differ every rank gets an asynchronous error.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

namespace fake_nccl {

/// The next call of the function named so fails: `rank`'s, or any rank's for -1.
void fail(const std::string& function, ncclResult_t result, int rank = -1);

/// From now on the communicators of `rank` report this, as a broken link would make them.
void break_link(int rank, ncclResult_t result);

/// The calls of `rank` since the last call of this function, in order: "ncclSend 5 f32 to 2". An
/// empty group leaves none.
std::vector<std::string> take_calls(int rank);

/// From now on no ncclCommAbort returns, as in NCCL while a recorded graph lives; until false is
/// said. What was running on the device ends nevertheless.
void hold_aborts(bool hold);

/// From now on `rank` does not come in ncclCommInitRank, until false is said.
void hold_start(int rank, bool hold);

/// Lets those that wait for peers in ncclCommInitRank go, with ncclSystemError.
void release_initialising();

/// Communicators that were neither destroyed nor aborted, and calls that are in progress.
std::size_t live_communicators();
std::size_t calls_in_progress();

/// Of all so far.
std::size_t destroyed();
std::size_t aborted();

}  // namespace fake_nccl

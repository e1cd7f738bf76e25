// Ranks as threads of one process: a distributed program without a launcher.
#pragma once

#include <functional>

#include "collectives/communicator.hpp"

namespace lockstep::comm {
/// Runs `body` once per rank, each rank a thread of this process, and waits for all.
///
/// Ranks    rank r's communicator lives as long as its call of `body`; backend() is "threads", and
///          all ranks stand on one node.
/// Sums     all_reduce combines in rank order, so its bits depend on `size` alone.
/// Errors   rethrows the first exception in time, once every rank has ended. When a rank throws or
///          returns, the collectives in which its peers wait for it, and all later ones, throw
///          CommError. Ranks whose collectives differ all throw the same CommError (direct.hpp).
///          Throws std::invalid_argument for size < 1.
/// Speed    2 ranks on 2 cores: 0.3 us for up to 256 bytes (4 us on a busy machine; 8 ranks on
///          2 cores: 8 us); longer vectors are reduced by all ranks at once, a part each.
void run_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace lockstep::comm

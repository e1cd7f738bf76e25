// What each rank found, so that assertions stay on the test's own thread.
#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/collectives/threads.hpp"

namespace lockstep::test {

/// `body(comm)` of every rank, as threads of this process, by rank.
template <class Body>
auto per_rank(int ranks, Body body) {
  using Result = std::decay_t<std::invoke_result_t<Body, comm::Communicator&>>;
  static_assert(!std::is_same_v<Result, bool>, "bits of std::vector<bool> share their bytes");
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    results[static_cast<std::size_t>(comm.rank())] = body(comm);
  });
  return results;
}

/// The same of bodies whose result is the same on every rank: that result, or an exception.
template <class Body>
std::decay_t<std::invoke_result_t<Body, comm::Communicator&>> on_all(int ranks, Body body) {
  auto results = per_rank(ranks, body);
  for (const auto& result : results) {
    if (!(result == results.front())) throw std::logic_error("ranks have different results");
  }
  return std::move(results.front());
}

}  // namespace lockstep::test

// The error that ranks agree on, as a text.
#pragma once

#include <string>

#include "lockstep/collectives/agreement.hpp"
#include "tests/support/per_rank.hpp"

namespace lockstep::test {

/// "2: text" of the AgreedError that `body()` throws here; "nothing" without one.
template <class Body>
std::string refusal_of(Body body) {
  try {
    body();
  } catch (const comm::AgreedError& error) {
    return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  }
  return "nothing";
}

/// The same of `body(comm)` on every rank. Throws std::logic_error where their texts differ.
template <class Body>
std::string refusal(int ranks, Body body) {
  return on_all(ranks, [&](comm::Communicator& comm) { return refusal_of([&] { body(comm); }); });
}

}  // namespace lockstep::test

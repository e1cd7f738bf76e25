// What all ranks say when they refuse together.
#pragma once

#include <string>

#include "lockstep/collectives/agreement.hpp"
#include "tests/support/per_rank.hpp"

namespace lockstep::test {

/// "2: text" of the AgreedError that `body(comm)` throws on every rank; "nothing" without one.
/// Throws std::logic_error where ranks say different things.
template <class Body>
std::string refusal(int ranks, Body body) {
  return on_all(ranks, [&](comm::Communicator& comm) -> std::string {
    try {
      body(comm);
    } catch (const comm::AgreedError& error) {
      return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    return "nothing";
  });
}

}  // namespace lockstep::test

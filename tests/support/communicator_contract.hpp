// What every backend must do, written once: thread tests and MPI tests run the same checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/threads.hpp"

namespace lockstep::test {

/// What one rank found wrong. Catch2's assertions are not thread-safe, so ranks collect and the
/// test asserts, on its own thread, that nothing was found.
class Findings {
 public:
  void expect(bool ok, const std::string& what) {
    if (!ok) list_.push_back(what);
  }

  /// Runs `body`, which must throw an exception of type E; returns its text.
  template <class E>
  std::string expect_throw(const std::string& what, const std::function<void()>& body) {
    try {
      body();
    } catch (const E& error) {
      return error.what();
    } catch (const std::exception& error) {
      list_.push_back(what + ": threw something else: " + error.what());
      return "";
    }
    list_.push_back(what + ": did not throw");
    return "";
  }

  /// All findings, one a line; empty where all is well.
  std::string text() const {
    std::string all;
    for (const auto& one : list_) all += one + '\n';
    return all;
  }

 private:
  std::vector<std::string> list_;
};

/// Runs `body(wire, findings)` on `ranks` threads; returns what all ranks found wrong.
inline std::string findings_of(int ranks,
                               const std::function<void(comm::Communicator&, Findings&)>& body) {
  std::vector<Findings> findings(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Communicator& wire) {
    body(wire, findings[static_cast<std::size_t>(wire.rank())]);
  });
  std::string all;
  for (const auto& rank : findings) all += rank.text();
  return all;
}

struct ContractCheck {
  const char* name;
  void (*run)(comm::Communicator& comm, Findings& findings);
};

/// All checks, for any number of ranks. Each is collective and leaves `comm` usable.
const std::vector<ContractCheck>& communicator_contract();

}  // namespace lockstep::test

// The world of one: what a process without a launcher uses, so that callers never ask for MPI.
#pragma once

#include "collectives/communicator.hpp"

namespace lockstep::comm {

/// A group of one rank. Every collective is complete before it begins.
///
/// Owns nothing; any number of them may exist, in any thread.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator();

  const char* backend() const noexcept override { return "self"; }
  const Place& place() const noexcept override { return place_; }

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;
  std::unique_ptr<Communicator> do_split(const Subgroup& part) override;

  Place place_;
};

}  // namespace lockstep::comm

#include "lockstep/distribute/strategy.hpp"

namespace lockstep {
namespace {

// Throws ConfigError unless replica r has devices of rank r only.
void require_own_devices(const DeviceAssignment& assignment, int ranks) {
  if (assignment.num_replicas() != ranks) {
    throw ConfigError("a device assignment of " + std::to_string(assignment.num_replicas()) +
                          " replicas for " + std::to_string(ranks) + " ranks",
                      "each rank is one replica: assign as many replicas as there are ranks");
  }
  for (int replica = 0; replica < ranks; ++replica) {
    for (int id = 0; id < assignment.num_logical_devices(); ++id) {
      if (assignment.rank(replica, id) == replica) continue;
      throw ConfigError("logical device " + std::to_string(id) + " of replica " +
                            std::to_string(replica) + " belongs to rank " +
                            std::to_string(assignment.rank(replica, id)),
                        "each rank is one replica: give a computation shape within one rank");
    }
  }
}

}  // namespace

std::uint64_t InputContext::per_replica_batch_size(std::uint64_t global) const {
  if (global % num_replicas_in_sync == 0) return global / num_replicas_in_sync;
  throw ConfigError("a global batch of " + std::to_string(global) + " does not divide by " +
                        std::to_string(num_replicas_in_sync) + " replicas in sync",
                    "give a multiple of the number of replicas, or use distribute_dataset");
}

Strategy::Strategy(comm::Communicator& comm, const std::string& device,
                   std::optional<DeviceAssignment> assignment)
    : comm_(comm), cluster_(resolve_cluster(comm, device)), assignment_(std::move(assignment)) {
  comm::require_equal(comm, "the device assignment",
                      {{"it", assignment_ ? to_text(*assignment_) : "none"}},
                      "build it from one topology and shape on every rank");
  comm::together(comm, [&] {
    if (assignment_) require_own_devices(*assignment_, comm.size());
  });
}

void Strategy::require_logical_device(int id) const {
  if (assignment_) return assignment_->require_logical_device(id);
  if (id == 0) return;
  throw ConfigError("no logical device " + std::to_string(id) +
                        ": without a device assignment each replica has 1 partition",
                    "give the strategy a device assignment");
}

InputContext Strategy::input_context() const noexcept {
  const auto ranks = static_cast<std::uint64_t>(comm_.size());
  return {ranks, static_cast<std::uint64_t>(comm_.rank()), ranks};
}

std::string Strategy::describe_texts(const std::string& mine) const {
  std::string text;
  int replica = 0;
  for (const auto& theirs : comm::gather_text(comm_, mine)) {
    text += (replica == 0 ? "" : ", ") + std::to_string(replica) + ": " + theirs;
    ++replica;
  }
  return "{" + text + "}";
}

}  // namespace lockstep

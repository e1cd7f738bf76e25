#include "lib/distribute/strategy.hpp"

namespace lockstep {

std::uint64_t InputContext::per_replica_batch_size(std::uint64_t global) const {
  if (global % num_replicas_in_sync == 0) return global / num_replicas_in_sync;
  throw ConfigError("a global batch of " + std::to_string(global) + " does not divide by " +
                        std::to_string(num_replicas_in_sync) + " replicas in sync",
                    "give a multiple of the number of replicas, or use distribute_dataset");
}

Strategy::Strategy(comm::Communicator& comm, const std::string& device)
    : comm_(comm), cluster_(resolve_cluster(comm, device)) {}

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

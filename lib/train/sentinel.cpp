#include "lib/train/sentinel.hpp"

#include <algorithm>
#include <stdexcept>

#include "collectives/agreement.hpp"
#include "lib/base/hash.hpp"

namespace lockstep::train {
namespace {

std::uint64_t hash_of_weights(std::span<const float> weights) {
  return hash_of(std::as_bytes(weights));
}

}  // namespace

Sentinel::Sentinel(const nn::Network<float>& network, comm::Communicator& comm, std::uint64_t parts)
    : network_(network),
      comm_(comm),
      parts_(parts),
      hashes_(static_cast<std::size_t>(comm.size())) {}

Slice Sentinel::due(std::uint64_t step) const noexcept {
  const std::size_t all = network_.parameters().values().size();
  const std::size_t each = all / parts_ + (all % parts_ == 0 ? 0 : 1);
  const std::size_t first = std::min(all, step % parts_ * each);
  return {first, std::min(all, first + each)};
}

std::uint64_t Sentinel::hash(Slice part, Step& update) {
  if (!by_steps_) by_steps_ = comm_.all_agree(update.hash_of_weights({}).has_value());
  if (*by_steps_) return *update.hash_of_weights(part);
  update.show_weights(part);
  return hash_of_weights(network_.parameters().values().subspan(part.first, part.size()));
}

void Sentinel::check(std::uint64_t step, Step& update) {
  if (comm_.size() == 1) return;
  const Slice part = due(step);
  hashes_[static_cast<std::size_t>(comm_.rank())] = hash(part, update);
  comm_.all_gather(std::span(hashes_));
  const bool same = std::all_of(hashes_.begin(), hashes_.end(),
                                [&](std::uint64_t hash) { return hash == hashes_[0]; });
  if (same) return;
  update.show_weights(part);
  report(step, part);
}

void Sentinel::report(std::uint64_t step, Slice part) {
  comm::KeyValues tensors;
  const auto& block = network_.parameters();
  for (const nn::Tensor& tensor : block.tensors()) {
    const std::size_t first = std::max(part.first, tensor.offset);
    const std::size_t last = std::min(part.last, tensor.offset + tensor.stored);
    if (first >= last) continue;
    tensors.emplace_back("the hash of " + tensor.name,
                         to_hex(hash_of_weights(block.values().subspan(first, last - first))));
  }
  comm::require_equal(
      comm_, "the replica before step " + std::to_string(step), tensors,
      "look for faulty memory on the odd rank's host; checkpoints saved more than " +
          std::to_string(parts_) + " steps ago are good",
      ExitCode::invariant);
  throw comm::AgreedError(ExitCode::invariant,
                          "replicas differed before step " + std::to_string(step) +
                              ", in padding between tensors or for a moment only",
                          "look for faulty memory on the hosts of this job");
}

}  // namespace lockstep::train

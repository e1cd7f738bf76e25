#include "lockstep/train/shared_snapshot.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t snapshots = 2;
constexpr std::size_t page = 4096;

std::size_t whole_pages(std::size_t bytes) { return round_up(bytes, page); }

void require_whole(const nn::ParameterLayout<float>& layout) {
  for (const nn::ParameterSpec& tensor : layout.tensors()) {
    if (!tensor.cut) continue;
    throw std::invalid_argument("save_checkpoint: tensor " + tensor.name +
                                " is a part of one that ranks share: use Replica::save()");
  }
}

}  // namespace

Snapshot::Snapshot(const nn::NetworkShape& its_shape, const nn::Loss<float>& its_loss,
                   const nn::ParameterLayout<float>& its_layout,
                   const optim::OptimizerOptions* trained_with,
                   std::optional<comm::SharedRegion> region)
    : shape(its_shape),
      loss(its_loss.name()),
      layout(its_layout),
      region_(std::move(region)),
      own_(region_ ? 0 : bytes(layout, trained_with) / sizeof(float)) {
  require_whole(layout);
  if (trained_with != nullptr) {
    optimizer.kind = trained_with->kind;
    moments = optim::moment_names(*trained_with);
  }
  const std::size_t tensors = layout.tensors().size();
  if (tensors * std::max<std::size_t>(1, moments.size()) >= max_keys) {  // a header has one besides
    throw ConfigError(counted(tensors, "tensor") + " with " + counted(moments.size(), "moment") +
                          ": a file of a checkpoint names fewer than " + grouped(max_keys),
                      "use fewer layers, or an optimizer with fewer moments");
  }
  float* const first = region_ ? reinterpret_cast<float*>(region_->data()) : own_.data();
  const std::size_t length = layout.length();
  blocks.weights = {first, length};
  if (moments.size() > 0) blocks.first = {first + length, length};
  if (moments.size() > 1) blocks.second = {first + 2 * length, length};
}

std::size_t Snapshot::bytes(const nn::ParameterLayout<float>& layout,
                            const optim::OptimizerOptions* optimizer) {
  const std::size_t moments = optimizer == nullptr ? 0 : optim::moment_names(*optimizer).size();
  return layout.length() * sizeof(float) * (1 + moments);
}

/// What one rank has written of one snapshot. The region is zeroed.
struct SharedSnapshot::Record {
  alignas(alignment_bytes) std::atomic<std::uint32_t> ranks;  // of its group; 0: being written
  ReplicaState state;
};

SharedSnapshot::SharedSnapshot(comm::Communicator& comm, std::size_t length)
    : length_(length),
      ranks_(static_cast<std::size_t>(comm.place().local_ranks)),
      region_(comm::share_on_host(comm, snapshots * (whole_pages(ranks_ * sizeof(Record)) +
                                                     3 * whole_pages(length * sizeof(float))))) {}

SharedSnapshot::Record& SharedSnapshot::record(std::size_t snapshot,
                                               std::size_t rank) const noexcept {
  std::byte* const first = region_.data() + snapshot * whole_pages(ranks_ * sizeof(Record));
  return reinterpret_cast<Record*>(first)[rank];
}

StateBlocks SharedSnapshot::blocks(std::size_t snapshot) const noexcept {
  const std::size_t block = whole_pages(length_ * sizeof(float));
  const auto at = [&](std::size_t i) {
    std::byte* const first = region_.data() + snapshots * whole_pages(ranks_ * sizeof(Record)) +
                             (3 * snapshot + i) * block;
    return std::span(reinterpret_cast<float*>(first), length_);
  };
  return {at(0), at(1), at(2)};
}

bool SharedSnapshot::is_complete(std::size_t snapshot) const noexcept {
  const Record& first = record(snapshot, 0);
  const std::uint32_t ranks = first.ranks.load(std::memory_order_acquire);
  if (ranks == 0) return false;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const Record& other = record(snapshot, rank);
    if (other.ranks.load(std::memory_order_acquire) != ranks) return false;
    if (other.state.steps != first.state.steps) return false;
  }
  return true;
}

/// The number of steps of a complete snapshot, plus one; 0 if it is not complete, or after more
/// than `max_steps`.
std::uint64_t SharedSnapshot::order_of(std::size_t snapshot,
                                       std::uint64_t max_steps) const noexcept {
  if (!is_complete(snapshot)) return 0;
  const std::uint64_t steps = record(snapshot, 0).state.steps;
  return steps <= max_steps ? steps + 1 : 0;
}

StateBlocks SharedSnapshot::begin(int rank) {
  record(next_, static_cast<std::size_t>(rank)).ranks.store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return blocks(next_);
}

void SharedSnapshot::commit(int rank, int ranks, const ReplicaState& state) {
  Record& mine = record(next_, static_cast<std::size_t>(rank));
  mine.state = state;
  mine.ranks.store(static_cast<std::uint32_t>(ranks), std::memory_order_release);
  next_ = 1 - next_;
  // Until all ranks have committed, the other snapshot may be restored.
  const auto other = record(next_, static_cast<std::size_t>(rank)).state.steps;
  losses_.erase(losses_.begin(), losses_.upper_bound(std::min(other, state.steps)));
}

void SharedSnapshot::require_repeated(std::uint64_t step, double loss, comm::Communicator& comm) {
  const double before = losses_.try_emplace(step, loss).first->second;
  if (step > repeated_until_) return;
  try {
    comm::together(comm, [&] {
      const bool is_same =
          (std::isnan(before) && std::isnan(loss)) ||
          std::bit_cast<std::uint64_t>(before) == std::bit_cast<std::uint64_t>(loss);
      if (is_same) return;
      throw Error(ExitCode::invariant,
                  "step " + std::to_string(step) + ", repeated from a snapshot, has the loss " +
                      shortest(loss) + ", but had " + shortest(before),
                  "look for faulty memory on the hosts of this job, and resume from a checkpoint "
                  "of step " +
                      std::to_string(restored_steps_) +
                      " or before: later ones may have the fault in them");
    });
  } catch (const comm::AgreedError& error) {
    throw NotRepeated(error, restored_steps_);
  }
}

std::optional<KeptState> SharedSnapshot::newest(comm::Communicator& comm, std::uint64_t max_steps) {
  losses_.erase(losses_.upper_bound(max_steps), losses_.end());
  repeated_until_ = losses_.empty() ? 0 : losses_.rbegin()->first;
  // A rank that noticed the loss of another one sooner may not have completed the last step.
  comm.all_reduce(std::span(&repeated_until_, 1), comm::Op::max);
  // Of all ranks of a host the same, before any of them drops a snapshot below.
  const std::array orders = {order_of(0, max_steps), order_of(1, max_steps)};
  std::uint64_t order = std::max(orders[0], orders[1]);
  comm.all_reduce(std::span(&order, 1), comm::Op::min);
  const std::size_t chosen = orders[0] == order ? 0 : 1;
  next_ = 1 - chosen;
  // After another loss a smaller group must not choose a newer one: when training goes on from this
  // one, the records of later steps are removed.
  for (const std::size_t snapshot : {0, 1}) {
    Record& mine = record(snapshot, static_cast<std::size_t>(comm.place().local_rank));
    if (mine.state.steps >= order) mine.ranks.store(0);
  }
  restored_steps_ = std::max<std::uint64_t>(order, 1) - 1;
  if (order == 0) return std::nullopt;
  if (orders[chosen] != order) {
    throw Error(ExitCode::invariant, "rank " + std::to_string(comm.world_rank(comm.rank())) +
                                         ": no complete snapshot of step " +
                                         std::to_string(order - 1) + " on " + comm.place().host);
  }
  return KeptState{record(chosen, 0).state, blocks(chosen)};
}

}  // namespace lockstep::train

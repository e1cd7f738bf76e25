// The state of a replica: copied to snapshots and checkpoints, and set from them.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/network_json.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/replica_parts.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

using optim::Moment;

namespace {

/// Part `part` of `parts` of a block.
Range slice_of(std::size_t length, int part, int parts) {
  const auto number = static_cast<std::uint64_t>(part);
  const auto of = static_cast<std::uint64_t>(parts);
  return {share_begin(length, number, of), share_begin(length, number + 1, of)};
}

}  // namespace

std::unique_ptr<Snapshot> Replica::make_snapshot() {
  require_loss("save");
  const auto& loss = network_->loss_function();
  const optim::OptimizerOptions* const optimizer = plan_ ? &optimizer_ : nullptr;
  std::optional<comm::SharedRegion> region;
  if (groups_.model == nullptr && groups_.all.size() > 1) {
    const std::size_t bytes = Snapshot::bytes(network_->parameters().layout(), optimizer);
    try {
      region.emplace(comm::share_on_host(groups_.all, bytes));
    } catch (const comm::AgreedError& error) {  // rank 0 has memory of its own instead
      if (error.code() != ExitCode::usage) throw;
    }
  }
  const bool is_shared = region.has_value();
  std::unique_ptr<Snapshot> snapshot;
  comm::together(groups_.all, [&] {
    const bool has_it = region ? groups_.all.place().node == 0 : groups_.all.rank() == 0;
    if (!has_it) return;
    try {
      if (groups_.model != nullptr && !parts_->whole_layout) {
        parts_->whole_layout = std::make_unique<nn::ParameterLayout<float>>(
            nn::Network<float>::layout_of(shape(), *products_));
      }
      snapshot = std::make_unique<Snapshot>(
          shape(), loss,
          parts_->whole_layout ? *parts_->whole_layout : network_->parameters().layout(), optimizer,
          std::move(region));
    } catch (const std::bad_alloc&) {
      throw ConfigError("layers: out of memory for checkpoints on " + groups_.all.place().host,
                        "use narrower layers, or fewer ranks a host");
    }
  });
  if (snapshot && snapshot->is_shared()) {  // pages are there before the first take()
    const comm::Place& place = groups_.all.place();
    for (const auto block :
         {snapshot->blocks.weights, snapshot->blocks.first, snapshot->blocks.second}) {
      const Range mine = slice_of(block.size(), place.local_rank, place.local_ranks);
      std::fill_n(block.begin() + static_cast<std::ptrdiff_t>(mine.begin), mine.size(), 0.0F);
    }
  }
  if (is_shared) groups_.all.barrier();  // before a rank copies its slice
  return snapshot;
}

void Replica::take(Snapshot* snapshot) {
  const comm::Place& place = groups_.all.place();
  const StateBlocks to = snapshot != nullptr ? snapshot->blocks : StateBlocks{};
  copy_weights_to_host();
  if (groups_.model != nullptr) {
    copy_whole(network_->parameters().values(), to.weights);
    for (const Moment moment : moments()) copy_whole(gather_moment(moment), to.of(moment));
  } else if (snapshot != nullptr && snapshot->is_shared()) {
    copy_part(to, place.local_rank, place.local_ranks);
  } else {
    copy_part(to, 0, 1);
  }
  if (snapshot != nullptr && plan_) snapshot->optimizer.scalars = training().optimizer().scalars();
  groups_.all.barrier();  // all parts are copied
}

/// Copies part `part` of `parts` of the state to `to`. With a part for each rank of "batch" that is
/// its slice, and local; else all ranks gather the moments first, and `to` is empty on those that
/// only take part in that.
void Replica::copy_part(const StateBlocks& to, int part, int parts) {
  const auto values = network_->parameters().values();
  const bool is_slice = plan_ && !training().segments().empty() && groups_.model == nullptr &&
                        parts == groups_.batch.size() && part == groups_.batch.rank();
  const Range contiguous = slice_of(values.size(), part, parts);
  const auto mine = is_slice ? training().slice() : std::span(&contiguous, 1);
  const auto copy = [&](std::span<const float> from, std::span<float> into) {
    if (into.empty()) return;
    for (const Range range : mine) {
      const auto some = from.subspan(range.begin, range.size());
      std::ranges::copy(some, into.begin() + static_cast<std::ptrdiff_t>(range.begin));
    }
  };
  copy(values, to.weights);
  for (const Moment moment : moments()) {
    const auto into = to.of(moment);
    if (!is_slice) {
      copy(gather_moment(moment), into);
    } else if (!into.empty()) {
      copy_moment(moment, into);
    }
  }
}

/// The moments that the optimizer keeps, if this replica trains. Local.
std::vector<Moment> Replica::moments() const {
  if (!plan_) return {};
  std::vector<Moment> moments = {Moment::first, Moment::second};
  moments.resize(optim::moment_names(optimizer_).size());
  return moments;
}

/// A moment of all weights, in place of the gradients, which are free between steps. Collective.
std::span<const float> Replica::gather_moment(Moment moment) {
  const auto gathered = network_->parameters().gradients();
  copy_moment(moment, gathered);
  std::vector<std::span<std::byte>> segments;
  for (const Range segment : training().segments()) {
    segments.push_back(std::as_writable_bytes(gathered.subspan(segment.begin, segment.size())));
  }
  if (!segments.empty()) groups_.batch.all_gather(segments);
  return gathered;
}

/// Copies a moment of this rank's slice to its places in `block`, which may be that of the
/// gradients: these are overwritten. Local.
void Replica::copy_moment(Moment moment, std::span<float> block) {
  const auto slice = training().slice();
  const auto all = network_->parameters().gradients();
  std::size_t end = elements_of(slice);
  training().optimizer().copy(moment, all.first(end));
  // From the last range on, so that none is overwritten before it has been moved.
  for (std::size_t i = slice.size(); i-- > 0;) {
    end -= slice[i].size();
    std::memmove(block.data() + slice[i].begin, all.data() + end, slice[i].size() * sizeof(float));
  }
}

/// Sets a moment of this rank's slice from its places in `block`, which may be that of the
/// gradients: these are overwritten. Local.
void Replica::restore_moment(Moment moment, std::span<const float> block) {
  const auto all = network_->parameters().gradients();
  std::size_t end = 0;
  for (const Range range : training().slice()) {
    std::memmove(all.data() + end, block.data() + range.begin, range.size() * sizeof(float));
    end += range.size();
  }
  training().optimizer().restore(moment, all.first(end));
}

/// Copies a block of this replica to `into`, on rank 0 of all ranks, with the shards of all ranks
/// of "model". Collective over "model".
void Replica::copy_whole(std::span<const float> block, std::span<float> into) {
  if (groups_.batch.rank() != 0) return;  // the others hold the same
  const auto& layout = network_->parameters().layout();
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const auto tensor = whole_tensor(layout, block, i, groups_);
    if (!into.empty()) parts_->whole_layout->set_logical(into, i, tensor);
  }
}

void require_one_checkpoint(comm::Communicator& comm, const SavedNetwork* saved) {
  comm::KeyValues found;
  if (saved != nullptr) {
    found = {{"checkpoint", saved->folder.filename().string()},
             {"the weights' hash", to_hex(saved->weights_hash)}};
  }
  comm::require_equal(comm, "what ranks read", found,
                      "give all hosts the same files, and of a run that still trains one "
                      "checkpoint: RUN/checkpoints/step-N");
}

void Replica::restore(const SavedNetwork& saved, const TrainingState& state) {
  require_one_checkpoint(groups_.all, &saved);
  comm::together(groups_.all, [&] {
    training();
    require_same_layers(saved, shape());
    // Moments have no other hash; hosts may have copies of their own.
    if (groups_.all.place().local_rank == 0) verify_checkpoint(saved.folder);
    if (state.optimizer.kind != optimizer_.kind) {
      const std::string trained_with = optim::name_of(state.optimizer.kind);
      throw ConfigError(saved.folder.string() + ": was trained with the optimizer " + trained_with,
                        "use `optimizer=" + trained_with + "`, or start from its weights alone");
    }
    auto& block = network_->parameters();
    read_weights(saved, *network_);
    const auto whole = block.gradients();  // free between steps
    for (const Moment moment : moments()) {
      std::fill(whole.begin(), whole.end(), 0.0F);  // the padding, too
      read_moments(saved.folder, block.layout(), optimizer_, moment, whole);
      restore_moment(moment, whole);
    }
    training().optimizer().set_scalars(state.optimizer.scalars);
    std::fill(whole.begin(), whole.end(), 0.0F);
    if (device_) device_->copy_weights_from_host();
  });
  set_completed(saved.info.step, saved.info.examples);
}

TakenWeights Replica::start_from(const InitialWeights& initial) {
  TakenWeights taken;
  comm::together(groups_.all, [&] {
    training();
    if (steps_ > 0) {
      throw ConfigError("start_from: comes after " + counted(steps_, "step") + " of training",
                        "start before the first step, or restore() a checkpoint");
    }
    // Hosts may have copies of their own.
    const bool verifies = groups_.all.place().local_rank == 0;
    taken = read_initial_weights(initial, *network_, verifies);
    if (device_) device_->copy_weights_from_host();
  });
  require_one_checkpoint(groups_.all, taken.saved ? &*taken.saved : nullptr);
  return taken;
}

void Replica::set_completed(std::uint64_t steps, std::uint64_t examples) {
  steps_ = steps;
  examples_ = examples;
  training().set_steps(steps);
}

std::unique_ptr<SharedSnapshot> Replica::make_shared_snapshot() {
  comm::together(groups_.all, [&] {
    training();
    if (keeps_snapshots_) return;
    throw ConfigError("make_shared_snapshot: of a replica without keeps_snapshots",
                      "set ReplicaOptions::keeps_snapshots");
  });
  // A block ends with the last tensor, but for the padding of its last slice.
  const auto& last = network_->parameters().tensors().back();
  const auto ranks = static_cast<std::size_t>(groups_.all.size());
  return std::make_unique<SharedSnapshot>(groups_.all,
                                          last.offset + last.stored + line_floats * ranks);
}

void Replica::keep(SharedSnapshot& snapshot, const TrainingPosition& position) {
  const comm::Place& place = groups_.all.place();
  copy_part(snapshot.begin(place.local_rank), place.local_rank, place.local_ranks);
  snapshot.commit(place.local_rank, place.local_ranks,
                  {steps_, examples_, position, training().optimizer().scalars()});
}

void Replica::restore(const KeptState& snapshot) {
  optim::OptimizerState& optimizer = training().optimizer();
  const auto& [state, from] = snapshot;
  const auto values = network_->parameters().values();
  std::copy_n(from.weights.begin(), values.size(), values.begin());
  for (const Moment moment : moments()) restore_moment(moment, from.of(moment));
  optimizer.set_scalars(state.optimizer);
  set_completed(state.steps, state.examples);
}

std::string Replica::save(const std::string& folder) { return save(folder, {}, {}); }

std::string Replica::save(const std::string& folder, CheckpointInfo about) {
  return save(folder, std::move(about), {});
}

std::string Replica::save(const std::string& folder, CheckpointInfo about,
                          const TrainingPosition& position) {
  about.step = steps_;
  about.examples = examples_;
  comm::together(groups_.all, [&] { require_describes(about, shape()); });
  const auto snapshot = make_snapshot();
  take(snapshot.get());
  comm::together(groups_.all, [&] {
    if (groups_.all.rank() != 0) return;
    require_no_checkpoint(folder, steps_);
    const TrainingState state = {.position = position};
    save_checkpoint(folder, *snapshot, about, plan_ ? &state : nullptr);
  });
  return (std::filesystem::path(folder) / checkpoint_name(steps_)).string();
}

}  // namespace lockstep::train

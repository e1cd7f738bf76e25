#include "lockstep/train/integrity.hpp"

#include <algorithm>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/numerics/leaf_tree.hpp"
#include "lockstep/train/device.hpp"

namespace lockstep::train {
namespace {

std::uint64_t hash_of_weights(std::span<const float> weights) {
  return hash_of(std::as_bytes(weights));
}

/// The value that more than half of all ranks have.
std::optional<std::uint64_t> majority(std::span<const std::uint64_t> values) {
  for (const std::uint64_t value : values) {
    const auto equal = std::count(values.begin(), values.end(), value);
    if (2 * static_cast<std::size_t>(equal) > values.size()) return value;
  }
  return std::nullopt;
}

/// The rank whose value alone differs from all others, if there are at least three.
std::optional<int> odd_rank(std::span<const std::uint64_t> values) {
  const auto most = majority(values);
  if (!most || std::count(values.begin(), values.end(), *most) + 1 != std::ssize(values)) {
    return std::nullopt;
  }
  const auto odd = std::find_if(values.begin(), values.end(), [&](auto v) { return v != *most; });
  return static_cast<int>(odd - values.begin());
}

}  // namespace

void require_same_weights(comm::Communicator& comm, std::uint64_t hash, std::uint64_t steps,
                          std::uint64_t good_steps) {
  try {
    comm::require_equal(comm, "the replica after step " + std::to_string(steps),
                        {{"the weights' hash", to_hex(hash)}},
                        "the weights saved before are those of rank 0; look for faulty memory on "
                        "the odd rank's host",
                        ExitCode::invariant);
  } catch (const comm::AgreedError& error) {
    throw FaultFound(error, steps, odd_rank(comm::gather_number(comm, hash)), good_steps);
  }
}

Sentinel::Sentinel(const nn::Network<float>& network, DeviceReplica* device, const Groups& groups,
                   std::uint64_t parts)
    : network_(network),
      device_(device),
      groups_(groups),
      comm_(groups.batch),
      parts_(parts),
      hashes_(static_cast<std::size_t>(comm_.size()), comm_.memory()) {}

std::span<std::byte> Sentinel::begin(std::uint64_t step) {
  if (comm_.size() == 1) return {};
  const std::size_t all = network_.parameters().values().size();
  const std::size_t each = ceil_divide(all, parts_);
  const std::size_t first = std::min(all, step % parts_ * each);
  step_ = step;
  part_ = {first, std::min(all, first + each)};
  hashes_.data()[comm_.rank()] = hash();
  return std::as_writable_bytes(hashes_.span());
}

std::uint64_t Sentinel::hash() {
  if (!all_have_devices_) all_have_devices_ = comm_.all_agree(device_ != nullptr);
  if (*all_have_devices_) return device_->hash_of_weights(part_);
  copy_part_to_host();
  return hash_of_weights(network_.parameters().values().subspan(part_.begin, part_.size()));
}

void Sentinel::copy_part_to_host() {
  if (device_ != nullptr) device_->copy_weights_to_host(part_);
}

void Sentinel::compare() {
  const auto hashes = hashes_.span();
  if (hashes.size() == 1) return;
  groups_.fail_together([&] {  // the rest of a step may be collective over "model"
    if (std::count(hashes.begin(), hashes.end(), hashes[0]) == comm_.size()) return;
    copy_part_to_host();
    report();
  });
}

void Sentinel::report() {
  comm::KeyValues tensors;
  const auto& block = network_.parameters();
  for (const nn::ParameterSpec& tensor : block.tensors()) {
    const std::size_t first = std::max(part_.begin, tensor.offset);
    const std::size_t last = std::min(part_.end, tensor.offset + tensor.stored);
    if (first >= last) continue;
    tensors.emplace_back("the hash of " + tensor.name,
                         to_hex(hash_of_weights(block.values().subspan(first, last - first))));
  }
  const auto found = [&](const Error& error) {
    return FaultFound(error, step_, odd_rank(hashes_.span()), good_steps(step_ - 1));
  };
  try {
    comm::require_equal(
        comm_, "the replica before step " + std::to_string(step_), tensors,
        "look for faulty memory on the odd rank's host; checkpoints saved more than " +
            std::to_string(parts_) + " steps ago are good",
        ExitCode::invariant);
  } catch (const comm::AgreedError& error) {
    throw found(error);
  }
  throw found(Error(ExitCode::invariant,
                    "replicas differed before step " + std::to_string(step_) +
                        ", in padding between tensors or for a moment only",
                    "look for faulty memory on the hosts of this job"));
}

namespace {

/// The examples of a leaf; with some plans a leaf has none, or fewer than its rows.
Range rows_of(const data::Batch& batch, std::uint64_t leaf) {
  const std::uint64_t first = leaf * batch.leaf;
  const std::uint64_t end = batch.rows_of(first / batch.block).end;
  return {first, std::clamp(end, first, first + batch.leaf)};
}

}  // namespace

Audit::Audit(nn::Network<float>& network, const data::Plan& plan, comm::Communicator& comm,
             std::optional<std::uint64_t> every)
    : network_(network),
      comm_(comm),
      every_(every),
      hashes_(2 * static_cast<std::size_t>(comm.size())) {
  if (!every) return;
  const auto leaves_at = [&](std::uint64_t step) {
    return leaves_of(plan.summed_rows(step), plan.leaf(step));
  };
  leaves_ = leaves_at(0);
  if (leaves_at(plan.steps() - 1) < leaves_) {
    short_every_ = plan.steps() / std::gcd(plan.steps(), *every);
    if (short_every_ == 1) short_every_ = 0;  // no other batch is audited
  }
  const std::size_t rows = plan.largest_gathered();
  weights_ = AlignedBuffer<float>(rows, comm.memory());
  if (network.loss_function().target() == nn::TargetKind::label) {
    labels_ = AlignedBuffer<std::int32_t>(rows, comm.memory());
  } else {
    values_each_ = network.loss_function().target_width(network.shape().classes);
    values_ = AlignedBuffer<float>(rows * values_each_, comm.memory());
  }
}

std::array<std::span<std::byte>, 2> Audit::put_targets(const data::Batch& batch) {
  const auto own = [&](auto blocks, std::size_t each) {
    const std::size_t block = batch.block * each;
    return blocks.subspan(static_cast<std::size_t>(comm_.rank()) * block, block);
  };
  const auto put = [&](auto mine, auto blocks, std::size_t each) {
    std::copy(mine.begin(), mine.end(), own(blocks, each).begin());
    const std::size_t all = batch.block * each * static_cast<std::size_t>(comm_.size());
    return std::as_writable_bytes(blocks.first(all));
  };
  const auto weights = own(weights_.span(), 1);
  std::fill(weights.begin(), weights.end(), 1.0F);
  return {put(batch.weights, weights_.span(), 1),
          values_each_ == 0 ? put(batch.labels, labels_.span(), 1)
                            : put(batch.values, values_.span(), values_each_)};
}

/// The audits up to `step`, without those of last batches with fewer leaves.
std::uint64_t Audit::counted_audits(std::uint64_t step) const noexcept {
  const std::uint64_t audits = step / *every_;
  return short_every_ == 0 ? audits : audits - audits / short_every_;
}

/// The steps in which audits have visited every leaf, before and with that of `batch`.
std::uint64_t Audit::steps_of_round(const data::Batch& batch) const noexcept {
  const std::uint64_t leaves = std::max(leaves_, leaves_of(batch.summed_rows, batch.leaf));
  const std::uint64_t not_counted = short_every_ == 0 ? 0 : ceil_divide(leaves, short_every_ - 1);
  return (leaves + not_counted) * *every_;
}

void Audit::check_leaf(std::uint64_t step, const data::Batch& batch) {
  const std::uint64_t leaves = leaves_of(batch.summed_rows, batch.leaf);
  std::uint64_t leaf = counted_audits(step) % leaves;
  while (rows_of(batch, leaf).empty()) leaf = (leaf + 1) % leaves;  // a step has an example
  const Range rows = rows_of(batch, leaf);
  const std::size_t first = rows.begin;
  const int owner = static_cast<int>(first / batch.block);
  const int auditor = (owner + 1) % comm_.size();

  // Every rank holds these rows; the auditor recomputes them in place.
  nn::Targets targets = {
      values_each_ == 0 ? labels_.span().subspan(rows.begin, rows.size()) : labels_.span(),
      values_.span().subspan(rows.begin * values_each_, rows.size() * values_each_)};
  targets.weights = weights_.span().subspan(rows.begin, rows.size());
  const auto compute = [&] {
    network_.forward(rows, nn::TrainingRows{step, 0});
    network_.loss(rows, targets, true);
    network_.backward(rows);
  };
  const std::uint64_t given = hash_rows(rows);
  if (comm_.rank() == auditor) compute();
  const auto me = 2 * static_cast<std::size_t>(comm_.rank());
  hashes_[me] = given;
  hashes_[me + 1] = hash_rows(rows);
  comm_.all_gather(std::span(hashes_));
  const auto of_auditor = 2 * static_cast<std::size_t>(auditor);
  if (hashes_[of_auditor] == hashes_[of_auditor + 1]) return;
  const std::uint64_t by_owner = hashes_[of_auditor];
  compute();
  fail(step, batch, "leaf " + std::to_string(leaf) + "'s activations or their gradients", owner,
       by_owner, hash_rows(rows));
}

void Audit::check_gradients(std::uint64_t step, const data::Batch& batch,
                            std::span<const Range> segments) {
  const int ranks = comm_.size();
  const int owner = (comm_.rank() + ranks - 1) % ranks;
  const auto slice_of = [&](int rank) {
    return ranges_in(segments, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
  };
  const auto gradients = network_.parameters().gradients();
  const auto hash_of = [&](const std::vector<Range>& slice) {
    Hash hash;
    for (const Range range : slice) {
      hash.add(std::span<const float>(gradients.subspan(range.begin, range.size())));
    }
    return hash.value();
  };
  const auto compute = [&](const std::vector<Range>& slice) {
    for (const Range range : slice) {
      network_.weight_gradients({0, batch.summed_rows}, batch.leaf, range);
    }
    return hash_of(slice);
  };
  const auto me = 2 * static_cast<std::size_t>(comm_.rank());
  hashes_[me] = hash_of(slice_of(comm_.rank()));
  hashes_[me + 1] = compute(slice_of(owner));
  comm_.all_gather(std::span(hashes_));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto auditor = static_cast<std::size_t>((rank + 1) % ranks);
    const std::uint64_t by_owner = hashes_[2 * static_cast<std::size_t>(rank)];
    if (by_owner == hashes_[2 * auditor + 1]) continue;
    fail(step, batch, "its slice of the weights' gradients", rank, by_owner,
         compute(slice_of(rank)));
  }
}

std::uint64_t Audit::hash_rows(Range rows) {
  Hash hash;
  network_.for_each_exchanged(rows, [&](std::span<const float> values) { hash.add(values); });
  return hash.value();
}

/// Throws FaultFound: the rank after `owner` did not compute what `owner` did. `by_this_rank`: the
/// hash of the same, computed by this rank. Collective.
void Audit::fail(std::uint64_t step, const data::Batch& batch, const std::string& what, int owner,
                 std::uint64_t by_owner, std::uint64_t by_this_rank) {
  const int auditor = (owner + 1) % comm_.size();
  const auto votes = comm::gather_number(comm_, by_this_rank);
  const auto right = majority(votes);
  std::optional<int> wrong;
  if (right && comm_.size() > 1) wrong = by_owner == *right ? auditor : owner;
  const bool is_lasting = !right || (wrong && votes[static_cast<std::size_t>(*wrong)] != *right);
  const std::uint64_t round = steps_of_round(batch);
  const std::uint64_t good = step - 1 - std::min(step - 1, is_lasting ? round : 0);
  const auto name = [&](int rank) { return "rank " + std::to_string(comm_.world_rank(rank)); };
  throw FaultFound(
      Error(ExitCode::invariant,
            "audit of step " + std::to_string(step) + ": " + name(owner) + " computed " + what +
                ", " + name(auditor) + " computed the same again, and the bits differ" +
                (wrong ? "; computed by all ranks, " + name(*wrong) + " was wrong" : ""),
            "look for a faulty processor or memory on the hosts of these two ranks; " +
                (good == 0 ? "no checkpoint is"
                           : "checkpoints of at most " + counted(good, "step") + " are") +
                " known to be good"),
      step, wrong, good, is_lasting ? 0 : round);
}

}  // namespace lockstep::train

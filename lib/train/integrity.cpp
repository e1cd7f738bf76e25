#include "lib/train/integrity.hpp"

#include <algorithm>
#include <stdexcept>

#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
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

Range Sentinel::due(std::uint64_t step) const noexcept {
  const std::size_t all = network_.parameters().values().size();
  const std::size_t each = all / parts_ + (all % parts_ == 0 ? 0 : 1);
  const std::size_t first = std::min(all, step % parts_ * each);
  return {first, std::min(all, first + each)};
}

std::uint64_t Sentinel::hash(Range part, Step& update) {
  if (!by_steps_) by_steps_ = comm_.all_agree(update.hash_of_weights({}).has_value());
  if (*by_steps_) return *update.hash_of_weights(part);
  update.show_weights(part);
  return hash_of_weights(network_.parameters().values().subspan(part.begin, part.size()));
}

void Sentinel::check(std::uint64_t step, Step& update) {
  if (comm_.size() == 1) return;
  const Range part = due(step);
  hashes_[static_cast<std::size_t>(comm_.rank())] = hash(part, update);
  comm_.all_gather(std::span(hashes_));
  const bool same = std::all_of(hashes_.begin(), hashes_.end(),
                                [&](std::uint64_t hash) { return hash == hashes_[0]; });
  if (same) return;
  update.show_weights(part);
  report(step, part);
}

void Sentinel::report(std::uint64_t step, Range part) {
  comm::KeyValues tensors;
  const auto& block = network_.parameters();
  for (const nn::ParameterSpec& tensor : block.tensors()) {
    const std::size_t first = std::max(part.begin, tensor.offset);
    const std::size_t last = std::min(part.end, tensor.offset + tensor.stored);
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

namespace {

/// The examples of a leaf; under some plans it holds none, or its rows are not all examples.
nn::Rows rows_of(const data::Batch& batch, std::uint64_t leaf) {
  const std::uint64_t first = leaf * batch.leaf;
  const std::uint64_t end = batch.rows_of(first / batch.block).end;
  return {first, first < end ? std::min(batch.leaf, end - first) : 0};
}

}  // namespace

Audit::Audit(nn::Network<float>& network, comm::Communicator& comm,
             std::optional<std::uint64_t> every)
    : network_(network),
      comm_(comm),
      every_(every),
      hashes_(2 * static_cast<std::size_t>(comm.size())) {
  const auto& loss = network.loss_function();
  if (!every || dynamic_cast<const nn::SoftmaxCrossEntropy<float>*>(&loss) != nullptr) return;
  throw ConfigError(std::string("audit-every with the loss ") + loss.name() +
                        ": an auditor knows labels by softmax cross-entropy alone",
                    "leave the audit out");
}

void Audit::check_leaf(std::uint64_t step, const data::Batch& batch) {
  const std::uint64_t leaves = (batch.summed_rows + batch.leaf - 1) / batch.leaf;
  std::uint64_t leaf = step / *every_ % leaves;
  while (rows_of(batch, leaf).count == 0) leaf = (leaf + 1) % leaves;  // a step has an example
  const nn::Rows rows = rows_of(batch, leaf);
  const std::size_t first = rows.first;
  const int owner = static_cast<int>(first / batch.block);
  const int auditor = (owner + 1) % comm_.size();

  // Every rank holds these rows by now; the auditor makes them again, in place.
  const std::uint64_t given = hash_rows(rows);
  if (comm_.rank() == auditor) {
    recover_labels(rows, network_.forward(rows, nn::TrainingRows{step, 0}));
    network_.loss(rows, labels_, true);
    network_.backward(rows);
  }
  const auto me = 2 * static_cast<std::size_t>(comm_.rank());
  hashes_[me] = given;
  hashes_[me + 1] = hash_rows(rows);
  comm_.all_gather(std::span(hashes_));
  const auto of_auditor = 2 * static_cast<std::size_t>(auditor);
  if (hashes_[of_auditor] == hashes_[of_auditor + 1]) return;
  fail(step, "leaf " + std::to_string(leaf) + "'s activations or their gradients", owner, auditor);
}

void Audit::check_gradients(std::uint64_t step, const data::Batch& batch, Range slice) {
  const int ranks = comm_.size();
  const int owner = (comm_.rank() + ranks - 1) % ranks;
  const std::size_t first = static_cast<std::size_t>(owner) * slice.size();
  const Range theirs = {first, first + slice.size()};
  const auto gradients = network_.parameters().gradients();
  const auto hash_of = [&](Range part) {
    Hash hash;
    hash.add(std::span<const float>(gradients.subspan(part.begin, part.size())));
    return hash.value();
  };
  const auto me = 2 * static_cast<std::size_t>(comm_.rank());
  hashes_[me] = hash_of(slice);
  network_.weight_gradients({0, batch.summed_rows}, batch.leaf, theirs);
  hashes_[me + 1] = hash_of(theirs);
  comm_.all_gather(std::span(hashes_));
  for (int rank = 0; rank < ranks; ++rank) {
    const int auditor = (rank + 1) % ranks;
    if (hashes_[2 * static_cast<std::size_t>(rank)] !=
        hashes_[2 * static_cast<std::size_t>(auditor) + 1]) {
      fail(step, "its slice of the weights' gradients", rank, auditor);
    }
  }
}

std::uint64_t Audit::hash_rows(nn::Rows rows) {
  Hash hash;
  network_.for_each_exchanged(rows, [&](std::span<const float> values) { hash.add(values); });
  return hash.value();
}

/// The gradient by the logits is softmax - onehot: its only negative entry is the label's. Where
/// there is none, the label's probability was rounded to 1, and its logit is the greatest.
void Audit::recover_labels(nn::Rows rows, Matrix<const float> logits) {
  labels_.clear();
  const Matrix<const float> dz = network_.logit_gradients(rows);
  for (std::size_t i = 0; i < dz.rows; ++i) {
    const auto row = dz.row(i);
    const auto least = std::min_element(row.begin(), row.end());
    const std::size_t label = *least < 0 ? static_cast<std::size_t>(least - row.begin())
                                         : nn::predicted_class<float>(logits.row(i));
    labels_.push_back(static_cast<std::int32_t>(label));
  }
}

void Audit::fail(std::uint64_t step, const std::string& what, int owner, int auditor) {
  throw comm::AgreedError(
      ExitCode::invariant,
      "audit of step " + std::to_string(step) + ": rank " + std::to_string(owner) + " computed " +
          what + ", rank " + std::to_string(auditor) +
          " computed the same again, and the bits differ",
      "look for a faulty processor or memory on the hosts of these two ranks; checkpoints saved "
      "before the last audit that passed are good");
}

}  // namespace lockstep::train

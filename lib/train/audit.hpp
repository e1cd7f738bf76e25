// Silent corruption: now and then another rank computes the same again, and the bits must agree.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "lib/nn/network.hpp"

namespace lockstep::train {

/// Every N steps of the canonical reduction, when all ranks hold all rows: the next rank computes
/// one leaf's activations and gradients again, and every rank its predecessor's slice of the
/// weights' gradients. Leaves take turns.
///
/// It finds what no comparison of replicas can: a wrong activation or gradient that all ranks
/// would have trusted. It covers one leaf of the audited steps, and all of their weight gradients.
/// With one rank there is nobody else: it computes its own again, and finds what does not happen
/// twice.
class Audit {
 public:
  /// Both must outlive the audit. `every` counts steps; none: never.
  /// Errors   throws ConfigError: another loss than softmax cross-entropy.
  Audit(nn::Network<float>& network, comm::Communicator& comm, std::optional<std::uint64_t> every);

  bool due(std::uint64_t step) const noexcept { return every_ && step % *every_ == 0; }

  /// After the exchange of rows: computes a leaf of `batch` again.
  ///
  /// Errors   throws comm::AgreedError (70) on every rank; names step, leaf and both ranks.
  /// Ranks    collective.
  void check_leaf(std::uint64_t step, const data::Batch& batch);

  /// After weight_gradients() and before the update: computes the predecessor's slice again.
  /// `slice` is this rank's own; slices are equally long.
  void check_gradients(std::uint64_t step, const data::Batch& batch, Slice slice);

 private:
  std::uint64_t hash_rows(nn::Rows rows);
  void recover_labels(nn::Rows rows, Matrix<const float> logits);
  [[noreturn]] static void fail(std::uint64_t step, const std::string& what, int owner,
                                int auditor);

  nn::Network<float>& network_;
  comm::Communicator& comm_;
  std::optional<std::uint64_t> every_;
  std::vector<std::int32_t> labels_;
  std::vector<std::uint64_t> hashes_;  // of every rank: what it was given or made, and made again
};

}  // namespace lockstep::train

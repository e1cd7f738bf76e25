// Two recorded runs, compared bit by bit: the first recorded point where they part.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/train/recorded_run.hpp"

namespace lockstep::train {

/// Something that two runs did not record alike.
struct Difference {
  std::uint64_t step = 0;
  std::string what;        ///< "loss", "tensor 0.weight", "epoch 2 weights_hash"
  Recorded a;              ///< "absent" where that run has none
  Recorded b;              ///< likewise
  std::size_t others = 0;  ///< that differ at the same point: other figures, or other tensors
};

/// The receipt: how far two runs were compared, and where they part. Figures, tensors and epochs
/// have a first difference each, for the figures tell when, and the tensors where.
struct Comparison {
  std::uint64_t steps = 0;         ///< recorded by both
  std::uint64_t first_step = 0;    ///< of those
  std::uint64_t last_step = 0;     ///< of those
  std::uint64_t hashed_steps = 0;  ///< of those, with tensors' hashes in both
  std::uint64_t epochs = 0;        ///< that ended at the same step in both

  std::optional<Difference> figure;
  std::optional<Difference> tensor;
  std::optional<Difference> epoch;
  std::vector<Difference> settings;  ///< a hint; they make no difference by themselves

  /// The earliest of the three: in a step, loss and accuracy come before the update, and an
  /// epoch's figures after it. Null where all that both runs recorded is the same.
  const Difference* first() const noexcept;
};

/// Compares what both runs recorded; one may go on for longer than the other. Doubles are compared
/// by their bits. Epochs that ended at different steps (--steps) are left out.
///
/// Errors   throws DataError where no step is recorded by both.
Comparison compare(const RecordedRun& a, const RecordedRun& b);

/// One line of JSON:
///   {"same": false, "steps_compared": 5, "hashed_steps_compared": 5, "epochs_compared": 1,
///    "first_difference": {"step": 1, "what": "loss", "a": 2.3, "b": 2.4},
///    "first_tensor_difference": {"step": 1, "what": "tensor 0.weight", "a": "...", "b": "..."},
///    "settings": {"reduction": ["\"canonical\"", "\"allreduce\""]}}
/// with null for a difference that there is not, and settings as TOML literals.
std::string to_json(const Comparison& comparison);

}  // namespace lockstep::train

// UpdatePasses: which passes over the weights an update makes, in which order and with which
// constants, for arrays on the processor (optimizer.cpp, with the arithmetic of Adam and the
// others) or on a device (cuda/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/numerics/exact_squares.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::optim {

/// What is done to each weight of a range: see Optimizer. lamb does it in two passes, with norms
/// between them.
enum class Pass : std::uint8_t { sgd, adam, adamw, lars, lamb_moments, lamb_weights };

/// The constants of a pass; a weight's update by Adam then needs one division and one square root.
struct PassFactors {
  float inverse_weight;  ///< 1 / weight
  float beta1, rest1;
  float beta2, rest2;
  float corrected_rate;       ///< rate / (1 - beta1^t)
  float inverse_correction1;  ///< 1 / (1 - beta1^t)
  float inverse_correction2;  ///< 1 / (1 - beta2^t)
  float epsilon;
  float rate;
  float momentum;
  float decay;
  float kept;        ///< 1 - rate * decay
  float clip_scale;  ///< 1: not scaled
  float clip_value;  ///< infinity: not cut
  float scale;       ///< of lars and lamb: the rate times the ratio of a tensor's norms
  bool nesterov;
  bool clips;  ///< by clip_scale or clip_value
};

/// A pass over a range of the arrays.
struct RangePass {
  Pass pass = Pass::sgd;
  Range range;
  PassFactors factors;
};

/// Code for passes over the arrays of an update: values, gradient sums, moments.
class UpdateKernels {
 public:
  /// Numbers whose squares are summed: weights; mean gradients, clipped; lamb's r.
  enum class Squared : std::uint8_t { weights, gradients, directions };
  struct Squares {
    Squared what = Squared::gradients;
    Range range;
  };

  UpdateKernels() = default;
  UpdateKernels(const UpdateKernels&) = delete;
  UpdateKernels& operator=(const UpdateKernels&) = delete;
  virtual ~UpdateKernels() = default;

  /// Runs a pass. Returns false if a gradient or its square, a second moment or a new weight is
  /// known to be not finite. Local.
  virtual bool run(const RangePass& pass) = 0;

  /// The exact sum of squares of each of `asked`, with these factors, after all passes so far.
  /// Local; blocks.
  virtual std::vector<ExactSquares::Words> squares(std::span<const Squares> asked,
                                                   const PassFactors& factors) = 0;
};

/// The logic of Optimizer, without its arrays.
class UpdatePasses {
 public:
  /// `tensors`: all of the block, in its order, with their parts of the arrays. Throws what
  /// require_valid() throws.
  UpdatePasses(const OptimizerOptions& options, const std::vector<UpdatedTensor>& tensors);

  const OptimizerOptions& options() const noexcept { return options_; }

  /// Without needs_norms(): begins the update of step `step` (from 0) and returns its passes over
  /// arrays of `weights` weights, valid until the next call. Their number and ranges are always the
  /// same. Local.
  std::span<const RangePass> begin(std::size_t weights, double weight, std::uint64_t step);

  /// The passes that begin() returns, without factors.
  std::span<const RangePass> passes(std::size_t weights);

  /// Runs the update of step `step`, as Optimizer::update(). Returns false if a pass did, or a norm
  /// is not finite. Collective over the ranks of `sums` with needs_norms(), else local.
  bool update(UpdateKernels& kernels, std::size_t weights, double weight, std::uint64_t step,
              const RankSums& sums);

  /// See OptimizerState.
  std::optional<double> gradient_norm() const noexcept { return gradient_norm_; }
  const OptimizerScalars& scalars() const noexcept { return state_; }
  void set_scalars(const OptimizerScalars& scalars) noexcept { state_ = scalars; }

 private:
  PassFactors advance(double weight, std::uint64_t step);
  void set_factors(const PassFactors& factors, std::span<const double> rates);

  OptimizerOptions options_;
  std::vector<UpdatedTensor> tensors_;  // those that are cut first, and none that is frozen
  bool is_uniform_ = true;              // one pass over all weights
  double rate_ = 0;                     // of the step
  OptimizerScalars state_;
  std::optional<double> gradient_norm_;
  std::vector<RangePass> passes_;
};

}  // namespace lockstep::optim

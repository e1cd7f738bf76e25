// Optimizers on flat spans: options, state, and the update on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/range.hpp"

namespace lockstep::optim {

enum class ScheduleKind { constant, linear, cosine, step, exponential };

/// "constant", "linear" ..., and the inverse; empty for any other name.
const char* name_of(ScheduleKind kind) noexcept;
std::optional<ScheduleKind> schedule_named(std::string_view name) noexcept;

/// A factor of the learning rate for each step, from 0. With u the step after the warm-up:
///
///   warm-up        (step + 1) / warmup, in the first `warmup` steps
///   constant       1
///   linear         from 1 to `last`, in the steps after the warm-up up to `steps`
///   cosine         last + (1 - last) (1 + cos(pi u / (steps - warmup))) / 2, to the same end
///   step           decay^floor(u / every)
///   exponential    decay^(u / every)
///
/// From step `steps` on, linear and cosine are `last`.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  std::uint64_t warmup = 0;
  std::uint64_t steps = 0;  ///< of linear and cosine: all steps of training
  double last = 0;          ///< of linear and cosine
  double decay = 0.1;       ///< of step and exponential
  std::uint64_t every = 1;  ///< of step and exponential

  /// The factor, in fixed operations of double: the same bits for every mathematics library. Local.
  double factor(std::uint64_t step) const noexcept;

  bool operator==(const Schedule&) const = default;
};

/// Throws ConfigError for a schedule that cannot be followed: of linear and cosine, no steps after
/// the warm-up; of exponential, `decay` that is no normal number; of all, `last` outside [0, 1],
/// `decay` outside (0, 1], `every` 0, or one of them that this kind does not use and that is not
/// the default.
void require_valid(const Schedule& schedule);

/// Throws ConfigError for the option `name` of `where` ("optimizer=sgd") unless it is used or has
/// its default. `users`: "adam, adamw or lamb".
void require_used(const char* name, bool is_used, bool is_default, const std::string& where,
                  const char* users);

enum class OptimizerKind { sgd, adam, adamw, lars, lamb };

/// "sgd", "adam" ..., and the inverse; empty for any other name.
const char* name_of(OptimizerKind kind) noexcept;
std::optional<OptimizerKind> optimizer_named(std::string_view name) noexcept;

/// Defaults are the tutorial's. `epsilon` is added after the root and after bias correction; it is
/// at least 1e-12.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adam;
  double learning_rate = 1e-3;
  Schedule schedule = {};   ///< its factor of each step multiplies the learning rate
  double beta1 = 0.9;       ///< of adam, adamw and lamb
  double beta2 = 0.999;     ///< of adam, adamw and lamb
  double epsilon = 1e-7;    ///< of adam, adamw and lamb
  double momentum = 0;      ///< of sgd and lars
  bool nesterov = false;    ///< of sgd, with momentum
  double weight_decay = 0;  ///< of matrices; biases and gains, which are vectors, do not decay
  double trust = 1e-3;      ///< of lars
  /// The mean gradient of all weights is scaled to this norm if its own is greater; nullopt: no
  /// clipping.
  std::optional<double> clip_norm = std::nullopt;
  /// Every element of the mean gradient is cut to [-clip_value, clip_value]; nullopt: no
  /// clipping. Not together with clip_norm.
  std::optional<double> clip_value = std::nullopt;

  bool operator==(const OptimizerOptions&) const = default;
};

/// Throws ConfigError for numbers out of range, and for options that this kind does not use and
/// that are not the default.
void require_valid(const OptimizerOptions& options);

/// True if an update needs norms over all weights, or of each tensor.
bool needs_norms(const OptimizerOptions& options) noexcept;

/// The scalar state of the optimizer: updates done, beta1^updates and beta2^updates. The powers are
/// running products, one multiplication per update rounded as IEEE 754 defines, because std::pow()
/// differs between mathematics libraries.
struct OptimizerScalars {
  std::uint64_t steps = 0;
  double beta1_power = 1;
  double beta2_power = 1;

  /// Begins the next update.
  void advance(const OptimizerOptions& options) noexcept {
    ++steps;
    beta1_power *= options.beta1;
    beta2_power *= options.beta2;
  }
};

/// Gradients and moments below these magnitudes are set to zero before they become denormal
/// numbers, which slow processors down a hundredfold: after two epochs of MNIST a step took 1.5
/// times as long. The effect on a step of Adam is below rate * 2^-55 / epsilon, with the defaults
/// 2.8e-13; so epsilon is at least 1e-12.
inline constexpr float min_gradient = 0x1p-56F;
inline constexpr float min_first_moment = 0x1p-80F;
inline constexpr float min_second_moment = 0x1p-120F;

/// A number that an optimizer keeps for each weight: the first is a running mean of the gradient
/// (m, or the momentum), the second of its square (v).
enum class Moment { first, second };

/// The names of the moments that an optimizer keeps, in the order of Moment: "m" and "v" of adam,
/// adamw and lamb; "momentum" of lars, and of sgd with momentum; none else.
std::vector<std::string> moment_names(const OptimizerOptions& options);

/// A tensor's part of the ranges of the parameter block that an optimizer updates.
struct UpdatedTensor {
  Range range;          ///< among the elements of all of them; empty if none of it is there
  bool vector = false;  ///< a bias or a gain: no weight decay, and no norm of its own
  bool cut = false;     ///< ranks of "model" have other parts of the tensor
  bool frozen = false;  ///< no update changes it, nor counts its gradient
};

class UpdatePasses;  // internal: the passes of an update

/// An optimizer's state of ranges of the parameter block, one after the other, on the processor or
/// on a device: what is saved and restored.
class OptimizerState {
 public:
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;
  virtual ~OptimizerState();

  const OptimizerScalars& scalars() const noexcept;
  void set_scalars(const OptimizerScalars& scalars) noexcept;

  /// The norm of the mean gradient of all weights in the last update, before it was scaled; nullopt
  /// without clip_norm.
  std::optional<double> gradient_norm() const noexcept;

  /// Copies one of its moments to `into`, or overwrites it; of the length of all ranges. Local;
  /// blocks.
  virtual void copy(Moment moment, std::span<float> into) = 0;
  virtual void restore(Moment moment, std::span<const float> from) = 0;

 protected:
  /// `tensors`: all of the block, in its order. Throws what require_valid() throws.
  OptimizerState(const OptimizerOptions& options, const std::vector<UpdatedTensor>& tensors);

  const std::unique_ptr<UpdatePasses> update_passes_;
};

/// True if the mean, over examples of weight `weight` (above 0) in all, of every gradient and its
/// square, which enter Adam's moments, are finite in float32. Local.
bool is_finite(std::span<const float> gradient_sums, double weight);

/// Sums of gradients over the examples of a step, of a contiguous range of the parameter block.
struct GradientSums {
  std::span<const float> sums;
  std::size_t first = 0;  ///< the index in the block of the first of these
};

/// How ranks add words, as integers. Empty functions: this rank has all.
struct RankSums {
  std::function<void(std::span<std::uint64_t>)> over_batch;  ///< ranks with other ranges
  std::function<void(std::span<std::uint64_t>)> over_model;  ///< ranks with other parts of tensors
};

/// Updates ranges of the parameter block, and keeps one moment or two for each weight.
///
///   g      gradient_sum * (1 / weight), times clip_norm / ||g|| where the norm over all weights
///          is greater; or cut to [-clip_value, clip_value]
///   rate   learning_rate * schedule.factor(step);  t counts updates from 1
///   sgd    g += decay w;  b <- momentum b + g;  w -= rate b;  nesterov: w -= rate (g + momentum b)
///   adam   g += decay w;  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
///          w -= rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
///   adamw  w <- w (1 - rate decay), then as adam without decay
///   lamb   m and v as adam without decay;  w -= rate (||w|| / ||r||) r, where
///          r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w
///   lars   b <- momentum b + rate trust (||w|| / (||g|| + decay ||w||)) (g + decay w);  w -= b
///
/// The norms of lamb and lars are those of a tensor. Where one is zero, and for vectors, the ratio
/// (with lars' trust) is 1. Decay is 0 for vectors.
///
/// Gradients and moments below min_gradient, min_first_moment and min_second_moment become zero.
/// Factors are computed in double, with b1^t and b2^t of OptimizerScalars, and rounded once; then
/// every operation is rounded to float32, in one order, without contraction. Norms are of exact
/// sums of squares, in integers, read with a relative error below 2^-51. So an
/// update depends neither on the vector width, nor on the division of the block among ranks and
/// threads, nor on how tensors are cut. Passes and sums of squares run on the rank's threads.
/// Source   Sutskever et al. 2013 (momentum, in PyTorch's form); Kingma & Ba 2015, alg. 1,
///          arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101; You et al. 2017 (LARS),
///          arXiv:1708.03888; You et al. 2020 (LAMB), alg. 2, arXiv:1904.00962.
class Optimizer final : public OptimizerState {
 public:
  /// For ranges of `weights` weights in all, with moments of zero; `tensors` are all of the block,
  /// in its order. Throws std::bad_alloc, and what require_valid() throws.
  Optimizer(std::size_t weights, const OptimizerOptions& options,
            const std::vector<UpdatedTensor>& tensors);

  /// The update of step `step` (from 0) of training. `weight` (above 0) is the sum of the weights
  /// of the examples that `gradients` were summed over; without weights their number. `values`: the
  /// block. `gradients`: of each of the ranges, in order.
  ///
  /// Returns false if a gradient is not finite or its square exceeds float32 (beyond 1.8e19), or if
  /// an updated weight, a norm or a tensor's rate is not finite.
  /// Errors   throws std::invalid_argument if the ranges do not have the constructor's length, or
  ///          are not in the block, or if `weight` is not above 0.
  /// Ranks    local, but where needs_norms(): then collective over the ranks of `sums`.
  bool update(std::span<float> values, std::span<const GradientSums> gradients, double weight,
              std::uint64_t step, const RankSums& sums);

  void copy(Moment moment, std::span<float> into) override;
  void restore(Moment moment, std::span<const float> from) override;

 private:
  std::size_t weights_;
  std::vector<std::size_t> ends_;  ///< of the tensors, in ascending order
  AlignedBuffer<float> first_;     // empty if the optimizer does not have it
  AlignedBuffer<float> second_;
};

}  // namespace lockstep::optim

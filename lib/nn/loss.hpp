// Loss functions on logits, weights of examples and classes, and sums of example results.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/nn/loss_formula.hpp"
#include "lockstep/numerics/matrix.hpp"

namespace lockstep::nn {

/// Sums over examples, not means, so tallies of pieces of any size can be added. The mean loss is
/// loss_sum / weight.
struct Tally {
  double loss_sum = 0;        ///< of per-example losses times their weights, in nats
  std::uint64_t correct = 0;  ///< number of examples that are predicted correctly: see Loss::run()
  double weight = 0;          ///< sum of the weights; without weights the number of examples
};

/// The result of one example: its loss times its weight, 1 if the prediction is correct, else 0,
/// and the weight. All are doubles so that they are sent in one message.
struct ExampleResult {
  double loss = 0;
  double correct = 0;
  double weight = 1;
};

/// The targets of some examples, of either kind.
struct Targets {
  Targets() = default;

  /// Labels [B], from a std::vector or any other contiguous range of them.
  template <std::convertible_to<std::span<const std::int32_t>> Labels>
  Targets(const Labels& of_examples) noexcept : labels(of_examples) {}

  Targets(std::span<const std::int32_t> of_labels, std::span<const float> of_values) noexcept
      : labels(of_labels), values(of_values) {}

  std::span<const std::int32_t> labels = {};
  std::span<const float> values = {};  ///< [B, Loss::target_width()] row-major
  /// [B], factors of the losses of examples, finite and at least 0; empty: each is 1. Loss::run()
  /// does not read them: its caller multiplies. An example of weight 0 adds 0 to losses and
  /// gradients, even if its own loss is not finite; its layers' outputs must be finite.
  std::span<const float> weights = {};
};

/// The first index of the greatest logit.
template <class Real>
std::size_t predicted_class(std::span<const Real> logits) noexcept;

/// softmax(z)[predicted_class(z)]: in [1/C, 1], or NaN if a logit is NaN or +infinity, or all are
/// -infinity. In float every operation is fixed, as in softmax_cross_entropy().
template <class Real>
Real greatest_probability(std::span<const Real> logits) noexcept;

/// The softmax of the logits, by the same operations.  [C] each. Local.
template <class Real>
void probabilities(std::span<const Real> logits, std::span<Real> softmax) noexcept;

/// log(sum(exp(z))) without overflow, by the same operations; the logarithm of softmax(z)[i] is
/// z[i] minus this.  [C], at least 1. Local.
template <class Real>
Real log_sum_exp(std::span<const Real> logits) noexcept;

/// Throws ConfigError if the number of labels is not `examples`, DataError if a label is outside
/// [0, classes). Examples are counted from `first`.
void require_labels(std::span<const std::int32_t> labels, std::size_t examples, std::size_t classes,
                    std::size_t first = 0);

/// 1 / (1 + exp(-z)), the probability of a label, by the same operations. Local.
template <class Real>
Real sigmoid(Real z) noexcept;

/// True if a label is predicted: its probability is above a half. Local.
template <class Real>
bool predicts_label(Real z) noexcept {
  return z > 0;
}

template <class Real>
class Loss;

/// Checks the targets of a loss for a network of `outputs`: labels with require_labels(); throws
/// ConfigError for labels in place of values and values in place of labels, and unless there are
/// examples * target_width(outputs) values, and a weight for each example or none; DataError if one
/// of TargetKind::flags is neither 0 nor 1, or a weight is below 0 or not finite. Examples are
/// counted from `first`.
template <class Real>
void require_targets(const Targets& targets, const Loss<Real>& loss, std::size_t examples,
                     std::size_t outputs, std::size_t first = 0);

/// Computes the loss -log softmax(z)[label] of every row, and whether its prediction is correct.
///
/// In float every operation is fixed: the sum of exponentials runs over the classes in order, and
/// exponential and logarithm are the library's own, of fixed operations. So a row's result is
/// bitwise identical on every processor.
///
/// Shapes   z [B, C] logits; labels [B] in [0, C); results [B]; dz [B, C] gets the gradient of the
///          *sum* of losses, softmax(z) - onehot(label), or is empty. B may be 0.
/// Errors   none: a row that is not finite has a loss that is not finite; the trainer checks it.
/// Ranks    local.
/// Source   Goodfellow et al. 2016, "Deep Learning", 6.2.2.3; the greatest logit is subtracted
///          first, so no exponential overflows.
template <class Real>
void softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels,
                           std::span<ExampleResult> results, Matrix<Real> dz = {});

/// A loss function; derive from it for a custom loss.
///
/// Rows are examples. A loss is canonical if the results of a row are one fixed expression of that
/// row and its target. Local; calls must not change its state.
template <class Real>
class Loss {
 public:
  Loss() = default;
  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;
  virtual ~Loss() = default;

  /// The name in checkpoints: "softmax cross-entropy". A custom loss must not use a built-in name.
  virtual const char* name() const noexcept = 0;

  /// The kind of target that run() compares with.
  virtual TargetKind target() const noexcept { return TargetKind::label; }

  /// Of values and flags: how many each example has, for a network of `outputs`; by default as
  /// many.
  virtual std::size_t target_width(std::size_t outputs) const noexcept { return outputs; }

  /// Computes every row's loss, and whether its prediction is correct (of values: 0; of flags: all
  /// of them); and the gradient of the *sum* of losses by the outputs, unless dz is empty.
  /// Shapes   z [B, C]; labels [B] in [0, C), or values [B, target_width(C)]; results [B]; dz
  ///          [B, C], or empty. B may be 0. Of results set `loss` and `correct` only. The caller
  ///          has checked the targets: require_targets().
  virtual void run(Matrix<const Real> z, const Targets& targets, std::span<ExampleResult> results,
                   Matrix<Real> dz) const = 0;
};

/// Internal: base of the built-in losses, whose formulas are the same on the processor and on
/// devices. Custom losses derive from Loss.
template <class Real>
class FormulaLoss : public Loss<Real> {
 public:
  const char* name() const noexcept final { return name_.c_str(); }
  TargetKind target() const noexcept final { return formula_.target; }
  void run(Matrix<const Real> z, const Targets& targets, std::span<ExampleResult> results,
           Matrix<Real> dz) const final;

  const LossFormula<Real>& formula() const noexcept { return formula_; }

 protected:
  FormulaLoss(std::string name, const LossFormula<Real>& formula)
      : name_(std::move(name)), formula_(formula) {}

 private:
  std::string name_;
  LossFormula<Real> formula_;
};

/// The name of the default loss of networks.
inline constexpr const char* default_loss = "softmax cross-entropy";

/// softmax_cross_entropy(), the default.
template <class Real>
class SoftmaxCrossEntropy final : public FormulaLoss<Real> {
 public:
  SoftmaxCrossEntropy()
      : FormulaLoss<Real>(default_loss, {TargetKind::label, CrossEntropy<Real>{}}) {}
};

/// Cross-entropy with the target (1 - smoothing) onehot(label) + smoothing / C in place of
/// onehot(label); the sum over the classes is in their order, every operation rounded.
/// Source   Szegedy et al. 2016, arXiv:1512.00567, section 7, in PyTorch's form.
template <class Real>
class SmoothedCrossEntropy final : public FormulaLoss<Real> {
 public:
  /// `smoothing` in (0, 1). Throws ConfigError.
  explicit SmoothedCrossEntropy(double smoothing);
};

/// The name of SmoothedCrossEntropy(smoothing): "softmax cross-entropy, smoothing 0.1".
std::string smoothed_loss(double smoothing);

/// The name of MeanSquaredError.
inline constexpr const char* squared_error = "mean squared error";

/// sum((z - onehot(label))^2) / C, in the order of the classes, every operation rounded; the
/// greatest output is the prediction.
template <class Real>
class MeanSquaredError final : public FormulaLoss<Real> {
 public:
  MeanSquaredError() : FormulaLoss<Real>(squared_error, {TargetKind::label, SquaredTerm{}}) {}
};

/// The name of the default loss of regression.
inline constexpr const char* regression_loss = "mean squared error of values";

/// sum((z - values)^2) / C, in the order of the outputs, every operation rounded.
template <class Real>
class RegressionLoss final : public FormulaLoss<Real> {
 public:
  RegressionLoss() : FormulaLoss<Real>(regression_loss, {TargetKind::values, SquaredTerm{}}) {}
};

/// The name of AbsoluteError.
inline constexpr const char* absolute_error = "mean absolute error of values";

/// sum(|z - values|) / C, in the order of the outputs, every operation rounded; the derivative of
/// |0| is 0.
template <class Real>
class AbsoluteError final : public FormulaLoss<Real> {
 public:
  AbsoluteError() : FormulaLoss<Real>(absolute_error, {TargetKind::values, AbsoluteTerm{}}) {}
};

/// sum(h(z - values)) / C, with h(d) = d^2 / 2 for |d| <= delta, else delta (|d| - delta / 2); in
/// the order of the outputs, every operation rounded.
/// Source   Huber 1964, "Robust estimation of a location parameter", in PyTorch's form.
template <class Real>
class HuberLoss final : public FormulaLoss<Real> {
 public:
  /// `delta`, rounded to Real, is finite and above 0. Throws ConfigError.
  explicit HuberLoss(double delta);
};

/// The name of HuberLoss(delta): "huber loss of values, delta 1.0".
std::string huber_loss(double delta);

/// The name of BinaryCrossEntropy.
inline constexpr const char* binary_cross_entropy = "binary cross-entropy";

/// sum(-y log(p) - (1 - y) log(1 - p)) / C, with p = sigmoid(z) and flags y, as
/// max(z, 0) - z y + log(1 + exp(-|z|)), which does not overflow; in the order of the outputs,
/// every operation rounded. An example is predicted correctly if all its labels are.
///
/// Source   Goodfellow et al. 2016, "Deep Learning", 6.2.2.2, in PyTorch's form.
template <class Real>
class BinaryCrossEntropy final : public FormulaLoss<Real> {
 public:
  BinaryCrossEntropy()
      : FormulaLoss<Real>(binary_cross_entropy, {TargetKind::flags, BinaryTerm{}}) {}
};

/// Returns the built-in loss of that name, with static lifetime; null: none. Any thread may call
/// it.
template <class Real>
const Loss<Real>* built_in_loss(std::string_view name);

/// The formula of `loss`; empty for a custom one. Local.
std::optional<LossFormula<float>> formula_of(const Loss<float>& loss);

/// Throws ConfigError for a custom loss with the name of a built-in one, or one not in UTF-8.
template <class Real>
void require_own_name(const Loss<Real>& loss);

/// Returns the sums over examples, in double: in order within a leaf of `leaf` examples, then in
/// the balanced binary tree over leaves (missing leaves are skipped). One fixed expression of the
/// results.
Tally sum_over_leaves(std::span<const ExampleResult> results, std::size_t leaf);

}  // namespace lockstep::nn

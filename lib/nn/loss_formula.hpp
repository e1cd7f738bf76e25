// The formulas of the built-in losses, once for the processor and for devices. The losses
// themselves, with their sources, are in loss.hpp.
//
// In float every operation is fixed. Functions are constexpr so that device code can call them, as
// those of strict_math.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "lockstep/numerics/strict_math.hpp"

namespace lockstep::nn {

/// What a loss compares the outputs of an example with.
enum class TargetKind : std::uint8_t {
  label,   ///< classification: the index of a class
  values,  ///< regression: a number for each output
  flags,   ///< several labels: for each output 1 if the example has its label, else 0
};

/// exp and log; in float by fixed operations.
constexpr float exponential(float x) noexcept { return strict_exp(x); }
constexpr float logarithm(float x) noexcept { return strict_log(x); }
inline double exponential(double x) noexcept { return std::exp(x); }
inline double logarithm(double x) noexcept { return std::log(x); }

template <class Real>
constexpr Real magnitude(Real x) noexcept {
  return x < 0 ? -x : x;
}

/// A loss or a gradient times the weight of its example: of weight 0 it is 0, even if it is not
/// finite.
template <class Real>
constexpr Real weighted(Real value, Real weight) noexcept {
  return weight == 0 ? Real{0} : value * weight;
}

/// sigmoid(z), from exp(-|z|), which is at most 1.
template <class Real>
constexpr Real sigmoid_from(Real z, Real small) noexcept {
  return z >= 0 ? 1 / (1 + small) : small / (1 + small);
}

/// log(1 + x) for x in [0, 1], without losing the digits of a small x.
/// Source   Kahan, as in Goldberg 1991, "What every computer scientist should know about
/// floating-point arithmetic", theorem 4.
template <class Real>
constexpr Real log_of_one_and(Real x) noexcept {
  const Real sum = 1 + x;
  return sum == 1 ? x : x * logarithm(sum) / (sum - 1);
}

/// SoftmaxCrossEntropy, and SmoothedCrossEntropy with `smoothing` above 0.
template <class Real>
struct CrossEntropy {
  Real smoothing = 0;

  /// The target of each class, to which 1 - smoothing is added for the label.
  constexpr Real each(std::size_t classes) const noexcept {
    return smoothing / static_cast<Real>(classes);
  }

  /// `own`: -log softmax(z)[label]; `all`: the sum of -log softmax(z) over the classes, in their
  /// order, which is used only with smoothing.
  constexpr Real loss(Real own, Real all, Real each) const noexcept {
    return smoothing == 0 ? own : (1 - smoothing) * own + each * all;
  }
  constexpr Real gradient(Real softmax, bool is_label, Real each) const noexcept {
    const Real rest = softmax - each;
    return is_label ? rest - (1 - smoothing) : rest;
  }
};

/// What one output adds to a loss that is the mean over the outputs, in their order, and its
/// derivative by the output.
template <class Real>
struct Term {
  Real value;
  Real derivative;
};

/// MeanSquaredError and RegressionLoss.
struct SquaredTerm {
  template <class Real>
  constexpr Term<Real> operator()(Real z, Real target) const noexcept {
    const Real distance = z - target;
    return {distance * distance, 2 * distance};
  }
};

/// AbsoluteError.
struct AbsoluteTerm {
  template <class Real>
  constexpr Term<Real> operator()(Real z, Real target) const noexcept {
    const Real distance = z - target;
    const auto sign = static_cast<Real>((distance > 0 ? 1 : 0) - (distance < 0 ? 1 : 0));
    return {magnitude(distance), sign};
  }
};

/// HuberLoss.
template <class Real>
struct HuberTerm {
  Real delta = 1;

  constexpr Term<Real> operator()(Real z, Real target) const noexcept {
    const Real distance = z - target;
    const Real size = magnitude(distance);
    if (size <= delta) return {distance * distance / 2, distance};
    return {delta * (size - delta / 2), distance > 0 ? delta : -delta};
  }
};

/// BinaryCrossEntropy.
struct BinaryTerm {
  template <class Real>
  constexpr Term<Real> operator()(Real z, Real flag) const noexcept {
    const Real small = exponential(-magnitude(z));
    const Real positive = z < 0 ? Real{0} : z;
    return {(positive - z * flag) + log_of_one_and(small), sigmoid_from(z, small) - flag};
  }
};

/// The formula of a built-in loss: CrossEntropy, or the mean of a term over the outputs. With
/// TargetKind::label the target of output j is 1 for the label, else 0.
template <class Real>
struct LossFormula {
  TargetKind target = TargetKind::label;
  std::variant<CrossEntropy<Real>, SquaredTerm, AbsoluteTerm, HuberTerm<Real>, BinaryTerm>
      function = {};
};

}  // namespace lockstep::nn

// Softmax cross-entropy on logits, and what is counted with it.
#pragma once

#include <cstdint>
#include <span>

#include "lib/numerics/matrix.hpp"

namespace lockstep::nn {

/// Sums over examples, never means: pieces of any size add up exactly as they should.
struct Tally {
  double loss_sum = 0;        ///< of per-example losses, in nats
  std::uint64_t correct = 0;  ///< examples whose greatest logit is that of their label
};

/// The first index of the greatest logit.
template <class Real>
std::size_t predicted_class(std::span<const Real> logits) noexcept;

/// The loss -log softmax(z)[label] of every row, summed, and the number of rows predicted right.
///
/// Shapes   z [B, C] logits; labels [B] in [0, C); dz [B, C] gets the gradient of the *sum* of
///          losses, softmax(z) - onehot(label); it may be z itself. B may be 0.
/// Errors   none: a row that is not finite gives a sum that is not finite, which the trainer sees.
/// Ranks    local.
/// Source   Goodfellow et al. 2016, "Deep Learning", 6.2.2.3; the greatest logit is subtracted
///          first, so no exponential overflows.
template <class Real>
Tally softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels,
                            Matrix<Real> dz);

/// The same without the gradient: for evaluation.
template <class Real>
Tally softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels);

}  // namespace lockstep::nn

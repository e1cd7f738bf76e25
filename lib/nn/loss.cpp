#include "lib/nn/loss.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace lockstep::nn {
namespace {

/// log(sum(exp(z))) without overflow; exact shape of every loss below.
template <class Real>
Real log_sum_exp(std::span<const Real> z) {
  const Real greatest = *std::max_element(z.begin(), z.end());
  Real sum = 0;
  for (const Real value : z) sum += std::exp(value - greatest);
  return greatest + std::log(sum);
}

template <class Real, class Row>
Tally tally_rows(Matrix<const Real> z, std::span<const std::int32_t> labels, Row visit) {
  assert(labels.size() == z.rows);
  Tally tally;
  for (std::size_t i = 0; i < z.rows; ++i) {
    const auto row = std::span<const Real>(z.row(i));
    const auto label = static_cast<std::size_t>(labels[i]);
    assert(label < row.size());
    const Real normaliser = log_sum_exp(row);
    tally.loss_sum += static_cast<double>(normaliser - row[label]);
    tally.correct += predicted_class(row) == label ? 1 : 0;
    visit(i, row, label, normaliser);
  }
  return tally;
}

}  // namespace

template <class Real>
std::size_t predicted_class(std::span<const Real> logits) noexcept {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

template <class Real>
Tally softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels,
                            Matrix<Real> dz) {
  assert(dz.rows == z.rows && dz.cols == z.cols);
  return tally_rows(z, labels, [&](std::size_t i, auto row, std::size_t label, Real normaliser) {
    const auto out = dz.row(i);
    for (std::size_t j = 0; j < out.size(); ++j) out[j] = std::exp(row[j] - normaliser);
    out[label] -= 1;
  });
}

template <class Real>
Tally softmax_cross_entropy(Matrix<const Real> z, std::span<const std::int32_t> labels) {
  return tally_rows(z, labels, [](auto&&...) {});
}

#define LOCKSTEP_INSTANTIATE(Real)                                                        \
  template std::size_t predicted_class(std::span<const Real>) noexcept;                   \
  template Tally softmax_cross_entropy(Matrix<const Real>, std::span<const std::int32_t>, \
                                       Matrix<Real>);                                     \
  template Tally softmax_cross_entropy(Matrix<const Real>, std::span<const std::int32_t>);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep::nn

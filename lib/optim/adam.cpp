#include "lockstep/optim/adam.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#ifndef LOCKSTEP_ADAM_SPANS  // once, not per target
#define LOCKSTEP_ADAM_SPANS
namespace lockstep::optim {
namespace {

/// The arrays of one step: four of `count` floats.
struct Spans {
  float* values;
  const float* gradient_sums;
  float* first;
  float* second;
  std::size_t count;
};

}  // namespace
}  // namespace lockstep::optim
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/optim/adam.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Zero where |value| < limit.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V flush_small_to_zero(D d, V value, float limit) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), hn::Set(d, limit)), value);
}

/// Updates Lanes(d) weights from `i` on. Returns all-ones where the second moment is finite; it is
/// not for a non-finite gradient or one whose square overflows.
template <class D>
HWY_INLINE hn::Mask<D> update_at(D d, const AdamFactors& f, const Spans& s, std::size_t i) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  const auto mean = hn::Mul(hn::LoadU(d, s.gradient_sums + i), constant(f.inverse_examples));
  const auto g = flush_small_to_zero(d, mean, min_gradient);
  const auto m =
      hn::Add(hn::Mul(constant(f.beta1), hn::LoadU(d, s.first + i)), hn::Mul(constant(f.rest1), g));
  const auto v = hn::Add(hn::Mul(constant(f.beta2), hn::LoadU(d, s.second + i)),
                         hn::Mul(constant(f.rest2), hn::Mul(g, g)));
  const auto kept_m = flush_small_to_zero(d, m, min_first_moment);
  const auto kept_v = flush_small_to_zero(d, v, min_second_moment);
  hn::StoreU(kept_m, d, s.first + i);
  hn::StoreU(kept_v, d, s.second + i);
  const auto corrected_v = hn::Mul(kept_v, constant(f.inverse_correction2));
  const auto root = hn::Sqrt(corrected_v);
  const auto step =
      hn::Div(hn::Mul(kept_m, constant(f.corrected_rate)), hn::Add(root, constant(f.epsilon)));
  hn::StoreU(hn::Sub(hn::LoadU(d, s.values + i), step), d, s.values + i);
  return hn::IsFinite(corrected_v);
}

bool adam(const AdamFactors& factors, const Spans& spans) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(wide);
  auto finite = hn::FirstN(wide, lanes);
  std::size_t i = 0;
  for (; i + lanes <= spans.count; i += lanes) {
    finite = hn::And(finite, update_at(wide, factors, spans, i));
  }
  bool all = hn::AllTrue(wide, finite);
  for (; i < spans.count; ++i)
    all = hn::AllTrue(single, update_at(single, factors, spans, i)) && all;
  return all;
}

}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {

HWY_EXPORT(adam);

AdamFactors adam_factors(const AdamOptions& options, const AdamState& state,
                         std::uint64_t examples) {
  return {.inverse_examples = static_cast<float>(1 / static_cast<double>(examples)),
          .beta1 = static_cast<float>(options.beta1),
          .rest1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .rest2 = static_cast<float>(1 - options.beta2),
          .corrected_rate = static_cast<float>(options.learning_rate / (1 - state.beta1_power)),
          .inverse_correction2 = static_cast<float>(1 / (1 - state.beta2_power)),
          .epsilon = static_cast<float>(options.epsilon)};
}

bool is_finite(std::span<const float> gradient_sums, std::uint64_t examples) {
  const auto inverse_examples = static_cast<float>(1 / static_cast<double>(examples));
  bool all = true;
  for (const float sum : gradient_sums) {
    const float mean = sum * inverse_examples;
    all &= mean * mean <= std::numeric_limits<float>::max();
  }
  return all;
}

Adam::Adam(std::size_t weights, const AdamOptions& options)
    : options_(options), first_(weights), second_(weights) {}

bool Adam::update(std::span<float> values, std::span<const float> gradient_sums,
                  std::uint64_t examples) {
  if (values.size() != first_.size() || gradient_sums.size() != first_.size() || examples == 0) {
    throw std::invalid_argument("Adam::update: spans differ from the moments, or no examples");
  }
  state_.advance(options_);
  const AdamFactors factors = adam_factors(options_, state_, examples);
  return HWY_DYNAMIC_DISPATCH(adam)(
      factors, {values.data(), gradient_sums.data(), first_.data(), second_.data(), values.size()});
}

void Adam::copy(Moment moment, std::span<float> into) {
  const auto& from = moment == Moment::first ? first_ : second_;
  std::copy_n(from.data(), from.size(), into.begin());
}

void Adam::restore(const AdamState& scalars, std::span<const float> first,
                   std::span<const float> second) {
  state_ = scalars;
  std::copy_n(first.begin(), first_.size(), first_.data());
  std::copy_n(second.begin(), second_.size(), second_.data());
}

}  // namespace lockstep::optim
#endif

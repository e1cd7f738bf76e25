#include "lib/optim/adam_kernel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/optim/adam_kernel.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must stand first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Zero instead of what is nearer to zero than `least`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V without_dust(D d, V value, float least) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), hn::Set(d, least)), value);
}

/// Lanes(d) weights from `i` on. Returns all-ones where the second moment is finite, which it is
/// for no gradient that is not finite, nor for one whose square overflows.
template <class D>
HWY_INLINE hn::Mask<D> update_at(D d, const AdamFactors& f, const AdamRanges& s, std::size_t i) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  const auto mean = hn::Mul(hn::LoadU(d, s.gradient_sums + i), constant(f.inverse_examples));
  const auto g = without_dust(d, mean, least_gradient);
  const auto m =
      hn::Add(hn::Mul(constant(f.beta1), hn::LoadU(d, s.first + i)), hn::Mul(constant(f.rest1), g));
  const auto v = hn::Add(hn::Mul(constant(f.beta2), hn::LoadU(d, s.second + i)),
                         hn::Mul(constant(f.rest2), hn::Mul(g, g)));
  const auto kept_m = without_dust(d, m, least_first_moment);
  const auto kept_v = without_dust(d, v, least_second_moment);
  hn::StoreU(kept_m, d, s.first + i);
  hn::StoreU(kept_v, d, s.second + i);
  const auto corrected_v = hn::Mul(kept_v, constant(f.inverse_correction2));
  const auto root = hn::Sqrt(corrected_v);
  const auto step =
      hn::Div(hn::Mul(kept_m, constant(f.corrected_rate)), hn::Add(root, constant(f.epsilon)));
  hn::StoreU(hn::Sub(hn::LoadU(d, s.values + i), step), d, s.values + i);
  return hn::IsFinite(corrected_v);
}

bool adam(const AdamFactors& factors, const AdamRanges& ranges) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(wide);
  auto finite = hn::FirstN(wide, lanes);
  std::size_t i = 0;
  for (; i + lanes <= ranges.count; i += lanes) {
    finite = hn::And(finite, update_at(wide, factors, ranges, i));
  }
  bool all = hn::AllTrue(wide, finite);
  for (; i < ranges.count; ++i)
    all = hn::AllTrue(single, update_at(single, factors, ranges, i)) && all;
  return all;
}

}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {

HWY_EXPORT(adam);

bool adam_kernel(const AdamFactors& factors, const AdamRanges& ranges) {
  return HWY_DYNAMIC_DISPATCH(adam)(factors, ranges);
}

}  // namespace lockstep::optim
#endif

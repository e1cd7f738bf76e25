// The exponential of many numbers, in vectors.
#include "lockstep/numerics/strict_math.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/numerics/strict_math.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<double> wide_tag;
constexpr hn::Rebind<float, decltype(wide_tag)> float_tag;
constexpr hn::Rebind<std::int32_t, decltype(wide_tag)> int_tag;
constexpr hn::Rebind<std::int64_t, decltype(wide_tag)> bits_tag;

/// The operations of strict_exp(float). Arguments are clamped to ExpRange, whose ends have the same
/// results as all beyond them.
HWY_INLINE hn::Vec<decltype(float_tag)> exp_of(hn::Vec<decltype(float_tag)> x) {
  constexpr auto series = exponential_series();
  const auto from = hn::Set(float_tag, ExpRange::least);
  const auto wide =
      hn::PromoteTo(wide_tag, hn::Min(hn::Max(x, from), hn::Set(float_tag, ExpRange::greatest)));
  const auto scaled = hn::Mul(wide, hn::Set(wide_tag, Log2::inverse));
  const auto half = hn::CopySign(hn::Set(wide_tag, 0.5), scaled);
  const auto exponent = hn::DemoteTo(int_tag, hn::Add(scaled, half));
  const auto steps = hn::PromoteTo(wide_tag, exponent);
  const auto rest = hn::Sub(hn::Sub(wide, hn::Mul(steps, hn::Set(wide_tag, Log2::high))),
                            hn::Mul(steps, hn::Set(wide_tag, Log2::low)));
  const auto biased =
      hn::Add(hn::PromoteTo(bits_tag, exponent), hn::Set(bits_tag, DoubleBits::bias));
  const auto power = hn::BitCast(wide_tag, hn::ShiftLeft<DoubleBits::mantissa>(biased));
  auto sum = hn::Set(wide_tag, series[series.size() - 1]);
  for (std::size_t n = series.size() - 1; n > 0; --n) {
    sum = hn::Add(hn::Mul(sum, rest), hn::Set(wide_tag, series[n - 1]));
  }
  const auto nan = hn::Set(float_tag, std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(x), nan, hn::DemoteTo(float_tag, hn::Mul(sum, power)));
}

void exp_of_all(std::span<float> values) {
  const std::size_t lanes = hn::Lanes(float_tag);
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    float* const some = values.data() + i;
    hn::StoreU(exp_of(hn::LoadU(float_tag, some)), float_tag, some);
  }
  for (; i < values.size(); ++i) values[i] = strict_exp(values[i]);
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep {
namespace {
HWY_EXPORT(exp_of_all);
}  // namespace

void strict_exp(std::span<float> values) noexcept { HWY_DYNAMIC_DISPATCH(exp_of_all)(values); }

}  // namespace lockstep
#endif

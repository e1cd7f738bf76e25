#include "lib/distribute/pieces_math.hpp"

#include "lib/base/aligned.hpp"
#include "lib/numerics/strict.hpp"

namespace lockstep::sharding {

Tensor<float> product(const Tensor<float>& a, const Tensor<float>& b) {
  const std::size_t rows = a.shape()[0];
  const std::size_t inner = a.shape()[1];
  const std::size_t columns = b.shape()[1];
  std::vector<float> values(rows * columns);
  if (!values.empty() && inner > 0) {
    const Panels panels{inner, columns};
    AlignedBuffer<float> weights(panels.size());
    to_panels({b.values().data(), inner, columns}, panels, weights.span());
    const AlignedBuffer<float> bias(round_to_unit(columns));
    strict_products(Simd::automatic)
        .forward({a.values().data(), rows, inner}, {panels, weights.span()}, bias.span(),
                 Activation::identity, {values.data(), rows, columns}, Chain::begins);
  }
  return {{rows, columns}, std::move(values)};
}

Walk::Walk(const Shape& operand, const Shape& result) {
  std::size_t stride = 1;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const bool missing = i >= operand.size();
    const std::size_t length = missing ? 1 : operand[operand.size() - 1 - i];
    axes_.push_back({result[result.size() - 1 - i], length == 1 ? 0 : stride});
    stride *= length;
  }
}

void Walk::next() noexcept {
  for (auto& axis : axes_) {  // the last axis first
    index_ += axis.stride;
    if (++axis.at < axis.length) return;
    index_ -= axis.stride * axis.length;
    axis.at = 0;
  }
}

}  // namespace lockstep::sharding

#include "lib/nn/layers.hpp"

#include <type_traits>

namespace lockstep::nn {
namespace {

template <class Real>
struct Make {
  const Extent& input;

  std::unique_ptr<Layer<Real>> operator()(const Dense& spec) const {
    return make_dense<Real>(spec, input);
  }
  std::unique_ptr<Layer<Real>> operator()(const Convolution& spec) const {
    return make_convolution<Real>(spec, input);
  }
  std::unique_ptr<Layer<Real>> operator()(const Pool& spec) const {
    return make_pool<Real>(spec, input);
  }
  std::unique_ptr<Layer<Real>> operator()(const Flatten&) const { return nullptr; }
  std::unique_ptr<Layer<Real>> operator()(const Dropout& spec) const {
    return make_dropout<Real>(spec, input);
  }
  std::unique_ptr<Layer<Real>> operator()(const LayerNorm&) const {
    return make_layer_norm<Real>(input);
  }
  std::unique_ptr<Layer<Real>> operator()(const BatchNorm& spec) const {
    return make_batch_norm<Real>(spec, input);
  }
  std::unique_ptr<Layer<Real>> operator()(const Custom& spec) const {
    if constexpr (std::is_same_v<Real, float>) {
      return spec.kind->make(input);
    } else {
      return spec.kind->make_double(input);
    }
  }
};

}  // namespace

template <class Real>
std::vector<NumberedLayer<Real>> make_layers(const NetworkShape& shape) {
  std::vector<NumberedLayer<Real>> layers;
  const auto sizes = shape.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto layer = std::visit(Make<Real>{sizes[i].input}, shape.layers[i]);
    if (layer != nullptr) layers.push_back({i, std::move(layer)});
  }
  return layers;
}

template std::vector<NumberedLayer<float>> make_layers(const NetworkShape&);
template std::vector<NumberedLayer<double>> make_layers(const NetworkShape&);

}  // namespace lockstep::nn

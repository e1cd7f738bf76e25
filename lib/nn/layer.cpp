#include "lockstep/nn/layer.hpp"

#include <stdexcept>
#include <string>
#include <type_traits>

namespace lockstep::nn {
namespace {

/// Buffers are sized by the layer kind, so the layer must match it.
template <class Real>
std::unique_ptr<Layer<Real>> checked_layer(std::unique_ptr<Layer<Real>> layer,
                                           const LayerKind& kind, const FeatureShape& input) {
  const auto refuse = [&](const std::string& problem) {
    throw std::invalid_argument("LayerKind '" + kind.name() + "': " + problem);
  };
  if (layer == nullptr) refuse("it makes no layer");
  const std::size_t outputs = kind.output_of(input).size();
  if (layer->inputs() != input.size() || layer->outputs() != outputs) {
    refuse("its layer leads from " + std::to_string(layer->inputs()) + " values to " +
           std::to_string(layer->outputs()) + ", where " + std::to_string(input.size()) + " and " +
           std::to_string(outputs) + " are");
  }
  if (layer->sums_over_batch() != kind.sums_over_batch()) {
    refuse("sums_over_batch() is not that of its layer");
  }
  return layer;
}

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Flatten& /*spec*/, const FeatureShape& /*input*/) {
  return nullptr;
}

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Custom& spec, const FeatureShape& input) {
  if constexpr (std::is_same_v<Real, float>) {
    return checked_layer(spec.kind->make(input), *spec.kind, input);
  } else {
    return checked_layer(spec.kind->make_double(input), *spec.kind, input);
  }
}

}  // namespace

template <class Real>
std::vector<NumberedLayer<Real>> make_layers(const NetworkShape& shape) {
  std::vector<NumberedLayer<Real>> layers;
  const auto sizes = shape.sizes();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<FeatureShape>& inputs = sizes[i].inputs;
    auto layer = std::visit(
        [&]<class Function>(const Function& function) {
          if constexpr (Merges<Function>) {
            return make_layer<Real>(function, std::span(inputs));
          } else {
            return make_layer<Real>(function, inputs[0]);
          }
        },
        shape.layers[i].function);
    if (layer != nullptr) layers.push_back({i, std::move(layer)});
  }
  return layers;
}

template std::vector<NumberedLayer<float>> make_layers(const NetworkShape&);
template std::vector<NumberedLayer<double>> make_layers(const NetworkShape&);

}  // namespace lockstep::nn

#include "lib/nn/network_shape.hpp"

#include <algorithm>

#include "lib/base/errors.hpp"

namespace lockstep::nn {
namespace {

bool is_dense(const LayerSpec& layer, Activation activation) {
  const auto* dense = std::get_if<Dense>(&layer);
  return dense != nullptr && dense->activation == activation;
}

}  // namespace

NetworkShape::NetworkShape(std::size_t feature_count, const std::vector<std::size_t>& hidden,
                           std::size_t class_count)
    : input(flat(feature_count)), features(feature_count), classes(class_count) {
  for (const std::size_t width : hidden) layers.emplace_back(Dense{width, Activation::relu});
  layers.emplace_back(Dense{classes, Activation::identity});
}

NetworkShape::NetworkShape(const Extent& from, std::vector<LayerSpec> hidden,
                           std::size_t class_count)
    : input(from), layers(std::move(hidden)), features(from.size()), classes(class_count) {
  layers.emplace_back(Dense{classes, Activation::identity});
  Extent extent = input;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    try {
      extent = output_of(layers[i], extent);
    } catch (const ConfigError& error) {
      const bool last = i + 1 == layers.size();
      throw ConfigError(
          (last ? "the last layer, to the classes, " : "layer " + std::to_string(i + 1) + " (") +
          text_of(layers[i]) + (last ? ": " : "): ") + error.what());
    }
  }
}

bool NetworkShape::is_mlp() const {
  return !input.image && !layers.empty() && is_dense(layers.back(), Activation::identity) &&
         std::all_of(layers.begin(), layers.end() - 1,
                     [](const LayerSpec& layer) { return is_dense(layer, Activation::relu); });
}

std::vector<std::size_t> NetworkShape::widths() const {
  std::vector<std::size_t> all = {features};
  for (const LayerSize& size : sizes()) all.push_back(size.output.size());
  return all;
}

std::vector<LayerSize> NetworkShape::sizes() const {
  std::vector<LayerSize> all;
  Extent extent = input;
  for (const LayerSpec& layer : layers) {
    const Extent output = output_of(layer, extent);
    all.push_back({extent, output, weights_of(layer, extent)});
    extent = output;
  }
  return all;
}

double NetworkShape::weights() const {
  double sum = 0;
  for (const LayerSize& size : sizes()) sum += size.weights;
  return sum;
}

double NetworkShape::row_values() const {
  auto values = static_cast<double>(features);
  const auto all = sizes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::holds_alternative<Flatten>(layers[i])) continue;
    values += 2 * static_cast<double>(all[i].output.size());  // its output, and the gradient by it
  }
  return values;
}

double NetworkShape::exchanged_values() const {
  const auto all = sizes();
  double values = all.empty() || all[0].weights > 0 ? 0 : static_cast<double>(features);
  for (const LayerSize& size : all) {
    if (size.weights == 0) continue;
    values += static_cast<double>(size.input.size()) + static_cast<double>(size.output.size());
  }
  return values;
}

bool NetworkShape::sums_over_batch() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return nn::sums_over_batch(layer); });
}

std::string NetworkShape::text() const {
  std::string text = std::to_string(features);
  if (is_mlp()) {
    const auto all = widths();
    for (std::size_t i = 1; i < all.size(); ++i) text += "-" + std::to_string(all[i]);
    return text;
  }
  if (input.image) {
    text = std::to_string(input.rows) + "x" + std::to_string(input.columns) + "x" +
           std::to_string(input.channels);
  }
  for (const LayerSpec& layer : layers) text += ", " + text_of(layer);
  return text;
}

std::vector<LayerSpec> lenet_layers() {
  return {Convolution{20, 5, Padding::valid, Activation::relu},
          Pool{Pooling::max, 2},
          Convolution{50, 5, Padding::valid, Activation::relu},
          Pool{Pooling::max, 2},
          Flatten{},
          Dense{500, Activation::relu}};
}

}  // namespace lockstep::nn

// Sizes and properties of a layer, whatever its function.
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/nn/custom_layer.hpp"
#include "lockstep/nn/network_shape.hpp"

namespace lockstep::nn {
namespace {

void require_one(std::span<const FeatureShape> inputs) {
  if (inputs.size() == 1) return;
  throw ConfigError("takes one input, but 'from' names " + std::to_string(inputs.size()),
                    "join them with a layer of kind = \"add\" or kind = \"concatenate\"");
}

}  // namespace

void require_names(const CustomSizes& sizes) {
  for (std::size_t i = 0; i < sizes.weights.size(); ++i) {
    const std::string& name = sizes.weights[i].name;
    const std::string number = std::to_string(i + 1);
    const char* const remedy = "give each of CustomSizes::weights a name of its own";
    if (name.empty()) throw ConfigError("its weights " + number + " have no name", remedy);
    for (std::size_t j = 0; j < i; ++j) {
      if (sizes.weights[j].name != name) continue;
      throw ConfigError("its weights " + std::to_string(j + 1) + " and " + number +
                            " are both named '" + name + "'",
                        remedy);
    }
  }
}

FeatureShape output_of(const LayerSpec& layer, std::span<const FeatureShape> inputs) {
  return std::visit(
      [&]<class Function>(const Function& function) {
        if constexpr (Merges<Function>) {
          return function.output_of(inputs);
        } else {
          require_one(inputs);
          return function.output_of(inputs[0]);
        }
      },
      layer.function);
}

double weights_of(const LayerSpec& layer, std::span<const FeatureShape> inputs) {
  return std::visit(
      [&](const auto& function) -> double {
        if constexpr (requires { function.weights(inputs[0]); }) return function.weights(inputs[0]);
        return 0;
      },
      layer.function);
}

double multiply_adds_of(const LayerSpec& layer, std::span<const FeatureShape> inputs) {
  return std::visit(
      [&](const auto& function) -> double {
        if constexpr (requires { function.multiply_adds(inputs[0]); }) {
          return function.multiply_adds(inputs[0]);
        }
        return 0;
      },
      layer.function);
}

double trained_weights_of(const LayerSpec& layer, std::span<const FeatureShape> inputs) {
  if (layer.frozen) return 0;
  return std::visit(
      [&](const auto& function) -> double {
        double weights = weights_of(layer, inputs);
        if constexpr (requires { function.running_statistics(inputs[0]); }) {
          weights -= function.running_statistics(inputs[0]);
        }
        return weights;
      },
      layer.function);
}

bool sums_over_batch(const LayerSpec& layer) {
  if (layer.frozen) return false;
  return std::visit(
      [](const auto& function) {
        if constexpr (requires { function.sums_over_batch(); }) return function.sums_over_batch();
        return false;
      },
      layer.function);
}

std::string text_of(const FeatureShape& shape) {
  if (!shape.image) return std::to_string(shape.size()) + " values";
  return std::to_string(shape.rows) + "x" + std::to_string(shape.columns) + "x" +
         std::to_string(shape.channels);
}

std::string text_of(const LayerSpec& layer) {
  return std::visit([](const auto& function) { return function.text(); }, layer.function);
}

}  // namespace lockstep::nn

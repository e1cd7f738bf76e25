#include "lockstep/nn/network_shape.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/nn/custom_layer.hpp"
#include "lockstep/nn/layer.hpp"

namespace lockstep::nn {

// Sizes and properties of a layer, whatever its function.

namespace {

void require_one(std::span<const FeatureShape> inputs) {
  if (inputs.size() == 1) return;
  throw ConfigError("takes one input, but 'from' names " + std::to_string(inputs.size()),
                    "join them with a layer of kind = \"add\" or kind = \"concatenate\"");
}

}  // namespace

FeatureShape output_of(const LayerSpec& layer, std::span<const FeatureShape> inputs) {
  require_valid(layer.function);
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

bool is_flatten(const LayerSpec& layer) { return std::holds_alternative<Flatten>(layer.function); }

std::string text_of(const FeatureShape& shape) {
  if (!shape.image) return std::to_string(shape.size()) + " values";
  return std::to_string(shape.rows) + "x" + std::to_string(shape.columns) + "x" +
         std::to_string(shape.channels);
}

std::string text_of(const LayerSpec& layer) {
  return std::visit([](const auto& function) { return function.text(); }, layer.function);
}

// The network.

namespace {

bool is_dense(const LayerSpec& layer, Activation activation) {
  const auto* dense = std::get_if<Dense>(&layer.function);
  return dense != nullptr && dense->activation == activation;
}

bool is_embedding(const LayerSpec& layer) {
  return std::holds_alternative<Embedding>(layer.function);
}

/// Where errors of a layer are: "run.toml:12: layer 3 (add) 'sum': ".
std::string place_text(const NetworkShape& shape, std::size_t number) {
  const LayerSpec& layer = shape.layers[number];
  const std::string place = layer.place.empty() ? "" : layer.place + ": ";
  if (number + 1 < shape.layers.size()) return place + shape.layer_text(number) + ": ";
  return place + "the last layer, to the classes, " + text_of(layer) + ": ";
}

/// Throws ConfigError, with the reason only, if a layer's name is invalid or that of another.
void require_unique_name(const std::vector<LayerSpec>& layers, std::size_t number) {
  const std::string& name = layers[number].name;
  if (name.empty()) return;
  require_layer_name(name);
  for (std::size_t j = 0; j < number; ++j) {
    if (layers[j].name != name) continue;
    throw ConfigError(
        "layer " + std::to_string(j + 1) + " (" + text_of(layers[j]) + ") has the same name",
        "give them different names");
  }
}

/// The value that `name` in 'from' of layer `number` is: 0 for the input, j + 1 for layer j.
/// Throws ConfigError, with the reason only.
std::size_t value_named(const std::string& name, const std::vector<LayerSpec>& layers,
                        std::size_t number) {
  if (name == input_name) return 0;
  for (std::size_t j = 0; j < number; ++j) {
    if (layers[j].name == name) return j + 1;
  }
  const std::string from = "from: '" + name + "' ";
  if (layers[number].name == name) {
    throw ConfigError(from + "is the layer itself", "name layers that come before it");
  }
  for (std::size_t j = number + 1; j < layers.size(); ++j) {
    if (layers[j].name != name) continue;
    throw ConfigError(from + "is layer " + std::to_string(j + 1) + " (" + text_of(layers[j]) +
                          "), which comes later",
                      "move it before the layers that take its output; there are no loops");
  }
  std::vector<std::string> known = {input_name};
  for (std::size_t j = 0; j < number; ++j) {
    if (!layers[j].name.empty()) known.push_back(layers[j].name);
  }
  throw ConfigError(
      from + "is the name of no layer",
      did_you_mean(nearest(name, known), "give an earlier layer this name, or take 'input'"));
}

/// The value (LayerSize::from) of each input of layer `number`, flatten included.
std::vector<std::size_t> sources_of(const std::vector<LayerSpec>& layers, std::size_t number) {
  std::vector<std::size_t> values;
  for (const std::string& name : layers[number].from) {
    values.push_back(value_named(name, layers, number));
  }
  if (values.empty()) values.push_back(number);
  return values;
}

/// " as a of b, c frozen": the name and the inputs of a layer, where they are given.
std::string wiring(const LayerSpec& layer) {
  std::string text = layer.name.empty() ? "" : " as " + layer.name;
  if (!layer.from.empty()) text += " of " + joined(layer.from);
  if (layer.frozen) text += " frozen";
  return text;
}

}  // namespace

NetworkShape::NetworkShape(std::size_t feature_count, const std::vector<std::size_t>& hidden,
                           std::size_t class_count)
    : input(flat(feature_count)), features(feature_count), classes(class_count) {
  for (const std::size_t width : hidden) layers.emplace_back(Dense{width, Activation::relu});
  layers.emplace_back(Dense{classes, Activation::identity});
  sizes();
}

NetworkShape::NetworkShape(const FeatureShape& from, std::vector<LayerSpec> hidden,
                           std::size_t class_count)
    : input(from), layers(std::move(hidden)), features(from.size()), classes(class_count) {
  layers.emplace_back(Dense{classes, Activation::identity});
  sizes();
  std::vector<bool> is_used(layers.size() + 1);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const std::size_t value : sources_of(layers, i)) is_used[value] = true;
  }
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    if (is_used[i + 1]) continue;
    throw ConfigError(place_text(*this, i) + "no layer takes its output",
                      "leave it out, or name it in 'from' of a later layer");
  }
}

bool NetworkShape::is_mlp() const {
  const bool says_more = std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
    return layer.frozen || !layer.name.empty();
  });
  return !input.image && !says_more && !layers.empty() &&
         is_dense(layers.back(), Activation::identity) &&
         std::all_of(layers.begin(), layers.end() - 1,
                     [](const LayerSpec& layer) { return is_dense(layer, Activation::relu); });
}

std::vector<std::size_t> NetworkShape::widths() const {
  std::vector<std::size_t> all = {features};
  for (const LayerSize& size : sizes()) all.push_back(size.output.size());
  return all;
}

std::vector<LayerSize> NetworkShape::sizes() const {
  if (features == 0) throw ConfigError("a network of 0 features", "give at least 1");
  std::vector<LayerSize> all;
  std::vector<FeatureShape> shapes = {input};  // of each value
  std::vector<std::size_t> values = {0};       // a flatten's is the value before it
  for (std::size_t i = 0; i < layers.size(); ++i) {
    try {
      require_unique_name(layers, i);
      LayerSize size;
      for (const std::size_t source : sources_of(layers, i)) {
        size.from.push_back(values[source]);
        size.inputs.push_back(shapes[source]);
      }
      if (is_embedding(layers[i]) && size.from[0] != 0) {
        throw ConfigError("takes the network's input, not the output of a layer",
                          "put it first, or give it from = \"input\"");
      }
      size.output = output_of(layers[i], size.inputs);
      size.weights = weights_of(layers[i], size.inputs);
      shapes.push_back(size.output);
      values.push_back(is_flatten(layers[i]) ? size.from[0] : i + 1);
      all.push_back(std::move(size));
    } catch (const ConfigError& error) {
      throw ConfigError(place_text(*this, i) + error.problem(), error.remedy());
    }
  }
  return all;
}

double NetworkShape::weights() const {
  double sum = 0;
  for (const LayerSize& size : sizes()) sum += size.weights;
  return sum;
}

double NetworkShape::trained_weights() const {
  const auto all = sizes();
  double sum = 0;
  for (std::size_t i = 0; i < all.size(); ++i) sum += trained_weights_of(layers[i], all[i].inputs);
  return sum;
}

double NetworkShape::row_values() const {
  const auto all = sizes();
  const auto uses = uses_of_values(*this, all);
  auto values = static_cast<double>(features);
  std::size_t shared = 0;  // see Scratch::contribution
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_flatten(layers[i])) continue;
    values += 2 * static_cast<double>(all[i].output.size());  // its output and its gradient
    if (uses[i + 1] > 1) shared = std::max(shared, all[i].output.size());
  }
  return values + static_cast<double>(shared);
}

double NetworkShape::window_values(std::size_t rows, std::size_t leaf, std::size_t threads) const {
  const auto all = sizes();
  double most = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto* const spec = std::get_if<Convolution>(&layers[i].function);
    if (spec == nullptr) continue;
    const auto kernel = static_cast<double>(spec->kernel);
    const double each = static_cast<double>(all[i].output.positions()) * kernel * kernel *
                        static_cast<double>(all[i].inputs[0].channels);
    const auto bounded = static_cast<std::size_t>(std::min(each, 0x1p40));
    std::size_t together = cached_rows(bounded, threads);
    if (leaf > 0 && !layers[i].frozen) together = std::max(together, piece_rows(leaf, bounded));
    most = std::max(most, static_cast<double>(std::min(rows, together)) * each);
  }
  return most;
}

double NetworkShape::exchanged_values() const {
  std::vector<bool> is_counted(layers.size() + 1);
  is_counted[0] = true;
  auto values = static_cast<double>(features);
  const auto all = sizes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const LayerSize& size = all[i];
    if (size.weights == 0 || layers[i].frozen) continue;
    if (!is_counted[size.from[0]]) values += static_cast<double>(size.inputs[0].size());
    is_counted[size.from[0]] = true;
    values += static_cast<double>(size.output.size());
  }
  return values;
}

bool NetworkShape::sums_over_batch() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return nn::sums_over_batch(layer); });
}

std::string NetworkShape::text() const {
  if (is_mlp()) return joined(widths(), "-");
  std::string text = input.image ? text_of(input) : std::to_string(features);
  constexpr std::size_t max_listed = 16;
  constexpr std::size_t begin = 6;
  const std::size_t count = layers.size();
  const auto list = [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i)
      text += ", " + text_of(layers[i]) + wiring(layers[i]);
  };
  if (count <= max_listed) {
    list(0, count);
    return text;
  }
  list(0, begin);
  text += ", " + std::to_string(count - begin - 2) + " more layers";
  list(count - 2, count);
  return text;
}

std::string NetworkShape::layer_text(std::size_t number) const {
  const LayerSpec& layer = layers[number];
  return "layer " + std::to_string(number + 1) + " (" + text_of(layer) + ")" +
         (layer.name.empty() ? "" : " '" + layer.name + "'");
}

std::vector<std::size_t> uses_of_values(const NetworkShape& shape,
                                        std::span<const LayerSize> sizes) {
  std::vector<std::size_t> uses(sizes.size() + 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_flatten(shape.layers[i])) continue;
    for (const std::size_t value : sizes[i].from) ++uses[value];
  }
  return uses;
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

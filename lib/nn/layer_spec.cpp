#include "lib/nn/layer_spec.hpp"

#include "lib/base/errors.hpp"

namespace lockstep::nn {
namespace {

constexpr double most_values = 1099511627776.0;  // 2^40 of one example: 4 TB

std::string image_text(const Extent& extent) {
  return std::to_string(extent.rows) + "x" + std::to_string(extent.columns) + "x" +
         std::to_string(extent.channels);
}

void require_image(const Extent& input) {
  if (input.image) return;
  throw ConfigError("takes images, but " + std::to_string(input.size()) +
                        " values without rows and columns come in",
                    "place it before flatten and dense layers, and give data that says its rows "
                    "and columns: IDX or NPY");
}

Extent limited(const Extent& extent) {
  const double values = static_cast<double>(extent.rows) * static_cast<double>(extent.columns) *
                        static_cast<double>(extent.channels);
  if (values <= most_values) return extent;
  throw ConfigError("gives more than 2^40 values an example", "make it smaller");
}

Extent windows(const Convolution& layer, const Extent& input) {
  require_image(input);
  if (layer.padding == Padding::same) {
    return limited({input.rows, input.columns, layer.filters, true});
  }
  if (layer.kernel > input.rows || layer.kernel > input.columns) {
    throw ConfigError(
        "a kernel of " + std::to_string(layer.kernel) + " on an image of " + image_text(input),
        "use a smaller kernel, or padding = \"same\"");
  }
  return limited(
      {input.rows - layer.kernel + 1, input.columns - layer.kernel + 1, layer.filters, true});
}

Extent windows(const Pool& layer, const Extent& input) {
  require_image(input);
  if (layer.size > input.rows || layer.size > input.columns) {
    throw ConfigError(
        "windows of " + std::to_string(layer.size) + " on an image of " + image_text(input),
        "use a smaller size, or fewer layers before it");
  }
  return {input.rows / layer.size, input.columns / layer.size, input.channels, true};
}

Extent outputs(const Dense& layer, const Extent& input) {
  if (!input.image) return flat(layer.width);
  throw ConfigError("takes a row of values, but an image of " + image_text(input) + " comes in",
                    "put a layer of kind = \"flatten\" before it");
}

Extent outputs(const Custom& layer, const Extent& input) {
  const std::string name = layer.kind->name();
  if (is_built_in(name)) {
    throw ConfigError("a built-in layer is of kind '" + name + "'",
                      "give LayerKind::name() another name");
  }
  return limited(layer.kind->output_of(input));
}

/// Calls the first of `cases` that takes the layer.
template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

Extent output_of(const LayerSpec& layer, const Extent& input) {
  return std::visit(
      Overloaded{[&](const Dense& dense) { return outputs(dense, input); },
                 [&](const Convolution& convolution) { return windows(convolution, input); },
                 [&](const Pool& pool) { return windows(pool, input); },
                 [&](const Flatten&) { return flat(input.size()); },
                 [&](const Custom& custom) { return outputs(custom, input); },
                 [&](const auto&) { return input; }},
      layer);
}

double weights_of(const LayerSpec& layer, const Extent& input) {
  const auto channels = static_cast<double>(input.channels);
  return std::visit(Overloaded{[&](const Dense& dense) {
                                 return (static_cast<double>(input.size()) + 1) *
                                        static_cast<double>(dense.width);
                               },
                               [&](const Convolution& convolution) {
                                 const auto kernel = static_cast<double>(convolution.kernel);
                                 return (kernel * kernel * channels + 1) *
                                        static_cast<double>(convolution.filters);
                               },
                               [&](const LayerNorm&) { return 2 * channels; },
                               [&](const BatchNorm&) { return 4 * channels; },
                               [&](const Custom& custom) { return custom.kind->weights(input); },
                               [](const auto&) { return 0.0; }},
                    layer);
}

bool sums_over_batch(const LayerSpec& layer) {
  const auto* custom = std::get_if<Custom>(&layer);
  return custom != nullptr ? custom->kind->sums_over_batch()
                           : std::holds_alternative<BatchNorm>(layer);
}

std::string text_of(const LayerSpec& layer) {
  const auto text = [](std::size_t count) { return std::to_string(count); };
  return std::visit(
      Overloaded{
          [&](const Dense& dense) { return "dense " + text(dense.width); },
          [&](const Convolution& c) {
            return "conv " + text(c.filters) + "@" + text(c.kernel) + "x" + text(c.kernel);
          },
          [&](const Pool& pool) {
            return (pool.pooling == Pooling::max ? "max-pool " : "average-pool ") + text(pool.size);
          },
          [](const Flatten&) { return std::string("flatten"); },
          [](const Dropout& dropout) { return "dropout " + literal_of(FieldValue(dropout.rate)); },
          [](const LayerNorm&) { return std::string("layer-norm"); },
          [](const BatchNorm&) { return std::string("batch-norm"); },
          [](const Custom& custom) { return custom.kind->text(); }},
      layer);
}

}  // namespace lockstep::nn

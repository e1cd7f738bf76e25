// From settings and data to the network that they ask for.
#include "lib/base/errors.hpp"
#include "lib/train/config.hpp"

namespace lockstep::train {
namespace {

/// {rows, columns} and {rows, columns, channels} are images.
nn::FeatureShape input_of(const std::vector<std::uint64_t>& shape) {
  std::size_t size = 1;
  for (const auto dimension : shape) size *= dimension;
  if (shape.size() == 2) return {shape[0], shape[1], 1, true};
  if (shape.size() == 3) return {shape[0], shape[1], shape[2], true};
  return nn::flat(size);
}

void require_one_model(const RunConfig& config) {
  const bool listed = config.model == "layers";
  if (listed && config.layer_list.empty()) {
    throw ConfigError("model layers without a list of layers",
                      "give a run file with [[layer]] tables");
  }
  if (!listed && !config.layer_list.empty()) {
    throw ConfigError("model " + config.model + " beside a [[layer]] list",
                      "leave one of them out");
  }
  if (config.model != "mlp" && config.layers != RunConfig().layers) {
    throw ConfigError("layers with model " + config.model + ": they are the widths of model mlp",
                      "leave `layers` out, or use `model=mlp`");
  }
}

}  // namespace

nn::NetworkShape network_of(const RunConfig& config, const std::vector<std::uint64_t>& shape) {
  require_one_model(config);
  const nn::FeatureShape input = input_of(shape);
  if (config.model == "mlp") {
    return {input.size(), {config.layers.begin(), config.layers.end()}, config.classes};
  }
  try {
    return {input, config.model == "lenet" ? nn::lenet_layers() : config.layer_list,
            config.classes};
  } catch (const ConfigError& error) {
    throw ConfigError("model " + config.model + ": " + error.what());
  }
}

}  // namespace lockstep::train

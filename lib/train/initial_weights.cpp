#include <algorithm>
#include <functional>
#include <map>
#include <system_error>
#include <variant>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/safetensors.hpp"

namespace lockstep::train {
namespace {

constexpr const char* from_remedy =
    "give the folder of a run or a checkpoint, or a file in the safetensors format";

/// A tensor of the network.
struct Target {
  std::size_t layer = 0;    ///< number of its layer in the shape
  std::string suffix;       ///< "weight"
  std::string source = {};  ///< the name in the file
  bool mapped = false;      ///< `source` is from the map
  bool fresh = false;
  std::vector<std::uint64_t> shape = {};  ///< in the file
  /// Channels of the window or flattened image that its rows are in the order of; 0: the values are
  /// in the same order in the file.
  std::size_t channels = 0;
};

std::vector<Target> targets_of(const nn::Network<float>& network) {
  std::vector<Target> targets;
  for (const nn::ParameterSpec& tensor : network.parameters().tensors()) {
    const auto dot = tensor.name.find('.');
    targets.push_back({std::stoul(tensor.name.substr(0, dot)), tensor.name.substr(dot + 1)});
  }
  return targets;
}

/// The tensors of the network that `word` names: those of a layer, or one.
/// Errors   throws ConfigError: there is none.
std::vector<std::size_t> named(const std::string& option, const std::string& word,
                               const nn::NetworkShape& shape, const std::vector<Target>& targets) {
  const auto name_of = [&](std::size_t layer) { return shape.layers[layer].name; };
  const auto last = [&](std::size_t layer) {
    return std::string(layer + 1 == shape.layers.size() ? "last" : "");
  };
  const auto number = [](std::size_t layer) { return std::to_string(layer); };
  std::vector<std::string> known;
  for (const auto& alias : {std::function<std::string(std::size_t)>(name_of),
                            std::function<std::string(std::size_t)>(last),
                            std::function<std::string(std::size_t)>(number)}) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const std::string layer = alias(targets[i].layer);
      if (layer.empty()) continue;
      const std::string tensor = layer + "." + targets[i].suffix;
      if (word == layer || word == tensor) found.push_back(i);
      known.push_back(layer);
      known.push_back(tensor);
    }
    if (!found.empty()) return found;
  }
  throw ConfigError(
      "`" + option + "`: " + in_quotes(word) +
          " is neither a layer with weights nor a tensor of the "
          "network",
      did_you_mean(nearest(word, known),
                   "layers are called by their names, \"last\", or as tensors of checkpoints by "
                   "their numbers from 0; `lockstep inspect` of a checkpoint prints them"));
}

/// The name of a layer in the file, for a layer of the network that the map does not name.
std::string default_name(const nn::LayerSpec& layer, std::size_t number, TensorLayout layout,
                         const std::optional<SavedNetwork>& saved) {
  if (layer.name.empty()) return std::to_string(number);
  if (layout == TensorLayout::pytorch) return layer.name;
  if (saved) {
    for (std::size_t i = 0; i < saved->shape.layers.size(); ++i) {
      if (saved->shape.layers[i].name == layer.name) return std::to_string(i);
    }
  }
  return std::to_string(number);
}

std::string suffix_in(const std::string& suffix, TensorLayout layout) {
  if (layout == TensorLayout::lockstep) return suffix;
  return suffix == "gain"       ? "weight"
         : suffix == "mean"     ? "running_mean"
         : suffix == "variance" ? "running_var"
                                : suffix;
}

void set_sources(const InitialWeights& initial, const nn::NetworkShape& shape,
                 const std::optional<SavedNetwork>& saved, std::vector<Target>& targets) {
  for (Target& target : targets) {
    target.source = default_name(shape.layers[target.layer], target.layer, initial.layout, saved) +
                    "." + suffix_in(target.suffix, initial.layout);
  }
  for (const auto& [ours, theirs] : initial.map) {
    const auto found = named("init_map", ours, shape, targets);
    const bool is_tensor = ours.ends_with("." + targets[found[0]].suffix) && found.size() == 1;
    for (const std::size_t i : found) {
      if (targets[i].mapped) {
        throw ConfigError("`init_map`: " + in_quotes(ours) + ": a name for tensor " +
                              std::to_string(targets[i].layer) + "." + targets[i].suffix +
                              " is given twice",
                          "leave one of them out");
      }
      targets[i].mapped = true;
      targets[i].source =
          is_tensor ? theirs : theirs + "." + suffix_in(targets[i].suffix, initial.layout);
    }
  }
  for (const std::string& word : initial.fresh) {
    for (const std::size_t i : named("init_fresh", word, shape, targets)) targets[i].fresh = true;
  }
}

/// The channels of the image in whose order each value (LayerSize::from) is though it is flattened:
/// PyTorch's is ordered by channel, row, column. 1: the order is the same.
std::vector<std::size_t> channels_of(const nn::NetworkShape& shape,
                                     const std::vector<nn::LayerSize>& sizes) {
  std::vector<std::size_t> channels = {shape.input.image ? shape.input.channels : 1};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const nn::LayerSpec& layer = shape.layers[i];
    const auto& function = layer.function;
    const std::size_t before = channels[sizes[i].from[0]];
    const bool keeps = std::holds_alternative<nn::Dropout>(function) ||
                       std::holds_alternative<nn::LayerNorm>(function) ||
                       std::holds_alternative<nn::BatchNorm>(function) ||
                       std::holds_alternative<nn::Add>(function) || is_flatten(layer);
    const bool is_embedding = std::holds_alternative<nn::Embedding>(function);
    channels.push_back(keeps                                    ? before
                       : sizes[i].output.image && !is_embedding ? sizes[i].output.channels
                                                                : 1);
    const bool is_concatenate = std::holds_alternative<nn::Concatenate>(function);
    if (!is_concatenate && !std::holds_alternative<nn::Add>(function)) continue;
    if (sizes[i].output.image) continue;
    for (const std::size_t from : sizes[i].from) {
      if (channels[from] == (is_concatenate ? 1 : before)) continue;
      throw ConfigError("`init_layout=pytorch`: " + shape.layer_text(i) +
                            " joins flattened images, whose values PyTorch orders differently",
                        "convert the weights to Lockstep's layout first");
    }
  }
  return channels;
}

/// Sets the shape in the file, and the order of rows, of each target.
void set_shapes(const nn::Network<float>& network, TensorLayout layout,
                std::vector<Target>& targets) {
  const nn::NetworkShape& shape = network.shape();
  const auto sizes = shape.sizes();
  const auto channels =
      layout == TensorLayout::pytorch ? channels_of(shape, sizes) : std::vector<std::size_t>();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    Target& target = targets[i];
    const nn::ParameterSpec& tensor = network.parameters().tensors()[i];
    const std::uint64_t rows = tensor.whole_rows();
    const std::uint64_t cols = tensor.whole_cols();
    target.shape = tensor.whole_shape();
    if (layout == TensorLayout::lockstep) continue;
    const auto& function = shape.layers[target.layer].function;
    const nn::FeatureShape& input = sizes[target.layer].inputs[0];
    const bool is_weight = target.suffix == "weight";
    if (const auto* conv = std::get_if<nn::Convolution>(&function); conv != nullptr && is_weight) {
      target.shape = {cols, input.channels, conv->kernel, conv->kernel};
      target.channels = input.channels;
    } else if (std::holds_alternative<nn::Dense>(function) && is_weight) {
      target.shape = {cols, rows};
      target.channels = channels[sizes[target.layer].from[0]];
    } else if (std::holds_alternative<nn::LayerNorm>(function) ||
               std::holds_alternative<nn::BatchNorm>(function)) {
      if (input.image) continue;
      target.channels = channels[sizes[target.layer].from[0]];
    }
  }
}

/// PyTorch's values in Lockstep's order: the output last, and channels after rows and columns.
std::vector<float> from_pytorch(const std::vector<float>& theirs, const Target& target,
                                const nn::ParameterSpec& tensor) {
  const std::size_t cols = tensor.vector ? 1 : tensor.whole_cols();
  const std::size_t rows = tensor.vector ? tensor.whole_cols() : tensor.whole_rows();
  const std::size_t positions = rows / target.channels;
  std::vector<float> ours(theirs.size());
  for (std::size_t r = 0; r < rows; ++r) {
    const std::size_t from = (r % target.channels) * positions + r / target.channels;
    for (std::size_t c = 0; c < cols; ++c) ours[r * cols + c] = theirs[c * rows + from];
  }
  return ours;
}

std::string tensor_text(const Target& target, const nn::NetworkShape& shape) {
  return std::to_string(target.layer) + "." + target.suffix + " of " +
         shape.layer_text(target.layer);
}

bool begins_with(const std::string& name, const std::string& prefix) {
  return name == prefix || name.starts_with(prefix + ".");
}

/// The tensors of a file by name.
class Contents {
 public:
  Contents(const SafetensorsReader& file, const nn::NetworkShape& shape)
      : file_(file), shape_(shape) {
    const auto& tensors = file.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors_[tensors[i].spec.name] = i;
  }

  /// The index of the tensor that `target` takes.
  std::size_t index_for(const Target& target) {
    const auto found = tensors_.find(target.source);
    const std::string needs = tensor_text(target, shape_) + ", which has the shape " +
                              shape_text(target.shape) + " there";
    const std::string fresh =
        "`init_fresh=" + std::to_string(target.layer) + "` leaves the layer at random weights";
    if (found == tensors_.end()) {
      std::vector<std::string> names;
      names.reserve(tensors_.size());
      for (const auto& [name, index] : tensors_) names.push_back(name);
      const std::string problem = file_.path().string() + ": there is no tensor " +
                                  in_quotes(target.source) + " for " + needs;
      const std::string known = "a name that `lockstep inspect FILE.safetensors` lists";
      if (target.mapped) {
        throw ConfigError(problem, "`init_map`: " + did_you_mean(nearest(target.source, names),
                                                                 "give it " + known));
      }
      throw DataError(problem, "name it in `init_map`: \"" + std::to_string(target.layer) +
                                   "=NAME\", with " + known + "; or " + fresh);
    }
    const auto& shape = file_.tensors()[found->second].spec.shape;
    if (shape != target.shape) {
      throw DataError(file_.path().string() + ": tensor " + in_quotes(target.source) +
                          " has the shape " + shape_text(shape) + ", not " +
                          shape_text(target.shape) + " as " + tensor_text(target, shape_),
                      fresh + "; or change the network");
    }
    const auto [taker, is_new] = takers_.emplace(target.source, tensor_text(target, shape_));
    if (is_new) return found->second;
    throw ConfigError(file_.path().string() + ": both " + taker->second + " and " +
                          tensor_text(target, shape_) + " take the tensor " +
                          in_quotes(target.source),
                      "give each layer a name of its own in `init_map`");
  }

  /// Throws for tensors that are neither taken nor expected to be left.
  void require_used(const InitialWeights& initial, const std::vector<Target>& targets) const {
    for (const std::string& prefix : initial.ignored) {
      if (std::any_of(tensors_.begin(), tensors_.end(),
                      [&](const auto& tensor) { return begins_with(tensor.first, prefix); })) {
        continue;
      }
      throw ConfigError(
          "`init_ignore`: " + file_.path().string() + " has no tensor " + in_quotes(prefix),
          "leave it out, or give a name of the file, or what comes before a dot");
    }
    for (const auto& [name, index] : tensors_) {
      const auto is_this = [&](const Target& target) { return target.source == name; };
      const bool ignored =
          std::any_of(initial.ignored.begin(), initial.ignored.end(),
                      [&](const std::string& prefix) { return begins_with(name, prefix); }) ||
          (initial.layout == TensorLayout::pytorch && name.ends_with("num_batches_tracked"));
      if (ignored || std::any_of(targets.begin(), targets.end(), is_this)) continue;
      throw DataError(
          file_.path().string() + ": tensor " + in_quotes(name) + " " +
              shape_text(file_.tensors()[index].spec.shape) + " is of no layer of the network",
          "name its layer in `init_map`; or `init_ignore=" + name.substr(0, name.rfind('.')) +
              "` leaves it out");
    }
  }

 private:
  const SafetensorsReader& file_;
  const nn::NetworkShape& shape_;
  std::map<std::string, std::size_t> tensors_;
  std::map<std::string, std::string> takers_;
};

}  // namespace

TakenWeights read_initial_weights(const InitialWeights& initial, nn::Network<float>& network,
                                  bool verifies) {
  TakenWeights result;
  result.file = initial.from;
  std::error_code ignored;
  const bool is_best = without_slash(initial.from).filename() == "best";  // see find_checkpoint()
  if (!is_best && !std::filesystem::exists(initial.from, ignored)) {
    throw DataError(initial.from.string() + ": no such run, checkpoint or file", from_remedy);
  }
  if (!std::filesystem::is_regular_file(initial.from, ignored)) {
    const auto folder = find_checkpoint(initial.from);
    if (verifies) verify_checkpoint(folder);
    result.saved = read_description(folder);
    result.file = folder / "model.safetensors";
  }
  const nn::NetworkShape& shape = network.shape();
  auto targets = targets_of(network);
  set_sources(initial, shape, result.saved, targets);
  set_shapes(network, initial.layout, targets);

  const SafetensorsReader file(result.file, from_remedy);
  Contents contents(file, shape);
  auto& block = network.parameters();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const nn::ParameterSpec& tensor = block.tensors()[i];
    if (targets[i].fresh) {
      result.fresh.push_back(tensor.name);
      continue;
    }
    auto values = file.read(contents.index_for(targets[i]));
    require_finite(values, file.path().string(), targets[i].source,
                   "take the file from before training diverged");
    if (targets[i].channels > 0) values = from_pytorch(values, targets[i], tensor);
    block.set_from_whole(i, values);
    result.taken.push_back(tensor.name);
  }
  contents.require_used(initial, targets);
  result.takes_first = !targets.empty() && !targets[0].fresh;
  return result;
}

}  // namespace lockstep::train

#include "lib/train/checkpoint.hpp"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <typeinfo>
#include <vector>

#include "lib/base/files.hpp"
#include "lib/base/hash.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

/// The header: name -> type, shape, and bytes [begin, end) behind the header.
std::string safetensors_header(const nn::ParameterBlock<float>& block) {
  ordered_json header;
  header["__metadata__"] = {{"format", "lockstep"}};
  std::size_t at = 0;
  for (const nn::Tensor& tensor : block.tensors()) {
    const std::size_t end = at + tensor.size() * sizeof(float);
    ordered_json shape = ordered_json::array();
    if (!tensor.vector) shape.push_back(tensor.rows);
    shape.push_back(tensor.cols);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the tensors stand aligned
  return text;
}

void write_safetensors(const std::filesystem::path& path, const nn::ParameterBlock<float>& block) {
  const std::string header = safetensors_header(block);
  const std::uint64_t length = header.size();
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&length, 1)),
                                                    std::as_bytes(std::span(header))};
  std::vector<std::vector<float>> tensors;
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    pieces.push_back(std::as_bytes(std::span(tensors.emplace_back(block.logical_value(i)))));
  }
  write_file(path, pieces);
}

ordered_json field_json(const nn::FieldValue& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

/// What network.json says of the layers: widths of an mlp, or a list of layers.
ordered_json shape_json(const nn::NetworkShape& shape) {
  if (shape.is_mlp()) {
    return {{"model", "mlp"}, {"widths", shape.widths()}, {"activation", "relu"}};
  }
  ordered_json layers = ordered_json::array();
  for (const auto& layer : shape.layers) {
    ordered_json fields;
    for (const auto& [key, value] : nn::fields_of(layer)) fields[key] = field_json(value);
    layers.push_back(std::move(fields));
  }
  const auto& input = shape.input;
  const auto extent = input.image
                          ? std::vector<std::size_t>{input.rows, input.columns, input.channels}
                          : std::vector<std::size_t>{input.size()};
  return {{"model", "layers"}, {"input", extent}, {"layers", std::move(layers)}};
}

/// A name that means this loss and no other to who reads it.
std::string loss_name(const nn::Loss<float>& loss) {
  const auto* built_in = nn::built_in_loss<float>(loss.name());
  if (built_in == nullptr || typeid(*built_in) == typeid(loss)) return loss.name();
  throw std::invalid_argument(std::string("a built-in loss is named '") + loss.name() +
                              "': give Loss::name() another name");
}

std::string description(const nn::Network<float>& network, const CheckpointInfo& info) {
  ordered_json json = shape_json(network.shape());
  json["loss"] = loss_name(network.loss_function());
  json["parameters"] = network.shape().parameters();
  json["divide_by"] = info.divide_by;
  json["data"] = info.data;
  json["step"] = info.step;
  json["examples"] = info.examples;
  json["weights_hash"] = to_hex(weights_hash(network.parameters()));
  return json.dump(2) + "\n";
}

void require_whole(const nn::ParameterBlock<float>& block) {
  for (const nn::Tensor& tensor : block.tensors()) {
    if (!tensor.cut) continue;
    throw std::invalid_argument("save_checkpoint: tensor " + tensor.name +
                                " is a part of one that ranks share: save whole_network()");
  }
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) {
  std::string digits = std::to_string(step);
  constexpr std::size_t width = 8;
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return "step-" + digits;
}

std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info) {
  require_whole(network.parameters());
  const std::filesystem::path final_path = checkpoints / checkpoint_name(info.step);
  std::filesystem::path temporary = checkpoints / ("." + checkpoint_name(info.step) + ".tmp");
  make_folder(temporary);
  write_safetensors(temporary / "model.safetensors", network.parameters());
  write_file(temporary / "network.json", description(network, info));
  rename_folder(temporary, final_path);
  return final_path;
}

}  // namespace lockstep::train

#include "lockstep/train/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <typeinfo>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/nn/layer_spec.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {
namespace {

using data::RegularFile;
using nlohmann::ordered_json;

constexpr const char* remedy =
    "give a checkpoint that training saved, unchanged: RUN/checkpoints/step-NNNNNNNN";
constexpr std::uint64_t length_bytes = 8;              // of the header's length
constexpr std::uint64_t max_header_bytes = 100 << 20;  // limit of safetensors
constexpr std::uint64_t max_description_bytes = 1 << 20;
constexpr double max_weights = 9007199254740992.0;  // 2^53: exact in double
constexpr std::size_t max_side = std::size_t{1} << 20;
constexpr std::uint64_t max_classes = std::numeric_limits<std::int32_t>::max();

JsonPlace place_of(const std::filesystem::path& path) { return {path, 0, remedy}; }

[[noreturn]] void fail_at(const std::filesystem::path& path, std::uint64_t byte,
                          const std::string& reason) {
  throw DataError(data::place(path, byte) + ": " + reason, remedy);
}

std::string text_at(const RegularFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

// network.json: writing.

ordered_json field_json(const nn::FieldValue& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

/// The layers in network.json: widths of an mlp, or a list of layers.
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
  const auto lengths = input.image
                           ? std::vector<std::size_t>{input.rows, input.columns, input.channels}
                           : std::vector<std::size_t>{input.size()};
  return {{"model", "layers"}, {"input", lengths}, {"layers", std::move(layers)}};
}

/// The name of the loss; a custom loss must not have the name of a built-in one.
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

// network.json: reading.

void require_known(const ordered_json& json, const char* key, const char* known,
                   const JsonPlace& place) {
  const std::string value = text_in(json, key, place);
  if (value == known) return;
  fail(place, std::string("'") + key + "' is '" + value + "'; this version knows " + known);
}

nn::NetworkShape mlp_in(const ordered_json& json, const JsonPlace& place) {
  require_known(json, "activation", "relu", place);
  const auto widths = counts_in(json, "widths", place);
  const bool usable = widths.size() >= 2 && std::count(widths.begin(), widths.end(), 0U) == 0 &&
                      widths.back() <= max_classes;
  if (!usable) fail(place, "'widths' are not those of a network: features, hidden layers, classes");
  return {widths.front(), {widths.begin() + 1, widths.end() - 1}, widths.back()};
}

nn::FeatureShape input_in(const ordered_json& json, const JsonPlace& place) {
  const auto sides = counts_in(json, "input", place);
  const bool usable = (sides.size() == 1 || sides.size() == 3) &&
                      std::all_of(sides.begin(), sides.end(),
                                  [](auto side) { return side >= 1 && side <= max_side; });
  if (!usable) fail(place, "'input' is neither [features] nor [rows, columns, channels]");
  if (sides.size() == 1) return nn::flat(sides[0]);
  return {sides[0], sides[1], sides[2], true};
}

nn::LayerSpec layer_in(const ordered_json& json, const JsonPlace& place,
                       const nn::LayerKinds& kinds) {
  if (!json.is_object()) fail(place, "'layers' has an entry that is no object");
  nn::Fields fields;
  for (const auto& [key, value] : json.items()) {
    if (value.is_string()) {
      fields.emplace_back(key, value.get<std::string>());
    } else if (value.is_number_unsigned()) {
      fields.emplace_back(key, value.get<std::uint64_t>());
    } else if (value.is_number()) {
      fields.emplace_back(key, value.get<double>());
    } else {
      fail(place, "'layers' has '" + key + "', which is neither text nor a number");
    }
  }
  return nn::layer_of(fields, kinds);
}

nn::NetworkShape list_in(const ordered_json& json, const JsonPlace& place,
                         const nn::LayerKinds& kinds) {
  const ordered_json& list = field(json, "layers", place);
  if (!list.is_array() || list.empty()) fail(place, "'layers' is no list of layers");
  const nn::FeatureShape input = input_in(json, place);
  try {
    std::vector<nn::LayerSpec> layers;
    for (const auto& layer : list) layers.push_back(layer_in(layer, place, kinds));
    const auto* last = std::get_if<nn::Dense>(&layers.back());
    if (last == nullptr || last->activation != Activation::identity || last->width > max_classes) {
      fail(place, "'layers' does not end with a dense layer to the classes");
    }
    const std::size_t classes = last->width;
    layers.pop_back();
    return {input, std::move(layers), classes};
  } catch (const ConfigError& error) {
    throw DataError(place.path.string() + ": 'layers': " + error.what(),
                    place.remedy +
                        "; layers of a program's own are known to programs alone that "
                        "give their kinds (LayerKinds)");
  }
}

/// Reads `model` and its fields; throws DataError if `parameters` is not the network's number of
/// weights.
nn::NetworkShape shape_in(const ordered_json& json, const JsonPlace& place,
                          const nn::LayerKinds& kinds) {
  const bool listed = text_in(json, "model", place) == "layers";
  if (!listed) require_known(json, "model", "mlp", place);
  nn::NetworkShape shape = listed ? list_in(json, place, kinds) : mlp_in(json, place);
  if (shape.weights() >= max_weights || count_in(json, "parameters", place) != shape.parameters()) {
    fail(place, std::string("'parameters' is not the number of weights of a network of these '") +
                    (listed ? "layers'" : "widths'"));
  }
  return shape;
}

float divisor_in(const ordered_json& json, const JsonPlace& place) {
  const auto divisor = static_cast<float>(number_in(json, "divide_by", place));
  if (!std::isfinite(divisor) || divisor <= 0) fail(place, "'divide_by' is no number above 0");
  return divisor;
}

std::uint64_t hash_in(const ordered_json& json, const JsonPlace& place) {
  const std::string text = text_in(json, "weights_hash", place);
  std::uint64_t hash = 0;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (to_hex(hash) != text) fail(place, "'weights_hash' is not 16 hexadecimal digits");
  return hash;
}

// model.safetensors: writing.

/// The header: name -> type, shape, and bytes [begin, end) behind the header.
std::string safetensors_header(const nn::ParameterBlock<float>& block) {
  ordered_json header;
  header["__metadata__"] = {{"format", "lockstep"}};
  std::size_t at = 0;
  for (const nn::ParameterSpec& tensor : block.tensors()) {
    const std::size_t end = at + tensor.size() * sizeof(float);
    ordered_json shape = ordered_json::array();
    if (!tensor.vector) shape.push_back(tensor.rows);
    shape.push_back(tensor.cols);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the tensors
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

void require_whole(const nn::ParameterBlock<float>& block) {
  for (const nn::ParameterSpec& tensor : block.tensors()) {
    if (!tensor.cut) continue;
    throw std::invalid_argument("save_checkpoint: tensor " + tensor.name +
                                " is a part of one that ranks share: save whole_network()");
  }
}

// model.safetensors: reading.

/// A model.safetensors whose header was read and checked against the file's size.
struct OpenModel {
  RegularFile file;
  ordered_json header;
  std::uint64_t data_begin = 0;

  explicit OpenModel(const std::filesystem::path& path) : file(path) {
    if (file.size() < length_bytes) fail_at(path, file.size(), "ends within the header's length");
    std::uint64_t length = 0;
    file.read_at(0, {reinterpret_cast<std::uint8_t*>(&length), sizeof length});
    const std::uint64_t max = std::min(file.size() - length_bytes, max_header_bytes);
    if (length > max) {
      fail_at(path, 0,
              "a header of " + std::to_string(length) + " bytes, where " + std::to_string(max) +
                  " can be");
    }
    header = parse_object(text_at(file, length_bytes, length), {path, 1, remedy});
    header.erase("__metadata__");
    data_begin = length_bytes + length;
  }

  std::uint64_t data_bytes() const { return file.size() - data_begin; }
};

std::vector<std::uint64_t> shape_of(const nn::ParameterSpec& tensor) {
  if (tensor.vector) return {tensor.whole_cols()};
  return {tensor.whole_rows(), tensor.whole_cols()};
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const auto dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

/// The tensor's bytes behind the header. Throws if type, shape or size are not the network's.
Range bytes_of(const OpenModel& model, const nn::ParameterSpec& tensor) {
  const JsonPlace place = {model.file.path(), 1, remedy};
  const auto fail_here = [&](const std::string& reason) {
    fail(place, "tensor " + tensor.name + " " + reason);
  };
  const auto& entry = field(model.header, tensor.name.c_str(), place);
  const std::string type = text_in(entry, "dtype", place);
  if (type != "F32") fail_here("is of type " + type + ", not F32");
  const auto shape = counts_in(entry, "shape", place);
  if (shape != shape_of(tensor)) {
    fail_here("has the shape " + shape_text(shape) + ", but network.json's layers ask for " +
              shape_text(shape_of(tensor)));
  }
  const auto offsets = counts_in(entry, "data_offsets", place);
  const bool ordered = offsets.size() == 2 && offsets[0] <= offsets[1];
  if (!ordered || offsets[1] - offsets[0] != tensor.whole_size() * sizeof(float)) {
    fail_here("has data_offsets that are not its " + std::to_string(tensor.whole_size()) +
              " floats'");
  }
  if (offsets[1] > model.data_bytes()) {
    fail_here("ends at byte " + std::to_string(offsets[1]) + " behind the header, where " +
              std::to_string(model.data_bytes()) + " are: the file is cut off");
  }
  return {offsets[0], offsets[1]};
}

/// Sizes are checked before, so ranges that cover the file have neither gap nor overlap.
void require_cover(const OpenModel& model, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin != at) {
      fail_at(model.file.path(), model.data_begin + at, "tensors leave a gap here, or overlap");
    }
    at = range.end;
  }
  if (at != model.data_bytes()) {
    fail_at(model.file.path(), model.data_begin + at,
            std::to_string(model.data_bytes() - at) + " bytes that no tensor describes");
  }
}

std::vector<Range> all_bytes_of(const OpenModel& model,
                                const std::vector<nn::ParameterSpec>& tensors) {
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const nn::ParameterSpec& tensor : tensors) ranges.push_back(bytes_of(model, tensor));
  for (const auto& [name, entry] : model.header.items()) {
    const bool known =
        std::any_of(tensors.begin(), tensors.end(),
                    [&](const nn::ParameterSpec& tensor) { return tensor.name == name; });
    if (!known) {
      fail({model.file.path(), 1, remedy}, "tensor " + name + " has no place in this network");
    }
  }
  require_cover(model, ranges);
  return ranges;
}

// Checkpoints in a folder.

/// The step of a name like "step-00001407"; nothing for other names.
std::optional<std::uint64_t> step_in(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

std::filesystem::path last_checkpoint_in(const std::filesystem::path& folder) {
  std::map<std::uint64_t, std::filesystem::path> checkpoints;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const auto step = step_in(entry->path().filename().string());
    std::error_code none;
    if (step && std::filesystem::exists(entry->path() / "network.json", none)) {
      checkpoints[*step] = entry->path();
    }
  }
  if (error) fail(place_of(folder), "cannot be listed: " + error.message());
  if (checkpoints.empty()) fail(place_of(folder), "holds no checkpoint (step-NNNNNNNN)");
  return checkpoints.rbegin()->second;
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) {
  constexpr std::size_t width = 8;
  const std::string digits = std::to_string(step);
  return "step-" + std::string(width - std::min(width, digits.size()), '0') + digits;
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

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) fail(place_of(path), "no such checkpoint");
  if (!std::filesystem::is_directory(path, ignored)) {
    fail(place_of(path), "is no folder, as a checkpoint is");
  }
  for (const char* name : {"network.json", "model.safetensors"}) {
    if (std::filesystem::exists(std::filesystem::symlink_status(path / name, ignored))) return path;
  }
  const bool run = std::filesystem::is_directory(path / "checkpoints", ignored);
  return last_checkpoint_in(run ? path / "checkpoints" : path);
}

SavedNetwork read_description(const std::filesystem::path& folder, const nn::LayerKinds& kinds) {
  const RegularFile file(folder / "network.json");
  const JsonPlace place = place_of(file.path());
  if (file.size() > max_description_bytes) fail(place, "is too long to be a description");
  const ordered_json json = parse_object(text_at(file, 0, file.size()), place);
  const nn::NetworkShape shape = shape_in(json, place, kinds);
  const RegularFile model(folder / "model.safetensors");
  if (shape.parameters() > model.size() / sizeof(float)) {
    fail_at(model.path(), model.size(),
            "the file ends here, too short for the " + std::to_string(shape.parameters()) +
                " weights of network.json");
  }
  return {folder,
          shape,
          {count_in(json, "step", place), count_in(json, "examples", place),
           divisor_in(json, place), text_in(json, "data", place)},
          json.contains("loss") ? text_in(json, "loss", place) : nn::default_loss,
          hash_in(json, place)};
}

void read_weights(const SavedNetwork& saved, nn::Network<float>& network) {
  const OpenModel model(saved.folder / "model.safetensors");
  auto& block = network.parameters();
  const auto ranges = all_bytes_of(model, block.tensors());
  nn::WeightsHash weights_hash;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    std::vector<float> weights(block.tensors()[i].whole_size());
    const auto bytes = std::as_writable_bytes(std::span(weights));
    model.file.read_at(model.data_begin + ranges[i].begin,
                       {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    block.set_from_whole(i, weights);
    weights_hash.add(block.tensors()[i], weights);
  }
  const std::uint64_t hash = weights_hash.value();
  if (hash == saved.weights_hash) return;
  fail_at(model.file.path(), model.data_begin,
          "the weights' hash is " + to_hex(hash) + ", but network.json says " +
              to_hex(saved.weights_hash) + ": one of the two files is damaged");
}

}  // namespace lockstep::train

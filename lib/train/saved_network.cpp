#include "lib/train/saved_network.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#include "data/file.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/train/json_fields.hpp"
#include "lib/train/saved_shape.hpp"

namespace lockstep::train {
namespace {

using data::RegularFile;
using nlohmann::ordered_json;

constexpr const char* remedy =
    "give a checkpoint that `lockstep train` saved, as it saved it: RUN/checkpoints/step-NNNNNNNN";
constexpr std::uint64_t length_bytes = 8;               // of the header's length
constexpr std::uint64_t most_header_bytes = 100 << 20;  // as safetensors itself has it
constexpr std::uint64_t most_description_bytes = 1 << 20;

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

/// Bytes [begin, end) behind the header.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A model.safetensors whose header was read and checked against the file's size.
struct OpenModel {
  RegularFile file;
  ordered_json header;
  std::uint64_t data_begin = 0;

  explicit OpenModel(const std::filesystem::path& path) : file(path) {
    if (file.size() < length_bytes) fail_at(path, file.size(), "ends within the header's length");
    std::uint64_t length = 0;
    file.read_at(0, {reinterpret_cast<std::uint8_t*>(&length), sizeof length});
    const std::uint64_t most = std::min(file.size() - length_bytes, most_header_bytes);
    if (length > most) {
      fail_at(path, 0,
              "a header of " + std::to_string(length) + " bytes, where " + std::to_string(most) +
                  " can be");
    }
    header = parse_object(text_at(file, length_bytes, length), {path, 1, remedy});
    header.erase("__metadata__");
    data_begin = length_bytes + length;
  }

  std::uint64_t data_bytes() const { return file.size() - data_begin; }
};

std::vector<std::uint64_t> shape_of(const nn::Tensor& tensor) {
  if (tensor.vector) return {tensor.whole_cols()};
  return {tensor.whole_rows(), tensor.whole_cols()};
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const auto dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

/// Where the tensor stands, once it is what the network needs.
Extent extent_of(const OpenModel& model, const nn::Tensor& tensor) {
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

/// Sizes are right already, so covering the file from end to end leaves neither gap nor overlap.
void require_cover(const OpenModel& model, std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != at) {
      fail_at(model.file.path(), model.data_begin + at, "tensors leave a gap here, or overlap");
    }
    at = extent.end;
  }
  if (at != model.data_bytes()) {
    fail_at(model.file.path(), model.data_begin + at,
            std::to_string(model.data_bytes() - at) + " bytes that no tensor describes");
  }
}

std::vector<Extent> extents_of(const OpenModel& model, const std::vector<nn::Tensor>& tensors) {
  std::vector<Extent> extents;
  extents.reserve(tensors.size());
  for (const nn::Tensor& tensor : tensors) extents.push_back(extent_of(model, tensor));
  for (const auto& [name, entry] : model.header.items()) {
    const bool known = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const nn::Tensor& tensor) { return tensor.name == name; });
    if (!known) {
      fail({model.file.path(), 1, remedy}, "tensor " + name + " has no place in this network");
    }
  }
  require_cover(model, extents);
  return extents;
}

}  // namespace

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
  if (file.size() > most_description_bytes) fail(place, "is too long to be a description");
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
  const auto extents = extents_of(model, block.tensors());
  nn::WeightsHash weights_hash;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    std::vector<float> weights(block.tensors()[i].whole_size());
    const auto bytes = std::as_writable_bytes(std::span(weights));
    model.file.read_at(model.data_begin + extents[i].begin,
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

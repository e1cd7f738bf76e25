#include "lockstep/train/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/network_json.hpp"
#include "lockstep/train/safetensors.hpp"
#include "lockstep/train/shared_snapshot.hpp"

namespace lockstep::train {
namespace {

using data::RegularFile;
using nlohmann::ordered_json;

constexpr const char* remedy =
    "give the folder of a run, or a checkpoint that training saved, unchanged: "
    "RUN/checkpoints/step-NNNNNNNN";
JsonPlace place_of(const std::filesystem::path& path) { return {path, 0, remedy}; }

// model.safetensors and optimizer.safetensors.

std::vector<TensorSpec> tensors_of(const std::vector<nn::ParameterSpec>& parameters,
                                   const char* suffix = "") {
  std::vector<TensorSpec> tensors;
  tensors.reserve(parameters.size());
  for (const nn::ParameterSpec& tensor : parameters) {
    tensors.push_back({tensor.name + suffix, tensor.whole_shape()});
  }
  return tensors;
}

/// The first moments of all tensors, then the second ones.
std::vector<TensorSpec> moments_of(const std::vector<nn::ParameterSpec>& parameters,
                                   const std::vector<std::string>& moments) {
  std::vector<TensorSpec> tensors;
  for (const auto& moment : moments) {
    for (auto& tensor : tensors_of(parameters, ("." + moment).c_str()))
      tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// manifest.json.

/// The content of manifest.json.
struct Manifest {
  std::map<std::string, FileSum> files;  ///< the other files of a checkpoint by name

  bool has(const char* name) const { return files.count(name) > 0; }
};

std::string manifest_text(const Manifest& manifest) {
  ordered_json files;
  for (const auto& [name, sum] : manifest.files) {
    files[name] = {{"bytes", sum.bytes}, {"xxh3", to_hex(sum.xxh3)}};
  }
  const ordered_json json = {{"version", checkpoint_format}, {"files", files}};
  return json.dump(2) + "\n";
}

FileSum sum_of(std::string_view text) { return {text.size(), hash_of(text)}; }

/// Reads manifest.json and checks that its files exist in their lengths.
Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / "manifest.json";
  const JsonPlace place = place_of(path);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    fail(place, "no such file: the checkpoint is incomplete, or older than this version");
  }
  const ordered_json json = read_object(place);
  const std::uint64_t format = count_in(json, "version", place);
  if (format != checkpoint_format) {
    throw DataError(path.string() + ": a checkpoint of format " + std::to_string(format) +
                        "; this version of lockstep reads format " +
                        std::to_string(checkpoint_format),
                    "use the version of lockstep that saved it");
  }
  require_keys(json, {"version", "files"}, place);
  const auto& files = field(json, "files", place);
  if (!files.is_object()) fail(place, "'files' is not an object in {}");
  Manifest manifest;
  for (const auto& [name, entry] : files.items()) {
    require_keys(entry, {"bytes", "xxh3"}, place);
    const FileSum sum = {count_in(entry, "bytes", place), hash_in(entry, "xxh3", place)};
    if (name.find('/') != std::string::npos) fail(place, "'files' names one in another folder");
    const RegularFile file(folder / name);
    if (file.size() != sum.bytes) {
      fail(place_of(file.path()), "has " + std::to_string(file.size()) +
                                      " bytes, but "
                                      "in manifest.json it is " +
                                      std::to_string(sum.bytes));
    }
    manifest.files[name] = sum;
  }
  for (const char* name : {"model.safetensors", "network.json"}) {
    if (!manifest.has(name)) fail(place, std::string("does not name ") + name);
  }
  return manifest;
}

/// Compares the whole file with its sum, and writes it to `copy`; null: nowhere.
void require_sum(const std::filesystem::path& path, const FileSum& expected,
                 NewFile* copy = nullptr) {
  const RegularFile file(path);
  Hash hash;
  std::vector<std::uint8_t> chunk(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < file.size(); at += chunk.size()) {
    const auto bytes = std::span(chunk).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), file.size() - at)));
    file.read_at(at, bytes);
    hash.add_bytes(std::as_bytes(bytes));
    if (copy != nullptr) copy->write(std::as_bytes(bytes));
  }
  if (hash.value() == expected.xxh3 && file.size() == expected.bytes) return;
  fail(place_of(path), "its checksum is " + to_hex(hash.value()) + ", but in manifest.json it is " +
                           to_hex(expected.xxh3) + ": one of the two files is damaged");
}

// state.json.

/// The bits of a double, as 16 hexadecimal digits: exact, and the same for every library.
std::string bits_text(double value) { return to_hex(std::bit_cast<std::uint64_t>(value)); }

double bits_in(const ordered_json& json, const char* key, const JsonPlace& place) {
  return std::bit_cast<double>(hash_in(json, key, place));
}

std::string state_text(const TrainingState& state, const CheckpointInfo& info,
                       const SavedOptimizer& optimizer) {
  ordered_json settings = ordered_json::object();
  for (const auto& [key, value] : state.settings) settings[key] = value;
  const TrainingPosition& position = state.position;
  const nn::Tally& tally = position.tally;
  ordered_json json = {{"step", info.step},
                       {"examples", info.examples},
                       {"epochs_completed", position.epoch},
                       {"epoch",
                        {{"steps", position.step},
                         {"examples", position.examples},
                         {"correct", tally.correct},
                         {"loss_sum_bits", bits_text(tally.loss_sum)}}},
                       {"optimizer",
                        {{"name", optim::name_of(optimizer.kind)},
                         {"steps", optimizer.scalars.steps},
                         {"beta1_power_bits", bits_text(optimizer.scalars.beta1_power)},
                         {"beta2_power_bits", bits_text(optimizer.scalars.beta2_power)}}},
                       {"settings", settings}};
  if (tally.weight != static_cast<double>(position.examples)) {
    json["epoch"]["weight_bits"] = bits_text(tally.weight);
  }
  if (const BestEpoch& best = position.best; best.epoch > 0) {
    json["best"] = {
        {"epoch", best.epoch}, {"step", best.step}, {"figure_bits", bits_text(best.figure)}};
  }
  return json.dump(2) + "\n";
}

// Checkpoints in a folder.

/// The step of a name like "step-00001407"; nothing for other names.
std::optional<std::uint64_t> step_in(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  return whole_number(std::string_view(name).substr(prefix.size()));
}

/// Throws DataError for a folder step-NNNNNNNN whose network.json is of another step.
void require_step_of_name(const std::filesystem::path& folder, std::uint64_t step) {
  const auto named = step_in(folder.filename().string());
  if (!named || *named == step) return;
  JsonPlace place = place_of(folder / "network.json");
  place.remedy = "rename the folder to " + checkpoint_name(step) + ", or give another checkpoint";
  fail(place, "is of step " + std::to_string(step) + ", in the folder of another");
}

bool has_entry(const std::filesystem::path& folder, const char* name) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(folder / name, ignored));
}

/// True for a folder with the files of a checkpoint, be it damaged: a checkpoint that is being
/// written has another name.
bool is_checkpoint(const std::filesystem::path& folder) {
  constexpr std::array names = {"manifest.json", "network.json", "model.safetensors"};
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return has_entry(folder, name); });
}

std::filesystem::path last_checkpoint_in(const std::filesystem::path& folder, bool is_of_run) {
  const auto checkpoints = checkpoints_in(folder);
  for (auto at = checkpoints.rbegin(); at != checkpoints.rend(); ++at) {
    if (is_checkpoint(at->second)) return at->second;
  }
  JsonPlace place = place_of(folder);
  if (is_of_run) {
    place.remedy =
        "wait until the run saves one, every `checkpoint_every` steps and at its end; or "
        "give another folder: a run that ended before cannot be continued";
  }
  fail(place, "holds no checkpoint (step-NNNNNNNN)");
}

/// The step of the best epoch, by the newest checkpoint whose state can be read.
std::uint64_t best_step_in(const std::filesystem::path& folder) {
  const auto last = last_checkpoint_in(folder, true);
  const auto checkpoints = checkpoints_in(folder);
  for (auto at = checkpoints.rbegin(); at != checkpoints.rend(); ++at) {
    try {
      return read_state(at->second).position.best.step;
    } catch (const DataError&) {  // damaged: an older one may know
    }
  }
  return read_state(last).position.best.step;  // throws what is wrong
}

std::filesystem::path best_checkpoint_in(const std::filesystem::path& folder) {
  const std::uint64_t step = best_step_in(folder);
  const auto best = folder / checkpoint_name(step);
  if (step > 0 && is_checkpoint(best)) return best;
  JsonPlace place = place_of(folder);
  place.remedy = step == 0 ? "train with a validation set and `keep_best`"
                           : "train with `keep_best`; or look in the run that this one continued "
                             "from a folder of its own";
  fail(place, step == 0 ? "holds no choice of a best epoch"
                        : "does not hold the checkpoint of the best epoch, of step " +
                              std::to_string(step));
}

}  // namespace

std::map<std::uint64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder) {
  std::map<std::uint64_t, std::filesystem::path> checkpoints;
  std::error_code error;
  for (const auto& entry : list_folder(folder, error)) {
    const auto step = step_in(entry.path().filename().string());
    if (step && entry.path().filename() == checkpoint_name(*step)) {
      checkpoints.emplace(*step, entry.path());
    }
  }
  if (error) fail(place_of(folder), "cannot be listed: " + error.message());
  return checkpoints;
}

bool has_checkpoint(const std::filesystem::path& run) noexcept {
  try {
    return !checkpoints_in(run / "checkpoints").empty();
  } catch (const std::exception&) {
    return false;
  }
}

std::string checkpoint_name(std::uint64_t step) {
  constexpr std::size_t width = 8;
  return "step-" + zero_padded(step, width);
}

void require_no_checkpoint(const std::filesystem::path& checkpoints, std::uint64_t step) {
  const std::string name = checkpoint_name(step);
  if (!has_entry(checkpoints, name.c_str())) return;
  throw OutputError((checkpoints / name).string() + ": already exists",
                    "remove it, or choose another folder");
}

std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const Snapshot& snapshot, const CheckpointInfo& info,
                                      const TrainingState* state) {
  const auto& tensors = snapshot.layout.tensors();
  make_folder(checkpoints);
  NewFolder folder(checkpoints / checkpoint_name(info.step));
  SafetensorsWriter model(folder.path() / "model.safetensors", tensors_of(tensors));
  std::optional<SafetensorsWriter> optimizer;
  if (state != nullptr) {
    optimizer.emplace(folder.path() / "optimizer.safetensors",
                      moments_of(tensors, snapshot.moments));
  }

  Manifest manifest;
  nn::WeightsHash weights_hash;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto tensor = snapshot.layout.logical(snapshot.blocks.weights, i);
    weights_hash.add(tensors[i], tensor);
    model.add(tensor);
  }
  manifest.files["model.safetensors"] = model.finish();
  if (optimizer) {
    for (const auto moments : {snapshot.blocks.first, snapshot.blocks.second}) {
      for (std::size_t i = 0; !moments.empty() && i < tensors.size(); ++i) {
        optimizer->add(snapshot.layout.logical(moments, i));
      }
    }
    manifest.files["optimizer.safetensors"] = optimizer->finish();
  }
  const auto add_text = [&](const char* name, const std::string& text) {
    write_file(folder.path() / name, text);
    manifest.files[name] = sum_of(text);
  };
  add_text("network.json", network_json(snapshot.shape, snapshot.loss, info, weights_hash.value()));
  if (state != nullptr) add_text("state.json", state_text(*state, info, snapshot.optimizer));
  write_file(folder.path() / "manifest.json", manifest_text(manifest));
  folder.publish();
  return checkpoints / checkpoint_name(info.step);
}

std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info) {
  require_no_checkpoint(checkpoints, info.step);
  require_describes(info, network.shape());
  const auto& block = network.parameters();
  Snapshot snapshot(network.shape(), network.loss_function(), block.layout(), nullptr);
  const auto values = block.values();
  std::copy(values.begin(), values.end(), snapshot.blocks.weights.begin());
  return save_checkpoint(checkpoints, snapshot, info, nullptr);
}

void copy_checkpoint(const std::filesystem::path& from, const std::filesystem::path& checkpoints,
                     const TrainingState& state) {
  Manifest manifest = read_manifest(from);
  const SavedOptimizer optimizer = read_state(from).optimizer;
  const JsonPlace place = place_of(from / "state.json");
  const ordered_json before = read_object(place);
  const CheckpointInfo info = {.step = count_in(before, "step", place),
                               .examples = count_in(before, "examples", place)};
  NewFolder folder(checkpoints / checkpoint_name(info.step));
  for (const auto& [name, sum] : manifest.files) {
    if (name == "state.json") continue;
    NewFile file(folder.path() / name);
    file.reserve(sum.bytes);
    require_sum(from / name, sum, &file);
    file.finish();
    file.publish();
  }
  const std::string text = state_text(state, info, optimizer);
  write_file(folder.path() / "state.json", text);
  manifest.files["state.json"] = sum_of(text);
  write_file(folder.path() / "manifest.json", manifest_text(manifest));
  folder.publish();
}

std::filesystem::path find_checkpoint(const std::filesystem::path& given) {
  const auto path = without_slash(given);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const auto folder = path.parent_path() / "checkpoints";
    const bool is_best =
        path.filename() == "best" && std::filesystem::is_directory(folder, ignored);
    if (is_best) return best_checkpoint_in(folder);
    fail(place_of(path), "no such checkpoint");
  }
  if (!std::filesystem::is_directory(path, ignored)) {
    fail(place_of(path), "is not a folder, as a checkpoint is");
  }
  if (is_checkpoint(path)) return path;
  const bool run = std::filesystem::is_directory(path / "checkpoints", ignored);
  return last_checkpoint_in(run ? path / "checkpoints" : path, run);
}

void verify_checkpoint(const std::filesystem::path& folder) {
  for (const auto& [name, sum] : read_manifest(folder).files) require_sum(folder / name, sum);
}

void require_intact(const std::filesystem::path& folder) {
  verify_checkpoint(folder);
  const JsonPlace network = place_of(folder / "network.json");
  require_step_of_name(folder, count_in(read_object(network), "step", network));
}

namespace {

/// Throws DataError unless training can continue from the checkpoint.
void require_whole_checkpoint(const std::filesystem::path& checkpoint) {
  require_intact(checkpoint);
  read_state(checkpoint);
}

}  // namespace

std::optional<std::filesystem::path> newest_valid_checkpoint(
    const std::filesystem::path& checkpoints, std::vector<std::string>& skipped) {
  const auto found = checkpoints_in(checkpoints);
  for (auto at = found.rbegin(); at != found.rend(); ++at) {
    try {
      require_whole_checkpoint(at->second);
      return at->second;
    } catch (const DataError& error) {
      skipped.push_back(error.problem());
    }
  }
  return std::nullopt;
}

void set_aside_damaged_after(const std::filesystem::path& checkpoints, std::uint64_t steps) {
  for (const auto& [step, path] : checkpoints_in(checkpoints)) {
    if (step <= steps) continue;
    try {
      require_whole_checkpoint(path);
    } catch (const DataError&) {
      auto aside = path;
      aside += ".damaged";
      std::error_code error;
      std::filesystem::remove_all(aside, error);
      std::filesystem::rename(path, aside, error);
      if (!error) report_warning(path.string() + " is damaged: it is renamed to " + aside.string());
    }
  }
}

void remove_old_checkpoints(const std::filesystem::path& checkpoints, std::uint64_t step,
                            std::uint64_t keep, std::optional<std::uint64_t> keep_every,
                            std::uint64_t best) {
  auto found = checkpoints_in(checkpoints);
  found.erase(found.upper_bound(step), found.end());
  std::uint64_t newer = 0;
  for (auto at = found.rbegin(); at != found.rend(); ++at, ++newer) {
    const bool is_due = keep_every && at->first % *keep_every == 0;
    if (newer < keep || is_due || at->first == best) continue;
    remove_folder(at->second);
  }
}

std::uint64_t remove_checkpoints_after(const std::filesystem::path& checkpoints,
                                       std::uint64_t step) {
  const auto found = checkpoints_in(checkpoints);
  std::uint64_t removed = 0;
  for (auto at = found.upper_bound(step); at != found.end(); ++at, ++removed) {
    remove_folder(at->second);
  }
  return removed;
}

SavedNetwork read_description(const std::filesystem::path& folder, const nn::LayerKinds& kinds) {
  const auto path = folder / "network.json";
  const JsonPlace place = place_of(path);
  const Manifest manifest = read_manifest(folder);
  require_sum(path, manifest.files.at("network.json"));
  SavedNetwork saved = network_in(read_object(place), place, kinds);
  saved.folder = folder;
  const std::uint64_t model_bytes = manifest.files.at("model.safetensors").bytes;
  if (saved.shape.parameters() > model_bytes / sizeof(float)) {
    fail(place_of(folder / "model.safetensors"), "is too short for the " +
                                                     std::to_string(saved.shape.parameters()) +
                                                     " weights of network.json");
  }
  require_step_of_name(folder, saved.info.step);
  return saved;
}

namespace {

/// " has KEY = VALUE" of the first key and value of a layer's function that `other` has not.
std::string difference(const nn::LayerSpec& layer, const nn::LayerSpec& other) {
  const auto fields = nn::fields_of(other);
  for (const auto& field : nn::fields_of(layer)) {
    const auto& key = field.first;
    if (key == "name" || key == "from" || key == "freeze") continue;
    if (std::find(fields.begin(), fields.end(), field) != fields.end()) continue;
    return " has " + key + " = " + nn::literal_of(field.second);
  }
  return "";
}

}  // namespace

void require_same_layers(const SavedNetwork& saved, const nn::NetworkShape& shape) {
  const JsonPlace place = {saved.folder / "network.json", 0,
                           "make the network from SavedNetwork::shape"};
  const auto& layers = shape.layers;
  const auto& in_file = saved.shape.layers;
  if (in_file.size() != layers.size() || !(saved.shape.input == shape.input)) {
    fail(place, "is of " + saved.shape.text() + ", not of " + shape.text());
  }
  const auto sizes = shape.sizes();
  const auto sizes_in_file = saved.shape.sizes();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string in_file_alone = difference(in_file[i], layers[i]);
    const std::string here_alone = difference(layers[i], in_file[i]);
    const bool same_inputs = sizes[i].from == sizes_in_file[i].from;
    if (same_inputs && in_file_alone.empty() && here_alone.empty()) continue;
    fail(place, saved.shape.layer_text(i) + in_file_alone + "; of the network to read into, " +
                    shape.layer_text(i) + here_alone + (same_inputs ? "" : " has other inputs"));
  }
}

void read_weights(const SavedNetwork& saved, nn::Network<float>& network) {
  require_same_layers(saved, network.shape());
  auto& block = network.parameters();
  const auto& tensors = block.tensors();
  const SafetensorsReader model(saved.folder / "model.safetensors", tensors_of(tensors), remedy);
  nn::WeightsHash weights_hash;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto weights = model.read(i);
    require_finite(weights, model.place(), tensors[i].name, remedy);
    block.set_from_whole(i, weights);
    weights_hash.add(tensors[i], weights);
  }
  const std::uint64_t hash = weights_hash.value();
  if (hash == saved.weights_hash) return;
  throw DataError(model.place() + ": the weights' hash is " + to_hex(hash) +
                      ", but in network.json it is " + to_hex(saved.weights_hash) +
                      ": one of the two files is damaged",
                  remedy);
}

TrainingState read_state(const std::filesystem::path& folder) {
  const auto path = folder / "state.json";
  const JsonPlace place = place_of(path);
  const Manifest manifest = read_manifest(folder);
  if (!manifest.has("state.json") || !manifest.has("optimizer.safetensors")) {
    fail(place_of(folder), "holds weights alone, so training cannot continue from it");
  }
  require_sum(path, manifest.files.at("state.json"));
  const ordered_json json = read_object(place);
  require_keys(json,
               {"step", "examples", "epochs_completed", "epoch", "optimizer", "settings", "best"},
               place);
  const auto& epoch = field(json, "epoch", place);
  require_keys(epoch, {"steps", "examples", "correct", "loss_sum_bits", "weight_bits"}, place);
  const auto& optimizer = field(json, "optimizer", place);
  require_keys(optimizer, {"name", "steps", "beta1_power_bits", "beta2_power_bits"}, place);
  const std::string name = text_in(optimizer, "name", place);
  const auto kind = optim::optimizer_named(name);
  if (!kind) fail(place, "'" + name + "' is not an optimizer of this version");
  TrainingState state;
  state.position.epoch = count_in(json, "epochs_completed", place);
  state.position.step = count_in(epoch, "steps", place);
  state.position.examples = count_in(epoch, "examples", place);
  state.position.tally.correct = count_in(epoch, "correct", place);
  state.position.tally.loss_sum = bits_in(epoch, "loss_sum_bits", place);
  state.position.tally.weight = epoch.contains("weight_bits")
                                    ? bits_in(epoch, "weight_bits", place)
                                    : static_cast<double>(state.position.examples);
  state.optimizer = {
      *kind,
      {count_in(optimizer, "steps", place), bits_in(optimizer, "beta1_power_bits", place),
       bits_in(optimizer, "beta2_power_bits", place)}};
  state.settings = text_pairs_in(json, "settings", place);
  if (json.contains("best")) {
    const auto& best = field(json, "best", place);
    require_keys(best, {"epoch", "step", "figure_bits"}, place);
    state.position.best = {count_in(best, "epoch", place), count_in(best, "step", place),
                           bits_in(best, "figure_bits", place)};
  }
  return state;
}

void read_moments(const std::filesystem::path& folder, const nn::ParameterLayout<float>& layout,
                  const optim::OptimizerOptions& optimizer, optim::Moment moment,
                  std::span<float> block) {
  const auto& tensors = layout.tensors();
  const auto path = folder / "optimizer.safetensors";
  const bool has_none = SafetensorsReader(path, remedy).tensors().empty();  // sgd without momentum
  if (has_none) return std::fill(block.begin(), block.end(), 0.0F);
  const SafetensorsReader file(path, moments_of(tensors, optim::moment_names(optimizer)), remedy);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t index = moment == optim::Moment::first ? i : tensors.size() + i;
    layout.set_from_whole(block, i, file.read(index));
  }
}

}  // namespace lockstep::train

// Checkpoints: save the state of training with a description of the network, find, verify and read
// it.
//
//   checkpoints/step-00001407/    after 1407 steps; renamed to this name when all files are on disk
//     model.safetensors           F32 tensors "0.weight" [inputs, outputs] row-major, "0.bias"
//                                 [outputs], ...
//     optimizer.safetensors       its moments, in the same shapes: "0.weight.m", "0.weight.v",
//                                 ...
//     network.json                the network, its training data, and the hash of its weights
//     state.json                  the position of training, the optimizer's scalars, and settings
//     manifest.json               length and XXH3 of every other file; written last
//
// With the canonical reduction all files have the same bytes for any number of ranks, mesh and
// device, and whether or not training was interrupted. A checkpoint without optimizer.safetensors
// and state.json serves evaluation only.
//
// network.json is one object:
//   model mlp      "widths": [784, 700, 500, 10], "activation": "relu"
//   model layers   "input": [28, 28, 1] or [784], "layers": [{"kind": "conv", ...}, ...] with the
//                  keys of run files; the last layer is dense, to the classes
//   all            "loss", "parameters", "divide_by", "data", "step", "examples", "weights_hash"
//   table          "table": {"label" and "classes", or "labels": [names], or "targets": [{"name",
//                  "mean", "deviation"}, ...], "weight" if there is one, "columns": [{"name",
//                  "mean", "deviation"}, {"name", "categories"}, ...], "left_out", "header",
//                  "standardized", "missing"}, as in data::TableSchema; if the data is one
//   pictures       "pictures": {"size": [rows, columns], "channels", "classes", and of a table of
//                  paths "path_column", "label_column", "header"}, as in data::PictureSchema; if
//                  the data is pictures
// state.json is one object:
//   {"step": 100, "examples": 12800, "epochs_completed": 0,
//    "epoch": {"steps": 100, "examples": 12800, "correct": 9000, "loss_sum_bits": "16 hex digits",
//    "weight_bits": "..."},
//    "optimizer": {"name": "adam", "steps": 100, "beta1_power_bits": "...", "beta2_power_bits":
//    "..."}, "settings": {"batch-size": "128", ...},
//    "best": {"epoch": 2, "step": 60, "figure_bits": "..."}}     with a choice of the best epoch
// where "..._bits" are the bits of a double. "weight_bits" is the sum of the weights in the epoch,
// if it is not the number of examples. manifest.json contains the version of the format; another
// version, and an unknown key, are errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/loss.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::data {
struct PictureSchema;
struct TableSchema;  // table.hpp
}  // namespace lockstep::data
namespace lockstep::nn {
template <class Real>
class Network;  // network.hpp
}

namespace lockstep::train {

/// How the weights of a checkpoint were trained.
struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t examples = 0;  ///< trained on so far
  float divide_by = 1;         ///< divisor of the features
  std::string data = {};       ///< description of the data set
  /// The columns of the data set, if it is a table; else null.
  std::shared_ptr<const data::TableSchema> table = nullptr;
  /// Size, channels and classes of the data set, if it is of pictures; else null.
  std::shared_ptr<const data::PictureSchema> pictures = nullptr;

  /// The text of each class; empty: labels are numbers.
  std::vector<std::string> class_names() const;
};

/// The best epoch so far, by a figure of the validation set. An epoch that TrainerOptions::steps
/// cut short counts only while no whole epoch was evaluated.
struct BestEpoch {
  std::uint64_t epoch = 0;  ///< from 1; 0: none yet
  std::uint64_t step = 0;   ///< completed steps of the run at its end
  double figure = 0;
};

/// A position of training between two steps, with the sums over the steps of the current epoch.
struct TrainingPosition {
  std::uint64_t epoch = 0;  ///< completed and evaluated epochs
  std::uint64_t step = 0;   ///< completed steps of the current epoch
  std::uint64_t examples = 0;
  nn::Tally tally = {};
  BestEpoch best = {};
};

/// The optimizer of a checkpoint, and its scalars.
struct SavedOptimizer {
  optim::OptimizerKind kind = optim::OptimizerKind::adam;
  optim::OptimizerScalars scalars = {};
};

/// The format of the checkpoints that this version writes and reads: "version" in manifest.json.
inline constexpr std::uint64_t checkpoint_format = 3;

/// What training needs to continue, besides weights and moments: the content of state.json.
struct TrainingState {
  TrainingPosition position;
  SavedOptimizer optimizer = {};
  /// The program's settings that determine the results, and their values.
  std::vector<std::pair<std::string, std::string>> settings = {};
};

/// The folder name of a checkpoint: "step-00001407".
std::string checkpoint_name(std::uint64_t step);

/// The folders in `folder` named like checkpoints, by step. Throws DataError if it cannot be
/// listed. Local.
std::map<std::uint64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

/// True if the run in the folder `run` has a checkpoint, be it damaged; false if that cannot be
/// found out. Local.
bool has_checkpoint(const std::filesystem::path& run) noexcept;

/// Throws OutputError if the folder `checkpoints` has a checkpoint of this step. Local.
void require_no_checkpoint(const std::filesystem::path& checkpoints, std::uint64_t step);

/// Writes `checkpoints`/step-NNNNNNNN/ with the weights of a network, which may have layers of any
/// kind, and returns its path. Disk space for the tensors is reserved first.
///
/// Errors   throws OutputError, also if a checkpoint of this step exists: other checkpoints are not
///          changed; std::invalid_argument for a network of which this rank holds only a part (use
///          Replica::save() instead); ConfigError for more tensors than a file's header can name,
///          or if `info` does not fit the network.
/// Ranks    local; call it on one rank of a job.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info);

/// Copies a checkpoint of training to `checkpoints`/step-NNNNNNNN/, with the position and settings
/// of `state` in place of its own, and compares its files with manifest.json.
///
/// Errors   throws DataError if `from` is damaged, or holds weights alone; OutputError. No part of
///          the copy is left.
/// Ranks    local.
void copy_checkpoint(const std::filesystem::path& from, const std::filesystem::path& checkpoints,
                     const TrainingState& state);

/// The content of network.json. Allocates no memory for weights.
struct SavedNetwork {
  std::filesystem::path folder;  ///< checkpoints/step-NNNNNNNN
  nn::NetworkShape shape;
  CheckpointInfo info;
  std::string loss = nn::default_loss;  ///< Loss::name()
  std::uint64_t weights_hash = 0;       ///< nn::weights_hash() of the weights
};

/// Returns `path` if it is a checkpoint; else the checkpoint of the greatest step in `path`, which
/// is a run directory or its `checkpoints` folder; of RUN/best that of the run's best epoch.
///
/// Errors   throws DataError: no such folder, no checkpoint in it, or not that of a best epoch.
/// Ranks    local.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Compares lengths and checksums of all files with manifest.json. Reads them once.
///
/// Errors   throws DataError with file and reason: missing, not a regular file, of another length
///          or checksum, or of another format.
/// Ranks    local.
void verify_checkpoint(const std::filesystem::path& folder);

/// verify_checkpoint(), and compares the folder's name with the step in network.json. Throws
/// DataError. Local.
void require_intact(const std::filesystem::path& folder);

/// The checkpoint of the greatest step in the folder `checkpoints` that verify_checkpoint() and
/// read_state() accept and that is named after its step; nullopt if there is none. Adds the reason
/// for each one it skips to `skipped`.
///
/// Errors   throws DataError if the folder cannot be listed.
/// Ranks    local.
std::optional<std::filesystem::path> newest_valid_checkpoint(
    const std::filesystem::path& checkpoints, std::vector<std::string>& skipped);

/// Renames the checkpoints after these steps that are damaged, as newest_valid_checkpoint() finds
/// it, to NAME.damaged: else evaluate, predict and the next --resume would take one of them for the
/// run's last. Local.
void set_aside_damaged_after(const std::filesystem::path& checkpoints, std::uint64_t steps);

/// Of the checkpoints up to `step`, deletes all except the `keep` newest and, if `keep_every` is
/// set, those of a step that it divides, and that of step `best`. Throws OutputError. Local.
void remove_old_checkpoints(const std::filesystem::path& checkpoints, std::uint64_t step,
                            std::uint64_t keep, std::optional<std::uint64_t> keep_every,
                            std::uint64_t best = 0);

/// Deletes the checkpoints of later steps than `step`, and returns their number. Throws
/// OutputError; DataError if the folder cannot be listed. Local.
std::uint64_t remove_checkpoints_after(const std::filesystem::path& checkpoints,
                                       std::uint64_t step);

/// Reads `folder`/network.json, after comparing it and the sizes of all files with manifest.json.
/// `kinds` are the program's custom layers.
///
/// Errors   throws DataError with file and reason: missing, not a regular file, damaged, of an
///          unknown kind, or with more weights than the file has bytes for.
/// Ranks    local.
SavedNetwork read_description(const std::filesystem::path& folder,
                              const nn::LayerKinds& kinds = {});

/// Throws DataError unless the layers of `shape` have the functions and inputs of those of `saved`,
/// dropout included; names and `frozen` may differ. Local.
void require_same_layers(const SavedNetwork& saved, const nn::NetworkShape& shape);

/// Reads model.safetensors into `network`, for which require_same_layers() must hold. Of tensors
/// that are sharded over ranks it reads this rank's shard.
///
/// Errors   throws DataError for a file that is missing, damaged or of another network, and for
///          weights whose hash differs from the one in network.json.
/// Ranks    local.
void read_weights(const SavedNetwork& saved, nn::Network<float>& network);

/// Reads `folder`/state.json, after comparing it with manifest.json.
///
/// Errors   throws DataError; also for a checkpoint that holds weights alone.
/// Ranks    local.
TrainingState read_state(const std::filesystem::path& folder);

/// The layout of tensors in a file. pytorch: those of a state_dict(): weights of dense layers
/// [outputs, inputs], of convolutions [filters, channels, rows, columns]; after a flatten the
/// inputs of a dense layer are ordered by channel, row, column. The gain of a normalisation is
/// called "weight", the running statistics "running_mean" and "running_var".
enum class TensorLayout { lockstep, pytorch };

/// The weights to start from, and which of them belong to which layer.
///
/// A layer of the network is called by its name, by its number from 0 in NetworkShape::layers, or
/// "last"; its tensors "LAYER.weight", "LAYER.bias", ... as in checkpoints. In the file a layer is
/// called by its number, or, in PyTorch's layout, by its name if it has one.
struct InitialWeights {
  std::filesystem::path from;  ///< a run, a checkpoint, or a file in the safetensors format
  TensorLayout layout = TensorLayout::lockstep;
  /// Names of layers or tensors of the network, and those in the file.
  std::vector<std::pair<std::string, std::string>> map = {};
  /// Layers or tensors of the network that keep their weights. Those of the file with their names
  /// are not used.
  std::vector<std::string> fresh = {};
  /// Tensors of the file that are not used, or the names before a dot that they begin with.
  std::vector<std::string> ignored = {};
};

/// What was read.
struct TakenWeights {
  std::filesystem::path file;         ///< model.safetensors of a checkpoint, or the file
  std::optional<SavedNetwork> saved;  ///< the description of the checkpoint; none for a file
  std::vector<std::string> taken;     ///< names of the network's tensors
  std::vector<std::string> fresh;     ///< names of the others
  bool takes_first = false;           ///< the first tensor of the network is among `taken`
};

/// Reads weights into `network`. Every tensor of the network must be in the file or fresh, and
/// every tensor of the file must be used, ignored or the counterpart of a fresh one; PyTorch's
/// num_batches_tracked is ignored. Values of type F32, F64, F16 and BF16 are rounded to float32. Of
/// tensors that are sharded over ranks it reads this rank's shard. `verifies`: compares a
/// checkpoint with its manifest's checksums, which one rank of a host needs to do.
///
/// Errors   throws ConfigError for names that are not the network's, that are given twice, or that
///          the file does not have; DataError with the file for a file that is missing, damaged, or
///          of another network: a tensor that is missing, not used, or of another shape or type.
///          The weights are then unspecified.
/// Ranks    local.
TakenWeights read_initial_weights(const InitialWeights& initial, nn::Network<float>& network,
                                  bool verifies);

}  // namespace lockstep::train

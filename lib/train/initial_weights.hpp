// The weights that training starts from: those of another network, for fine-tuning.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/checkpoint.hpp"

namespace lockstep::train {

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
/// tensors that are sharded over ranks it reads this rank's shard.
///
/// Errors   throws ConfigError for names that are not the network's, that are given twice, or that
///          the file has not; DataError with the file for a file that is missing, damaged, or of
///          another network: a tensor that is missing, not used, or of another shape or type. The
///          weights are then unspecified.
/// Ranks    local.
TakenWeights read_initial_weights(const InitialWeights& initial, nn::Network<float>& network);

}  // namespace lockstep::train

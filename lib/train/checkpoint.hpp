// A network on disk: weights that any tool reads, and what describes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/nn/network.hpp"

namespace lockstep::train {
/// What a checkpoint says about itself besides the weights.
struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t examples = 0;  ///< trained on so far
  float divide_by = 1;         ///< what features were divided by
  std::string data = {};       ///< what it was trained on, in words
};

/// "step-00001407": the folder of a checkpoint.
std::string checkpoint_name(std::uint64_t step);

/// Writes `checkpoints`/step-NNNNNNNN/ and returns its path.
///
/// The folder holds `model.safetensors` (F32 tensors "0.weight" [inputs, outputs] row-major,
/// "0.bias" [outputs], and so on, whatever the ranks and the padding) and `network.json` (kind and
/// widths of the network, its loss, step, the weights' hash). It is written under another name,
/// reaches the disk, and is renamed: a folder named step-... is always whole.
/// Errors   throws OutputError; std::invalid_argument for a loss of the user's own with the name of
///          a built-in one, and for a network of which this rank holds a part (whole_network()
///          puts it together). Checkpoints written before stay as they were.
/// Ranks    local; one rank of a job calls it.
/// Source   https://github.com/huggingface/safetensors, "Format".
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info);

// A checkpoint read back: what it says of its network, then its weights.

/// What a checkpoint says of itself, before any memory is taken for weights.
struct SavedNetwork {
  std::filesystem::path folder;  ///< checkpoints/step-NNNNNNNN
  nn::NetworkShape shape;
  CheckpointInfo info;                  ///< how it was trained
  std::string loss = nn::default_loss;  ///< Loss::name() of what it was trained for
  std::uint64_t weights_hash = 0;       ///< as nn::weights_hash() of its weights gives it
};

/// The checkpoint that `path` means: itself, or the last (of the greatest step) in a run directory
/// or in its `checkpoints`.
///
/// Errors   throws DataError: nothing there, or nothing with a checkpoint in it.
/// Ranks    local.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Reads `folder`/network.json, whose layers are built in or of `kinds`, and holds it against the
/// size of model.safetensors.
///
/// Formats  those that save_checkpoint() writes; further fields are ignored; without `loss`
///          it is nn::default_loss.
/// Errors   throws DataError with file and reason: missing, not regular, damaged, of a kind that
///          this version does not know, or widths for more weights than the file has bytes.
/// Ranks    local.
SavedNetwork read_description(const std::filesystem::path& folder,
                              const nn::LayerKinds& kinds = {});

/// Fills the weights of `network`, which has the saved network's shape, from model.safetensors; of
/// tensors that are shared out over ranks, this rank's part.
///
/// Tensors may stand in any order, and cover the file without gap or overlap.
/// Errors   throws DataError with file, byte or tensor, and reason: a header that is longer than
///          the file or no JSON; a tensor that is missing, unknown, of another type or shape, or
///          outside the file; weights whose hash is not the one in network.json.
/// Ranks    local.
void read_weights(const SavedNetwork& saved, nn::Network<float>& network);

}  // namespace lockstep::train

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

}  // namespace lockstep::train

// Checkpoints: saving a network's weights with its description, finding them, and reading them
// back.
//
//   checkpoints/step-00001407/    after 1407 steps; complete, for it is renamed once all is on disk
//     model.safetensors           F32 tensors "0.weight" [inputs, outputs] row-major, "0.bias"
//                                 [outputs], ...: the same bytes for any number of ranks
//     network.json                the network, how it was trained, and the hash of its weights
//
// network.json is one object. Fields may be added, never renamed; unknown ones are ignored.
//   model mlp      "widths": [784, 700, 500, 10], "activation": "relu"
//   model layers   "input": [28, 28, 1] or [784], "layers": [{"kind": "conv", ...}, ...] with the
//   keys
//                  of run files; the last layer is dense, to the classes
//   all            "loss", "parameters", "divide_by", "data", "step", "examples", "weights_hash"
//
// Source   https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/nn/network.hpp"

namespace lockstep::train {

/// How the weights of a checkpoint were trained.
struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t examples = 0;  ///< trained on so far
  float divide_by = 1;         ///< what features were divided by
  std::string data = {};       ///< the data set, in words
};

/// "step-00001407": the folder of a checkpoint.
std::string checkpoint_name(std::uint64_t step);

/// Writes `checkpoints`/step-NNNNNNNN/ and returns its path. Its layers may be of any kind.
///
/// Errors   throws OutputError; std::invalid_argument for a custom loss with the name of a built-in
///          one, and for a network of which this rank holds a part (save whole_network() instead).
///          Checkpoints written before stay as they were.
/// Ranks    local; one rank of a job calls it.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info);

/// The content of network.json. No memory is taken for weights.
struct SavedNetwork {
  std::filesystem::path folder;  ///< checkpoints/step-NNNNNNNN
  nn::NetworkShape shape;
  CheckpointInfo info;
  std::string loss = nn::default_loss;  ///< Loss::name()
  std::uint64_t weights_hash = 0;       ///< nn::weights_hash() of the weights
};

/// `path` itself if it is a checkpoint; else the one of the greatest step in a run directory or in
/// its `checkpoints`.
///
/// Errors   throws DataError: no such folder, or no checkpoint in it.
/// Ranks    local.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Reads `folder`/network.json, and checks it against the size of model.safetensors. `kinds` are
/// the program's own kinds of layers.
///
/// Errors   throws DataError with file and reason: missing, not regular, damaged, of a kind that
///          this version does not know, or of more weights than the file has bytes for.
/// Ranks    local.
SavedNetwork read_description(const std::filesystem::path& folder,
                              const nn::LayerKinds& kinds = {});

/// Reads model.safetensors into `network`, which has the shape of `saved`. Of tensors that are cut
/// over ranks it reads this rank's part.
///
/// Tensors may stand in any order, and must cover the file without gap or overlap.
/// Errors   throws DataError with file, byte or tensor, and reason: a header that is longer than
///          the file or no JSON; a tensor that is missing, unknown, of another type or shape, or
///          outside the file; weights whose hash is not the one in network.json.
/// Ranks    local.
void read_weights(const SavedNetwork& saved, nn::Network<float>& network);

}  // namespace lockstep::train

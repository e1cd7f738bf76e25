// Checkpoints: save a network's weights with its description, find checkpoints, and read them.
//
//   checkpoints/step-00001407/    after 1407 steps; renamed to this name when all files are on disk
//     model.safetensors           F32 tensors "0.weight" [inputs, outputs] row-major, "0.bias"
//                                 [outputs], ...: the same bytes for any number of ranks
//     network.json                the network, its training data, and the hash of its weights
//
// network.json is one object. Fields may be added, never renamed; unknown ones are ignored.
//   model mlp      "widths": [784, 700, 500, 10], "activation": "relu"
//   model layers   "input": [28, 28, 1] or [784], "layers": [{"kind": "conv", ...}, ...] with the
//                  keys of run files; the last layer is dense, to the classes
//   all            "loss", "parameters", "divide_by", "data", "step", "examples", "weights_hash"
//
// Source   https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/nn/network.hpp"

namespace lockstep::train {

/// How the weights of a checkpoint were trained.
struct CheckpointInfo {
  std::uint64_t step = 0;
  std::uint64_t examples = 0;  ///< trained on so far
  float divide_by = 1;         ///< divisor of the features
  std::string data = {};       ///< description of the data set
};

/// The folder name of a checkpoint: "step-00001407".
std::string checkpoint_name(std::uint64_t step);

/// Writes `checkpoints`/step-NNNNNNNN/ and returns its path. Layers may be of any kind.
///
/// Errors   throws OutputError; std::invalid_argument for a custom loss with the name of a built-in
///          one, and for a network of which this rank holds only a part (save whole_network()
///          instead). Earlier checkpoints are not changed.
/// Ranks    local; call it on one rank of a job.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints,
                                      const nn::Network<float>& network,
                                      const CheckpointInfo& info);

/// The content of network.json. Allocates no memory for weights.
struct SavedNetwork {
  std::filesystem::path folder;  ///< checkpoints/step-NNNNNNNN
  nn::NetworkShape shape;
  CheckpointInfo info;
  std::string loss = nn::default_loss;  ///< Loss::name()
  std::uint64_t weights_hash = 0;       ///< nn::weights_hash() of the weights
};

/// Returns `path` if it is a checkpoint; else the checkpoint of the greatest step in `path`, which
/// is a run directory or its `checkpoints` folder.
///
/// Errors   throws DataError: no such folder, or no checkpoint in it.
/// Ranks    local.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// Reads `folder`/network.json, and checks it against the size of model.safetensors. `kinds` are
/// the program's custom layers.
///
/// Errors   throws DataError with file and reason: missing, not a regular file, damaged, of an
///          unknown kind, or with more weights than the file has bytes for.
/// Ranks    local.
SavedNetwork read_description(const std::filesystem::path& folder,
                              const nn::LayerKinds& kinds = {});

/// Reads model.safetensors into `network`, which must have the shape of `saved`. Of tensors that
/// are sharded over ranks it reads this rank's shard.
///
/// Tensors may be in any order, and must cover the file without gap or overlap.
/// Errors   throws DataError with file, byte or tensor, and reason: a header that is longer than
///          the file or is not JSON; a tensor that is missing, unknown, of another type or shape,
///          or outside the file; weights whose hash differs from the one in network.json.
/// Ranks    local.
void read_weights(const SavedNetwork& saved, nn::Network<float>& network);

}  // namespace lockstep::train

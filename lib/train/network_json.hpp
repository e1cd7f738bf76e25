// network.json of a checkpoint: a network, what it was trained on, and the hash of its weights. The
// format is described in checkpoint.hpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/nn/network.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {

/// The text of network.json. Local.
std::string network_json(const nn::NetworkShape& shape, const std::string& loss,
                         const CheckpointInfo& info, std::uint64_t weights_hash);

/// The inverse, without the folder.
/// Errors   throws DataError, with the place, for anything that network_json() does not write.
/// Ranks    local.
SavedNetwork network_in(const nlohmann::ordered_json& json, const JsonPlace& place,
                        const nn::LayerKinds& kinds);

}  // namespace lockstep::train

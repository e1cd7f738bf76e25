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

/// The text of network.json; bytes of CheckpointInfo::data that are not UTF-8 are replaced. Local.
std::string network_json(const nn::NetworkShape& shape, const std::string& loss,
                         const CheckpointInfo& info, std::uint64_t weights_hash);

/// Throws ConfigError if network_in() would not read what network_json() writes of `info`, for a
/// network of this shape. Local.
void require_describes(const CheckpointInfo& info, const nn::NetworkShape& shape);

/// The inverse, without the folder.
/// Errors   throws DataError, with the place, for anything that network_json() does not write.
/// Ranks    local.
SavedNetwork network_in(const nlohmann::ordered_json& json, const JsonPlace& place,
                        const nn::LayerKinds& kinds);

}  // namespace lockstep::train

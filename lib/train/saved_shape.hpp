// The network that a network.json describes.
#pragma once

#include "lib/nn/network_shape.hpp"
#include "lib/train/json_fields.hpp"

namespace lockstep::train {

/// Reads `model` and what belongs to it, and holds it against `parameters`.
///
/// Formats  model mlp: `widths` and `activation`; model layers: `input` and a list of `layers`, as
///          run files have them, or of `kinds`, the last one dense to the classes.
/// Errors   throws DataError with file and reason: of a kind that this version does not know, no
///          network at all, or another number of weights than it says.
/// Ranks    local.
nn::NetworkShape shape_in(const nlohmann::ordered_json& json, const JsonPlace& place,
                          const nn::LayerKinds& kinds);

}  // namespace lockstep::train

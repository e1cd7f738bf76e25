// `lockstep train --init`: the weights that training starts from.
#pragma once

#include <optional>
#include <string>

#include "apps/settings.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/replica.hpp"

namespace lockstep::apps {

/// The settings `init...`; nullopt for `init=none`. Throws ConfigError for the others without it,
/// and for lists that are not of names. Local.
std::optional<train::InitialWeights> initial_weights(const RunConfig& config);

/// Sets the weights of `replica` that the settings name, before its first step. Returns the
/// banner's text; empty: none. Rank 0 warns of data that is scaled otherwise than the checkpoint's.
///
/// Errors   throws comm::AgreedError: those of Replica::start_from(); columns of the table that are
///          not the checkpoint's (2).
/// Ranks    collective.
std::string start_from(const RunConfig& config, const data::Source& train, train::Replica& replica);

/// "1,234 parameters, 120 of them trained".
std::string parameters_text(const nn::NetworkShape& shape);

}  // namespace lockstep::apps

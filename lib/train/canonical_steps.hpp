// The two canonical steps, for make_canonical_step() alone, and what they share.
#pragma once

#include <algorithm>

#include "lib/train/step.hpp"

namespace lockstep::train {

std::unique_ptr<Step> make_activations_step(nn::Network<float>& network,
                                            const CanonicalOptions& options,
                                            comm::Communicator& comm);
std::unique_ptr<Step> make_partial_sums_step(nn::Network<float>& network,
                                             const CanonicalOptions& options,
                                             comm::Communicator& comm);

/// Zeroes rows that hold no example, in all that is summed over (data::Plan says why).
inline void clear(nn::Network<float>& network, nn::Rows rows) {
  network.for_each_exchanged(rows, [](std::span<float> v) { std::fill(v.begin(), v.end(), 0.0F); });
}

}  // namespace lockstep::train

// The two canonical steps, for make_canonical_step() alone.
#pragma once

#include "lib/train/step.hpp"

namespace lockstep::train {

std::unique_ptr<Step> make_activations_step(nn::Network<float>& network,
                                            const CanonicalOptions& options,
                                            comm::Communicator& comm);
std::unique_ptr<Step> make_partial_sums_step(nn::Network<float>& network,
                                             const CanonicalOptions& options,
                                             comm::Communicator& comm);

}  // namespace lockstep::train

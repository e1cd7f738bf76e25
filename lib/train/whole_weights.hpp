// Whole tensors of a network whose weights are shared out over ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/nn/network.hpp"
#include "lib/train/mesh.hpp"

namespace lockstep::train {

/// Tensor `index`, row-major, the same on every rank. Needs memory for it.
/// Ranks    collective over `groups.model`; local where there is none.
std::vector<float> whole_tensor(const nn::ParameterBlock<float>& block, std::size_t index,
                                const Groups& groups);

/// Hash of all weights, for any mesh that of the same network without one. Ranks as above.
std::uint64_t whole_hash(const nn::ParameterBlock<float>& block, const Groups& groups);

/// A network without rows that has all weights, and the loss, for saving. Needs memory for them.
/// Null where `network` has them itself, and on all ranks of `groups.all` but the first.
/// Errors   throws std::bad_alloc.
/// Ranks    as above.
std::unique_ptr<nn::Network<float>> whole_network(const nn::Network<float>& network,
                                                  Products<float>& products, const Groups& groups);

}  // namespace lockstep::train

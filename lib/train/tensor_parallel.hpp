// Tensor parallelism: dense layers with weights sharded over ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/nn/layer.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/groups.hpp"

namespace lockstep::train {
// clang-format off
/// Creates the layers of a shape; this rank holds a shard of the weights of every dense layer.
///
///   columns   sharded by outputs: a rank computes y = act(x W + b) for its own columns. If only
///             the next layer takes y and is dense, it is sharded by rows and y is not moved; else
///             y is all-gathered.
///   rows      sharded by inputs, like the columns of the layer before: y = act(x W + b) is summed
///             over ranks.
///   sums      over ranks (y of rows, dx of columns) are not sums of partial results: the chain of
///             each element begins on the first rank and continues from rank to rank, in the order
///             of the unsharded layer. The rows of the batch are pipelined in groups, so that all
///             ranks are busy.
///   others    convolution, pooling and so on are replicated on every rank.
///
/// With strict products every output, gradient and weight is bitwise equal to that of the unsharded
/// layer, for any number of ranks in `model`. Each rank holds the shards given by
/// ParameterSpec::cut; the bias of a layer sharded by rows is on the first rank only.
/// Data     for each row of the batch, the y of rows and, in backward, the dx of columns are sent
///          from neighbour to neighbour, then broadcast from the last rank. A y of columns that is
///          all-gathered is sent once.
/// Errors   throws ConfigError: a dense layer with fewer inputs or outputs than ranks.
/// Ranks    construction is local; every pass is collective over `model`, which must outlive the
///          layers: all of its ranks compute the same rows.
/// Source   Shoeybi et al. 2019, "Megatron-LM", 3 (columns, then rows), arXiv:1909.08053.
// clang-format on
template <class Real>
std::vector<nn::NumberedLayer<Real>> make_sharded_layers(const nn::NetworkShape& shape,
                                                         comm::Communicator& model);

/// Returns the layers for a Network on these ranks; empty without tensor parallelism, so that the
/// network creates its own layers.
std::vector<nn::NumberedLayer<float>> make_layers_of(const nn::NetworkShape& shape,
                                                     const Groups& groups);

/// The shard of `width` inputs or outputs on `rank` of `ranks`: intervals in rank order, of
/// multiples of 16 if `width` is large enough.
Range shard_of(std::size_t width, int rank, int ranks) noexcept;

/// Returns the unsharded tensor `index` of a block of this layout, row-major, on every rank. Needs
/// memory for it.
/// Ranks    collective over `groups.model`; local without it.
std::vector<float> whole_tensor(const nn::ParameterLayout<float>& layout,
                                std::span<const float> block, std::size_t index,
                                const Groups& groups);

/// Hash of all weights, equal to that of the same network without a mesh. Ranks as above.
std::uint64_t whole_hash(const nn::ParameterBlock<float>& block, const Groups& groups);

}  // namespace lockstep::train

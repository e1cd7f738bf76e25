// Dense layers whose weights are shared out over ranks: tensor parallelism.
#pragma once

#include <vector>

#include "collectives/communicator.hpp"
#include "lib/nn/layers.hpp"
#include "lib/train/mesh.hpp"

namespace lockstep::train {

// clang-format off
/// The layers of a shape, of which every dense one keeps a part of its weights here.
///
///   columns   outputs are cut: y = act(x W + b) of a rank's own columns. If the next layer is dense,
///             it takes rows, and y stays where it is; else all ranks gather y.
///   rows      inputs are cut as the columns before them: y = act(x W + b) is summed over ranks.
///   sums      over ranks (y of rows, dx of columns) are no sums of parts: the chain of each element
///             begins on the first rank and goes on from rank to rank, in the order of the whole
///             layer's. Rows of the batch follow each other in groups, so that all ranks work.
///   others    convolution, pooling and the like are computed by every rank alike.
///
/// With strict products every output, gradient and weight has the bits of the layer that is not
/// shared out, for any number of ranks in `model`. Each rank keeps the parts that Tensor::cut names;
/// the bias of rows stands on the first rank alone.
/// Moves    for each row of the batch the y of rows and, on the way back, the dx of columns: from
///          neighbour to neighbour, then from the last to all. A y that is gathered moves once.
/// Errors   throws ConfigError: a dense layer narrower than the ranks.
/// Ranks    making is local; every pass is collective over `model`, which must outlive the layers:
///          all of its ranks compute the same rows.
/// Source   Shoeybi et al. 2019, "Megatron-LM", 3 (columns, then rows), arXiv:1909.08053.
// clang-format on
template <class Real>
std::vector<nn::NumberedLayer<Real>> make_sharded_layers(const nn::NetworkShape& shape,
                                                         comm::Communicator& model);

/// The layers for a Network of these ranks: none where nobody shares weights, so that it makes its
/// own.
std::vector<nn::NumberedLayer<float>> make_layers_of(const nn::NetworkShape& shape,
                                                     const Groups& groups);

/// The part of `width` inputs or outputs that `rank` of `ranks` keeps: runs in rank order, of whole
/// vectors of 16 where there are enough.
Slice shard_of(std::size_t width, int rank, int ranks) noexcept;

}  // namespace lockstep::train

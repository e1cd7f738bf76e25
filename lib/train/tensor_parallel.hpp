// Dense layers whose weights are shared out over ranks: tensor parallelism.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "lib/distribute/mesh.hpp"
#include "lib/nn/layer.hpp"
#include "lib/nn/network.hpp"

namespace lockstep::train {
// Who a rank trains with: all ranks, or a mesh of batch x model.

/// Sizes of the dimensions "batch" and "model", in this order: ranks that share a replica's weights
/// are neighbours.
struct MeshSizes {
  std::uint64_t batch = 1;  ///< replicas, among which the plan deals examples
  std::uint64_t model = 1;  ///< ranks that share the weights of one replica's dense layers
};

/// The groups that a rank belongs to, as those see them who use them.
struct Groups {
  /// Every rank has a whole replica.
  Groups(comm::Communicator& ranks) : all(ranks), batch(ranks) {}  // NOLINT: that is what it means
  /// Dimensions "batch" and "model", as make_mesh() has them. The mesh must outlive this.
  Groups(Mesh& mesh);  // NOLINT

  /// Ranks that share one replica's weights.
  std::uint64_t model_ranks() const noexcept {
    return model == nullptr ? 1 : static_cast<std::uint64_t>(model->size());
  }

  /// Whether all of them say so, who share one replica's weights and see different parts of them.
  bool all_agree(bool ok) const { return model == nullptr ? ok : model->all_agree(ok); }

  /// Runs `work`, in which the ranks of one `batch` throw an AgreedError together; then all ranks
  /// throw it. Collective; without `model` it costs nothing.
  void fail_together(const std::function<void()>& work) const;

  comm::Communicator& all;
  comm::Communicator& batch;            ///< ranks that hold the same weights
  comm::Communicator* model = nullptr;  ///< ranks that share a replica's; null: nobody does
};

/// A mesh of these sizes. Collective.
std::unique_ptr<Mesh> make_mesh(comm::Communicator& ranks, const MeshSizes& sizes);

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
/// shared out, for any number of ranks in `model`. Each rank keeps the parts that ParameterSpec::cut names;
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
Range shard_of(std::size_t width, int rank, int ranks) noexcept;

// Whole tensors of a network whose weights are shared out over ranks.

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

// Tensor parallelism: the ranks of a replica, and dense layers with weights sharded over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "lockstep/nn/layer.hpp"
#include "lockstep/nn/network.hpp"

namespace lockstep::train {
/// Sizes of the mesh dimensions "batch" and "model", in this order: tensor-parallel ranks of one
/// replica are adjacent.
struct MeshSizes {
  std::uint64_t batch = 1;  ///< data-parallel: number of replicas, over which the plan is made
  std::uint64_t model = 1;  ///< tensor-parallel: number of ranks per replica
};

/// This rank's world, data-parallel and tensor-parallel communicators.
struct Groups {
  /// Every rank has a whole replica.
  Groups(comm::Communicator& ranks) : all(ranks), batch(ranks) {}  // NOLINT: implicit by design
  /// `mesh`: with dimensions "batch" and "model", as make_mesh() returns. It must outlive this.
  Groups(Mesh& mesh);  // NOLINT

  /// Number of tensor-parallel ranks per replica.
  std::uint64_t model_ranks() const noexcept {
    return model == nullptr ? 1 : static_cast<std::uint64_t>(model->size());
  }

  /// Runs `work`. If the ranks of one `batch` throw an AgreedError in it, all ranks throw it; an
  /// error of code 70 keeps its type, without its rank.
  /// Collective; without `model` it only calls `work`.
  void fail_together(const std::function<void()>& work) const;

  comm::Communicator& all;
  comm::Communicator& batch;            ///< data-parallel: ranks with the same (shard of) weights
  comm::Communicator* model = nullptr;  ///< tensor-parallel: ranks of one replica; null: none
};

/// Creates a mesh of these sizes. Collective.
std::unique_ptr<Mesh> make_mesh(comm::Communicator& ranks, const MeshSizes& sizes);

// clang-format off
/// How the ranks of a replica share the weights of a layer.
///
///   columns           sharded by outputs: a rank computes y = act(x W + b) for its own columns. The
///                     next layer is dense and alone takes y: it is sharded by rows and y is not
///                     moved.
///   gathered_columns  the same, but y is all-gathered.
///   rows              sharded by inputs, like the columns of the layer before: y = act(x W + b) is
///                     summed over ranks.
///   none              every rank has the whole layer: convolution, pooling and so on, and dense
///                     layers that are not sharded by rows and have too few outputs: fewer than
///                     there are ranks, or at most 16, which are computed together, in a network
///                     that has a dense layer with more.
///
/// Sums over ranks (y of rows, dx of both kinds of columns) are not sums of partial results: the
/// chain of each element begins on the first rank and continues from rank to rank, in the order of
/// the unsharded layer. Pieces of the result are pipelined, so that all ranks are busy.
///
/// With strict products every output, gradient and weight is bitwise equal to that of the unsharded
/// layer, for any number of ranks in `model`. Each rank holds the shards given by
/// ParameterSpec::cut; the bias of a layer sharded by rows is on the first rank only.
/// Data     for each row of the batch, the y of rows and the dx of columns are sent from neighbour
///          to neighbour, then broadcast from the last rank. A y that is all-gathered is sent once.
/// Source   Shoeybi et al. 2019, "Megatron-LM", 3 (columns, then rows), arXiv:1909.08053.
// clang-format on
enum class Sharding { none, columns, gathered_columns, rows };

/// Returns the sharding of each layer of `shape` on `ranks` ranks; all `none` for one rank.
/// Errors   throws ConfigError if no dense layer has an output for every rank.
/// Ranks    local; the same on every rank.
std::vector<Sharding> shardings_of(const nn::NetworkShape& shape, std::uint64_t ranks);

/// Returns the layers for a Network on these ranks; empty without tensor parallelism, so that the
/// network creates its own layers. `groups.model` must outlive them.
/// Errors   as shardings_of().
/// Ranks    local; every pass of the layers is collective over `model`: all of its ranks compute
///          the same rows.
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

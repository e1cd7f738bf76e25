// The ranks of a replica: data-parallel and tensor-parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/distribute/mesh.hpp"

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

  /// True if `ok` on every tensor-parallel rank of this replica. Collective over `model`.
  bool all_agree(bool ok) const { return model == nullptr ? ok : model->all_agree(ok); }

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

}  // namespace lockstep::train

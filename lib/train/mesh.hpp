// Who a rank trains with: all ranks, or a mesh of batch x model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "collectives/communicator.hpp"
#include "lib/distribute/mesh.hpp"

namespace lockstep::train {

struct RunConfig;

/// Sizes of the dimensions "batch" and "model", in this order: ranks that share a replica's weights
/// are neighbours.
struct MeshSizes {
  std::uint64_t batch = 1;  ///< replicas, among which the plan deals examples
  std::uint64_t model = 1;  ///< ranks that share the weights of one replica's dense layers
};

/// What `config.mesh` means for that many ranks. "model=2" alone leaves the rest to batch.
/// Errors   throws ConfigError where the dimensions' product is another number.
/// Ranks    local.
MeshSizes mesh_of(const RunConfig& config, std::uint64_t ranks);

/// Throws ConfigError unless `text` names dimensions and sizes, or is "auto". Local.
void require_mesh(const std::string& text);

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

}  // namespace lockstep::train

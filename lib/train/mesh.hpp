// Who a rank trains with: all ranks, or a mesh of batch x model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/communicator.hpp"
#include "lib/train/config.hpp"

namespace lockstep::train {

/// Sizes of the mesh's dimensions. Rank r stands at (r / model, r % model): ranks that share a
/// replica's weights are neighbours.
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
  Groups(comm::Communicator& ranks, comm::Communicator& replicas, comm::Communicator& sharers)
      : all(ranks), batch(replicas), model(&sharers) {}

  /// Ranks that share one replica's weights.
  std::uint64_t model_ranks() const noexcept {
    return model == nullptr ? 1 : static_cast<std::uint64_t>(model->size());
  }

  comm::Communicator& all;
  comm::Communicator& batch;            ///< ranks that hold the same weights
  comm::Communicator* model = nullptr;  ///< ranks that share a replica's; null: nobody does
};

/// Owns the groups of a mesh.
class Mesh {
 public:
  /// Groups of one dimension are those of `ranks`, which must outlive the mesh.
  /// Ranks    collective.
  Mesh(comm::Communicator& ranks, const MeshSizes& sizes);

  Groups groups() const noexcept;

 private:
  comm::Communicator& ranks_;
  std::unique_ptr<comm::Communicator> batch_;
  std::unique_ptr<comm::Communicator> model_;
};

}  // namespace lockstep::train

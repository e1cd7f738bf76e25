#include "lib/distribute/mesh.hpp"

#include <optional>
#include <stdexcept>

#include "collectives/agreement.hpp"
#include "collectives/self_communicator.hpp"
#include "lib/base/text.hpp"

namespace lockstep {
namespace {

MeshShape agreed_shape(comm::Communicator& comm, const std::vector<MeshDimension>& dimensions) {
  comm::KeyValues mine;
  for (const auto& dimension : dimensions) {
    mine.emplace_back("dimension " + std::to_string(mine.size()), to_text({dimension}));
  }
  comm::require_equal(comm, "the mesh", mine, "make the same mesh on every rank");
  std::optional<MeshShape> shape;
  comm::together(comm, [&] {
    shape.emplace(dimensions);
    if (shape->size() == comm.size()) return;
    throw ConfigError("mesh " + to_text(*shape) + " has " + counted(shape->size(), "rank") +
                          ", but there are " + std::to_string(comm.size()),
                      "give sizes whose product is the number of ranks");
  });
  return std::move(*shape);
}

}  // namespace

std::string to_text(const Traffic& traffic) {
  std::string text;
  const auto add = [&](std::uint64_t number, const char* noun) {
    if (number > 0) text += counted(number, noun) + ", ";
  };
  add(traffic.all_gathers, "all-gather");
  add(traffic.reduce_scatters, "reduce-scatter");
  add(traffic.all_to_alls, "all-to-all");
  add(traffic.all_reduces, "all-reduce");
  return text + counted(traffic.elements, "element");
}

void Mesh::require_blocks(const char* collective, const comm::Communicator& comm,
                          std::size_t elements, std::size_t block) {
  if (elements == block * static_cast<std::size_t>(comm.size())) return;
  throw std::invalid_argument(std::string(collective) + ": " + std::to_string(elements) +
                              " elements are not " + std::to_string(comm.size()) + " blocks of " +
                              std::to_string(block));
}

Mesh::Mesh(comm::Communicator& comm, const std::vector<MeshDimension>& dimensions)
    : comm_(comm), shape_(agreed_shape(comm, dimensions)) {
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (dimensions[i].size == comm.size()) {
      along_.push_back(&comm);
      continue;
    }
    if (dimensions[i].size == 1) {
      owned_.push_back(std::make_unique<comm::SelfCommunicator>());
    } else {
      auto others = shape_.coordinates(comm.rank());
      others[i] = 0;
      owned_.push_back(comm.split(shape_.rank_of(others)));
    }
    along_.push_back(owned_.back().get());
  }
}

}  // namespace lockstep

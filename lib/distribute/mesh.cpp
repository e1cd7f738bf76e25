#include "lockstep/distribute/mesh.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep {
namespace {

void require_name(const std::string& name) {
  if (name.empty()) {
    throw ConfigError("a dimension of the mesh has no name", "name it, as \"batch\"");
  }
  if (name == "unsharded") {
    throw ConfigError("a dimension of the mesh is called \"unsharded\"",
                      "choose another name: it is the spec of axes that are not cut");
  }
}

[[noreturn]] void refuse_rank(const std::string& what, const MeshShape& shape) {
  throw std::out_of_range("MeshShape: " + what + " in mesh " + to_text(shape));
}

}  // namespace

MeshShape::MeshShape(std::vector<MeshDimension> dimensions) : dimensions_(std::move(dimensions)) {
  if (dimensions_.empty()) {
    throw ConfigError("a mesh without dimensions", "give one, as {\"batch\", ranks}");
  }
  std::set<std::string> names;
  std::int64_t ranks = 1;
  for (const auto& [name, size] : dimensions_) {
    require_name(name);
    if (!names.insert(name).second) {
      throw ConfigError("two dimensions of the mesh are called \"" + name + "\"",
                        "give each a name of its own");
    }
    if (size < 1) {
      throw ConfigError("dimension \"" + name + "\" of the mesh has size " + std::to_string(size),
                        "sizes are at least 1");
    }
    ranks *= size;
    if (ranks > std::numeric_limits<int>::max()) {
      throw ConfigError("mesh " + to_text(dimensions_) + " has too many ranks",
                        "the product of the sizes is the number of ranks");
    }
  }
  size_ = static_cast<int>(ranks);
}

std::size_t MeshShape::index(std::string_view name) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return i;
    names.push_back(dimensions_[i].name);
  }
  throw ConfigError("mesh " + to_text(*this) + " has no dimension \"" + std::string(name) + "\"",
                    did_you_mean(nearest(name, names), "name one of the mesh's dimensions"));
}

std::vector<int> MeshShape::coordinates(int rank) const {
  if (rank < 0 || rank >= size_) refuse_rank("no rank " + std::to_string(rank), *this);
  std::vector<int> coordinates(dimensions_.size());
  for (std::size_t i = dimensions_.size(); i-- > 0;) {
    coordinates[i] = rank % dimensions_[i].size;
    rank /= dimensions_[i].size;
  }
  return coordinates;
}

int MeshShape::rank_of(const std::vector<int>& coordinates) const {
  if (coordinates.size() != dimensions_.size()) {
    refuse_rank(counted(coordinates.size(), "coordinate"), *this);
  }
  int rank = 0;
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const auto& [name, size] = dimensions_[i];
    if (coordinates[i] < 0 || coordinates[i] >= size) {
      refuse_rank("no " + name + " " + std::to_string(coordinates[i]), *this);
    }
    rank = rank * size + coordinates[i];
  }
  return rank;
}

std::string to_text(const std::vector<MeshDimension>& dimensions) {
  return joined(dimensions, ", ", [](const MeshDimension& dimension) {
    return dimension.name + "=" + std::to_string(dimension.size);
  });
}

std::string to_text(const MeshShape& shape) { return to_text(shape.dimensions()); }

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
    auto others = shape_.coordinates(comm.rank());
    others[i] = 0;
    owned_.push_back(comm.split(shape_.rank_of(others)));
    along_.push_back(owned_.back().get());
  }
}

}  // namespace lockstep

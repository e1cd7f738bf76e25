// The dimensions of a mesh of ranks, and which rank stands where: arithmetic.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A named dimension of a mesh and how many ranks it has.
struct MeshDimension {
  std::string name;
  int size = 1;

  bool operator==(const MeshDimension&) const = default;
};

/// Ranks 0, 1, ... in a grid, row by row: the last dimension runs fastest.
///
/// With {{"batch", 2}, {"model", 3}} rank 4 stands at batch 1, model 1. A value; local.
class MeshShape {
 public:
  /// Throws ConfigError: no dimension; a name that is empty, "unsharded" or given twice; a size
  /// below 1; more ranks than an int counts.
  explicit MeshShape(std::vector<MeshDimension> dimensions);

  const std::vector<MeshDimension>& dimensions() const noexcept { return dimensions_; }

  /// Ranks of the mesh: the product of all sizes.
  int size() const noexcept { return size_; }

  /// Ranks along a dimension. Throws ConfigError for a name that there is not.
  int size(std::string_view name) const { return dimensions_[index(name)].size; }

  /// Position of a dimension among the others. Throws ConfigError for a name that there is not.
  std::size_t index(std::string_view name) const;

  /// One for each dimension. Throws std::out_of_range for a rank that there is not.
  std::vector<int> coordinates(int rank) const;
  int coordinate(int rank, std::string_view name) const { return coordinates(rank)[index(name)]; }

  /// The inverse. Throws std::out_of_range.
  int rank_of(const std::vector<int>& coordinates) const;

  bool operator==(const MeshShape&) const = default;

 private:
  std::vector<MeshDimension> dimensions_;
  int size_ = 1;
};

/// "batch=2, model=3".
std::string to_text(const std::vector<MeshDimension>& dimensions);
std::string to_text(const MeshShape& shape);

}  // namespace lockstep

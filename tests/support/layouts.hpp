// Every mesh of some ranks, and every layout of a tensor on a mesh.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/distribute/mesh.hpp"

namespace lockstep::test {

/// All ways of `ranks` as a product of one, two or three sizes, in every order; sizes of 1 only
/// where there is no other way, or in the last of two.
inline std::vector<std::vector<MeshDimension>> meshes_of(int ranks) {
  std::vector<std::vector<MeshDimension>> all = {{{"a", ranks}}, {{"a", ranks}, {"b", 1}}};
  for (int a = 2; a < ranks; ++a) {
    if (ranks % a != 0) continue;
    all.push_back({{"a", a}, {"b", ranks / a}});
    for (int b = 2; b < ranks / a; ++b) {
      if (ranks / a % b == 0) all.push_back({{"a", a}, {"b", b}, {"c", ranks / a / b}});
    }
  }
  return all;
}

/// All layouts of a tensor with `rank` axes: each axis unsharded or cut by a dimension of its own.
inline std::vector<Layout> layouts_of(const MeshShape& mesh, std::size_t rank) {
  std::vector<Layout> all = {Layout::replicated(mesh, rank)};
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const auto before = all;
    for (const auto& layout : before) {
      for (const auto& [name, size] : mesh.dimensions()) {
        if (!layout.axis_of(name)) all.push_back(layout.with_axis(axis, name));
      }
    }
  }
  return all;
}

/// The same, each also partial over every set of the dimensions that cut no axis.
inline std::vector<Layout> partial_layouts_of(const MeshShape& mesh, std::size_t rank) {
  std::vector<Layout> all = layouts_of(mesh, rank);
  for (const auto& [name, size] : mesh.dimensions()) {
    const auto before = all;
    for (const auto& layout : before) {
      if (!layout.axis_of(name)) all.push_back(layout.partial_over(name));
    }
  }
  return all;
}

/// 1, 2, 3, ... in that shape.
template <class T>
Tensor<T> counting(const Shape& shape) {
  std::vector<T> values(elements_of(shape));
  std::iota(values.begin(), values.end(), T{1});
  return {shape, std::move(values)};
}

}  // namespace lockstep::test

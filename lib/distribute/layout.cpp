#include "lib/distribute/layout.hpp"

#include <algorithm>
#include <map>

#include "lib/base/errors.hpp"

namespace lockstep {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return "[" + text + "]";
}

Layout one_axis(MeshShape mesh, const std::string& dimension, std::size_t rank, std::size_t axis) {
  return Layout::replicated(std::move(mesh), rank).with_axis(axis, dimension);
}

}  // namespace

Layout::Layout(MeshShape mesh, std::vector<std::string> sharding_specs)
    : mesh_(std::move(mesh)), specs_(std::move(sharding_specs)) {
  for (std::size_t axis = 0; axis < specs_.size(); ++axis) {
    if (specs_[axis] == unsharded) continue;
    mesh_.index(specs_[axis]);
    if (axis_of(specs_[axis]) == axis) continue;
    throw ConfigError(
        "mesh dimension \"" + specs_[axis] + "\" stands twice in the layout " + joined(specs_),
        "let each mesh dimension cut one axis, and leave others unsharded");
  }
}

Layout Layout::replicated(MeshShape mesh, std::size_t rank) {
  return {std::move(mesh), std::vector<std::string>(rank, unsharded)};
}

Layout Layout::batch_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank) {
  return one_axis(std::move(mesh), dimension, rank, 0);
}

Layout Layout::inner_sharded(MeshShape mesh, const std::string& dimension, std::size_t rank) {
  return one_axis(std::move(mesh), dimension, rank, rank == 0 ? 0 : rank - 1);
}

Layout Layout::without_axis(std::size_t axis) const {
  spec(axis);
  Layout result = *this;
  result.specs_.erase(result.specs_.begin() + static_cast<std::ptrdiff_t>(axis));
  return result;
}

Layout Layout::with_axis(std::size_t axis, const std::string& spec) const {
  this->spec(axis);
  auto specs = specs_;
  specs[axis] = spec;
  Layout result(mesh_, std::move(specs));
  for (const auto& dimension : partial_) result = result.partial_over(dimension);
  return result;
}

Layout Layout::partial_over(const std::string& dimension) const {
  mesh_.index(dimension);
  if (const auto axis = axis_of(dimension)) {
    throw ConfigError("mesh dimension \"" + dimension + "\" cuts axis " + std::to_string(*axis) +
                          " and cannot hold addends as well",
                      "sum over a dimension that cuts no axis");
  }
  Layout result = *this;
  result.partial_.clear();
  for (const auto& [name, size] : mesh_.dimensions()) {
    if (name == dimension || is_partial_over(name)) result.partial_.push_back(name);
  }
  return result;
}

Layout Layout::summed_over(std::string_view dimension) const {
  Layout result = *this;
  std::erase(result.partial_, dimension);
  return result;
}

Layout Layout::summed() const {
  Layout result = *this;
  result.partial_.clear();
  return result;
}

const std::string& Layout::spec(std::size_t axis) const {
  if (axis < rank()) return specs_[axis];
  throw ConfigError("layout " + joined(specs_) + " has no axis " + std::to_string(axis),
                    "axes are counted from 0");
}

std::optional<std::size_t> Layout::axis_of(std::string_view dimension) const noexcept {
  const auto found = std::find(specs_.begin(), specs_.end(), dimension);
  if (found == specs_.end() || dimension == unsharded) return std::nullopt;
  return static_cast<std::size_t>(found - specs_.begin());
}

bool Layout::is_partial_over(std::string_view dimension) const noexcept {
  return std::find(partial_.begin(), partial_.end(), dimension) != partial_.end();
}

bool Layout::is_fully_replicated() const noexcept {
  return !is_partial() && std::all_of(specs_.begin(), specs_.end(),
                                      [](const auto& one) { return one == unsharded; });
}

int Layout::num_shards(std::size_t axis) const {
  return spec(axis) == unsharded ? 1 : mesh_.size(spec(axis));
}

data::Range Layout::owned(std::size_t length, std::size_t axis, int rank) const {
  if (spec(axis) == unsharded) return {0, length};
  const auto coordinate = static_cast<std::uint64_t>(mesh_.coordinate(rank, spec(axis)));
  return data::piece_of(length, 1, coordinate, static_cast<std::uint64_t>(num_shards(axis)));
}

Shape Layout::local_shape(const Shape& global, int rank) const {
  require_rank(global);
  Shape shape = global;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    shape[axis] = owned(global[axis], axis, rank).size();
  }
  return shape;
}

Shape Layout::largest_local_shape(const Shape& global) const { return local_shape(global, 0); }

void Layout::require_rank(const Shape& global) const {
  if (global.size() == rank()) return;
  throw ConfigError("layout " + joined(specs_) + " for a tensor of shape " + to_text(global),
                    "give one spec for each axis");
}

std::string to_text(const Layout& layout) {
  std::string partial;
  for (const auto& [name, size] : layout.mesh().dimensions()) {
    if (layout.is_partial_over(name)) partial += (partial.empty() ? "" : ", ") + name;
  }
  return "sharding_specs:" + joined(layout.sharding_specs()) +
         (partial.empty() ? "" : ", partial:[" + partial + "]") + ", mesh:[" +
         to_text(layout.mesh()) + "]";
}

}  // namespace lockstep

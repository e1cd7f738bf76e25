#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep {
namespace {

std::string specs_text(const std::vector<std::string>& specs) { return "[" + joined(specs) + "]"; }

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
        "mesh dimension \"" + specs_[axis] + "\" is used twice in the layout " + specs_text(specs_),
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
  throw ConfigError("layout " + specs_text(specs_) + " has no axis " + std::to_string(axis),
                    "axes are counted from 0");
}

std::optional<std::size_t> Layout::axis_of(std::string_view dimension) const noexcept {
  const auto found = std::find(specs_.begin(), specs_.end(), dimension);
  if (found == specs_.end() || dimension == unsharded) return std::nullopt;
  return static_cast<std::size_t>(found - specs_.begin());
}

bool Layout::is_partial_over(std::string_view dimension) const noexcept {
  return contains(partial_, dimension);
}

bool Layout::is_fully_replicated() const noexcept {
  return !is_partial() && std::all_of(specs_.begin(), specs_.end(),
                                      [](const auto& one) { return one == unsharded; });
}

int Layout::num_shards(std::size_t axis) const {
  return spec(axis) == unsharded ? 1 : mesh_.size(spec(axis));
}

Range Layout::owned(std::size_t length, std::size_t axis, int rank) const {
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

void Layout::require_rank(const Shape& global) const {
  if (global.size() == rank()) return;
  throw ConfigError("layout " + specs_text(specs_) + " for a tensor of shape " + to_text(global),
                    "give one spec for each axis");
}

std::string to_text(const Layout& layout) {
  std::string partial;
  for (const auto& [name, size] : layout.mesh().dimensions()) {
    if (layout.is_partial_over(name)) partial += (partial.empty() ? "" : ", ") + name;
  }
  return "sharding_specs:" + specs_text(layout.sharding_specs()) +
         (partial.empty() ? "" : ", partial:[" + partial + "]") + ", mesh:[" +
         to_text(layout.mesh()) + "]";
}

namespace {

using Lengths = std::vector<std::size_t>;  // of one axis, by rank

// The most common length; if there are several, that of the lowest rank.
std::size_t commonest(const Lengths& lengths) {
  std::map<std::size_t, std::size_t> times;
  for (const auto length : lengths) ++times[length];
  return *std::max_element(lengths.begin(), lengths.end(),
                           [&](auto a, auto b) { return times[a] < times[b]; });
}

// The axis's length if each piece has the most common length among its replicas.
std::size_t whole_length(const Layout& layout, std::size_t axis, const Lengths& lengths) {
  std::map<int, Lengths> by_coordinate;
  for (int rank = 0; rank < layout.mesh().size(); ++rank) {
    const auto& spec = layout.spec(axis);
    const int at = spec == Layout::unsharded ? 0 : layout.mesh().coordinate(rank, spec);
    by_coordinate[at].push_back(lengths[static_cast<std::size_t>(rank)]);
  }
  std::size_t total = 0;
  for (const auto& [at, pieces] : by_coordinate) total += commonest(pieces);
  return total;
}

Lengths owned_lengths(const Layout& layout, std::size_t axis, std::size_t length) {
  Lengths lengths;
  for (int rank = 0; rank < layout.mesh().size(); ++rank) {
    lengths.push_back(layout.owned(length, axis, rank).size());
  }
  return lengths;
}

std::vector<std::size_t> odd_ranks(const Lengths& found, const Lengths& expected) {
  std::vector<std::size_t> odd;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank] != expected[rank]) odd.push_back(rank);
  }
  return odd;
}

[[noreturn]] void refuse(const Layout& layout, std::size_t axis, const Lengths& found,
                         const Lengths& expected) {
  std::string text;
  std::size_t named = 0;
  const auto odd = odd_ranks(found, expected);
  for (const auto rank : odd) {
    if (++named > 8) break;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " has " +
            std::to_string(found[rank]) + " (not " + std::to_string(expected[rank]) + ")";
  }
  if (odd.size() > 8) text += ", ... (" + std::to_string(odd.size()) + " ranks in all)";
  throw ConfigError("pieces do not make a tensor with " + to_text(layout) + ": of axis " +
                        std::to_string(axis) + " " + text,
                    layout.spec(axis) == Layout::unsharded
                        ? "give pieces of one length on an axis that is not cut"
                        : "cut it into pieces of ceil(length / " +
                              std::to_string(layout.num_shards(axis)) +
                              "), trailing ones shorter or empty");
}

std::size_t axis_length(const Layout& layout, std::size_t axis, const Lengths& found) {
  const std::size_t length = whole_length(layout, axis, found);
  const auto expected = owned_lengths(layout, axis, length);
  if (found == expected) return length;
  // One piece that is too long shifts all others: then compare with the most common length.
  const Lengths even(found.size(), commonest(found));
  const bool one_is_odd = odd_ranks(found, even).size() < odd_ranks(found, expected).size();
  refuse(layout, axis, found, one_is_odd ? even : expected);
}

}  // namespace

Shape global_shape(const Layout& layout, const std::vector<Shape>& pieces) {
  const auto ranks = static_cast<std::size_t>(layout.mesh().size());
  if (pieces.size() != ranks) {
    throw ConfigError(counted(pieces.size(), "piece") + " for a mesh of " + counted(ranks, "rank"),
                      "give the shape of each rank's piece");
  }
  for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
    if (pieces[rank].size() == layout.rank()) continue;
    throw ConfigError("rank " + std::to_string(rank) + " has a piece of shape " +
                          to_text(pieces[rank]) + " for a tensor with " + to_text(layout),
                      "give one spec for each axis");
  }
  Shape global(layout.rank());
  for (std::size_t axis = 0; axis < global.size(); ++axis) {
    Lengths found;
    for (const auto& piece : pieces) found.push_back(piece[axis]);
    global[axis] = axis_length(layout, axis, found);
  }
  return global;
}

}  // namespace lockstep

namespace lockstep::sharding {
namespace {

void require_comparable(const Layout& from, const Layout& to) {
  if (from.mesh() != to.mesh()) {
    throw ConfigError(
        "a tensor on mesh [" + to_text(from.mesh()) + "] cannot have the layout " + to_text(to),
        "make the layout with the tensor's mesh");
  }
  if (from.rank() != to.rank()) {
    throw ConfigError("a tensor with " + to_text(from) + " cannot have the layout " + to_text(to),
                      "give one spec for each axis");
  }
  for (const auto& [name, size] : from.mesh().dimensions()) {
    if (!to.is_partial_over(name) || from.is_partial_over(name)) continue;
    throw ConfigError("a tensor with " + to_text(from) + " holds no addends over \"" + name + "\"",
                      "ask for a layout without that partial sum");
  }
}

std::optional<Move> move_along(const std::string& name, const Layout& from, const Layout& to) {
  const auto old_axis = from.axis_of(name);
  const auto new_axis = to.axis_of(name);
  if (from.is_partial_over(name)) {
    if (to.is_partial_over(name)) return std::nullopt;
    if (new_axis) return Move{MoveKind::reduce_scatter, name, 0, *new_axis};
    return Move{MoveKind::all_reduce, name};
  }
  if (old_axis == new_axis) return std::nullopt;
  if (!old_axis) return Move{MoveKind::slice, name, 0, *new_axis};
  if (!new_axis) return Move{MoveKind::all_gather, name, *old_axis, 0};
  return Move{MoveKind::all_to_all, name, *old_axis, *new_axis};
}

bool possible(const Move& move, const Layout& now) {
  return move.kind == MoveKind::all_reduce || move.kind == MoveKind::all_gather ||
         now.spec(move.to) == Layout::unsharded;
}

// The next move; none if `now` equals `to`.
std::optional<Move> next_move(const Layout& now, const Layout& to) {
  std::optional<Move> best;
  std::optional<Move> opening;  // breaks a cycle
  for (const auto& [name, size] : now.mesh().dimensions()) {
    const auto move = move_along(name, now, to);
    if (!move) continue;
    if (possible(*move, now)) {
      if (!best || move->kind < best->kind) best = move;
    } else if (move->kind == MoveKind::all_to_all) {
      if (!opening || size < now.mesh().size(opening->dimension)) opening = move;
    }
  }
  if (best || !opening) return best;
  return Move{MoveKind::all_gather, opening->dimension, opening->from, 0};
}

}  // namespace

std::vector<Move> moves_between(const Layout& from, const Layout& to) {
  require_comparable(from, to);
  std::vector<Move> moves;
  Layout now = from;
  while (const auto move = next_move(now, to)) {
    moves.push_back(*move);
    now = after(now, *move);
  }
  return moves;
}

Layout after(const Layout& layout, const Move& move) {
  switch (move.kind) {
    case MoveKind::slice: return layout.with_axis(move.to, move.dimension);
    case MoveKind::reduce_scatter:
      return layout.summed_over(move.dimension).with_axis(move.to, move.dimension);
    case MoveKind::all_to_all:
      return layout.with_axis(move.from, Layout::unsharded).with_axis(move.to, move.dimension);
    case MoveKind::all_reduce: return layout.summed_over(move.dimension);
    case MoveKind::all_gather: return layout.with_axis(move.from, Layout::unsharded);
  }
  return layout;
}

namespace {

using Specs = std::vector<std::string>;

// The operand's length on an axis of the result: 1 if missing; axes are aligned at the last one.
std::size_t length_at(const Shape& shape, std::size_t rank, std::size_t axis) {
  const std::size_t missing = rank - shape.size();
  return axis < missing ? 1 : shape[axis - missing];
}

Shape broadcast(const std::string& operation, const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const std::size_t left = length_at(a, shape.size(), axis);
    const std::size_t right = length_at(b, shape.size(), axis);
    if (left != right && left != 1 && right != 1) {
      collective::refuse(
          operation + ": shapes " + to_text(a) + " and " + to_text(b) + " cannot be broadcast",
          "give axes of equal length, counted from the last, or of length 1");
    }
    shape[axis] = left == 1 ? right : left;
  }
  return shape;
}

// An operand of a broadcast. It "has" an axis if its length there equals the result's.
struct Operand {
  const Layout& layout;
  const Shape& shape;
  const Shape& result;

  std::size_t missing() const { return result.size() - shape.size(); }
  bool has(std::size_t axis) const {
    return axis >= missing() && shape[axis - missing()] == result[axis];
  }
  const std::string& spec(std::size_t axis) const { return layout.spec(axis - missing()); }

  void add_specs(Specs& specs) const {
    for (std::size_t axis = 0; axis < specs.size(); ++axis) {
      if (!has(axis) || specs[axis] != Layout::unsharded) continue;
      if (!contains(specs, spec(axis))) specs[axis] = spec(axis);
    }
  }
  Layout moved(const Specs& specs) const {
    Specs own;
    for (std::size_t axis = missing(); axis < specs.size(); ++axis) {
      own.push_back(has(axis) ? specs[axis] : Layout::unsharded);
    }
    return {layout.mesh(), own};
  }
};

}  // namespace

BinaryPlan matmul_plan(const Layout& a, const Shape& a_shape, const Layout& b,
                       const Shape& b_shape) {
  if (a_shape.size() != 2 || b_shape.size() != 2 || a_shape[1] != b_shape[0]) {
    collective::refuse(
        "matmul: no product of shapes " + to_text(a_shape) + " and " + to_text(b_shape),
        "give matrices [m, k] and [k, n]");
  }
  const std::string& rows = a.spec(0);
  const std::string columns = b.spec(1) == rows ? Layout::unsharded : b.spec(1);
  const auto sums_over = [&](const std::string& spec) {
    return spec != Layout::unsharded && spec != rows && spec != columns;
  };
  const std::string inner = sums_over(a.spec(1))   ? a.spec(1)
                            : sums_over(b.spec(0)) ? b.spec(0)
                                                   : Layout::unsharded;
  const Layout result(a.mesh(), {rows, columns});
  return {Layout(a.mesh(), {rows, inner}),
          Layout(a.mesh(), {inner, columns}),
          inner == Layout::unsharded ? result : result.partial_over(inner),
          {a_shape[0], b_shape[1]}};
}

BinaryPlan elementwise_plan(const std::string& operation, const Layout& a, const Shape& a_shape,
                            const Layout& b, const Shape& b_shape) {
  const Shape shape = broadcast(operation, a_shape, b_shape);
  const Operand left{a, a_shape, shape};
  const Operand right{b, b_shape, shape};
  const bool right_leads = elements_of(b_shape) > elements_of(a_shape);
  Specs specs(shape.size(), Layout::unsharded);
  (right_leads ? right : left).add_specs(specs);
  (right_leads ? left : right).add_specs(specs);
  return {left.moved(specs), right.moved(specs), Layout(a.mesh(), specs), shape};
}

Layout reduced_layout(const Layout& layout, std::size_t axis) {
  if (axis >= layout.rank()) {
    collective::refuse("a tensor with " + to_text(layout) + " has no axis " +
                           std::to_string(static_cast<std::ptrdiff_t>(axis)),
                       "axes are counted from 0 for the first one, or from -1 for the last one");
  }
  const auto& spec = layout.spec(axis);
  const Layout rest = layout.without_axis(axis);
  return spec == Layout::unsharded ? rest : rest.partial_over(spec);
}

Layout fully_reduced_layout(const Layout& layout) {
  Layout result = layout;
  while (result.rank() > 0) result = reduced_layout(result, 0);
  return result;
}

}  // namespace lockstep::sharding

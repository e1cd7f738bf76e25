#include "lockstep/distribute/dtensor.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/tensor_math.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep::sharding {

void require_one_mesh(const std::string& operation, Mesh& a, Mesh& b) {
  const auto text = [](Mesh& mesh) {
    return to_text(mesh.shape()) + " of ranks " + joined(mesh.communicator().world_ranks());
  };
  if (&a == &b || text(a) == text(b)) return;
  collective::refuse(
      operation + ": tensors on different meshes: [" + text(a) + "] and [" + text(b) + "]",
      "put both on one mesh");
}

namespace {

// A rank's coordinates along the mesh dimensions whose ranks hold different pieces.
std::vector<int> place_of(const Layout& layout, int rank) {
  std::vector<int> place;
  for (const auto& [name, size] : layout.mesh().dimensions()) {
    if (!layout.axis_of(name) && !layout.is_partial_over(name)) continue;
    place.push_back(layout.mesh().coordinate(rank, name));
  }
  return place;
}

using Holders = std::map<std::string, std::vector<int>>;  // bits -> ranks

// "rank 2 differs from ranks 0-1": the minority; without one, the ranks that differ from rank 0.
std::string difference(const Holders& holders) {
  const auto majority = std::max_element(holders.begin(), holders.end(), [](auto& a, auto& b) {
    return std::pair(a.second.size(), -a.second[0]) < std::pair(b.second.size(), -b.second[0]);
  });
  std::vector<int> odd;
  for (auto it = holders.begin(); it != holders.end(); ++it) {
    if (it != majority) odd.insert(odd.end(), it->second.begin(), it->second.end());
  }
  std::sort(odd.begin(), odd.end());
  return ranks_text(odd) + (odd.size() == 1 ? " differs from " : " differ from ") +
         ranks_text(majority->second);
}

void require_same_mesh(const Mesh& mesh, const Layout& layout) {
  if (layout.mesh() == mesh.shape()) return;
  throw ConfigError("layout " + to_text(layout) + " for mesh [" + to_text(mesh.shape()) + "]",
                    "make the layout with the tensor's mesh");
}

// Checks the arguments of pack on all ranks and returns the global shape. Collective.
Shape agree_on_pieces(Mesh& mesh, const std::string& type, const Shape& piece,
                      const Layout& layout) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "the tensor to be packed",
                      {{"layout", to_text(layout)}, {"type", type}},
                      "pack the same tensor on every rank");
  std::vector<Shape> pieces;
  for (const auto& packed : comm::gather_text(comm, collective::pack(piece, nullptr, 0))) {
    std::string_view rest = packed;
    pieces.push_back(collective::take_shape(rest));
  }
  Shape shape;
  comm::together(comm, [&] {
    require_same_mesh(mesh, layout);
    shape = global_shape(layout, pieces);
  });
  return shape;
}

// Checks the arguments of copy_to_mesh on all ranks. `bits`: the hash of the values. Collective.
void agree_on_whole(Mesh& mesh, const std::string& type, const Shape& shape, const Layout& layout,
                    const std::string& bits) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "the tensor to be copied to the mesh",
                      {{"layout", to_text(layout)}, {"type", type}, {"shape", to_text(shape)}},
                      "give every rank the same tensor, or pack a piece on each");
  comm::together(comm, [&] {
    require_same_mesh(mesh, layout);
    layout.local_shape(shape, mesh.rank());
    if (!layout.is_partial()) return;
    throw ConfigError("a whole tensor has no addends for " + to_text(layout),
                      "pack an addend on each rank");
  });
  comm::require_equal(comm, "the tensor to be copied to the mesh", {{"hash of its bits", bits}},
                      "give every rank the same tensor, or pack a piece on each",
                      ExitCode::invariant);
}

// Throws comm::AgreedError (70) unless ranks that hold the same piece pass the same `bits`.
void require_same_replicas(Mesh& mesh, const Layout& layout, const std::string& bits) {
  std::map<std::vector<int>, Holders> pieces;
  int rank = 0;
  for (const auto& theirs : comm::gather_text(mesh.communicator(), bits)) {
    pieces[place_of(layout, rank)][theirs].push_back(rank);
    ++rank;
  }
  std::string text;
  for (const auto& [place, holders] : pieces) {
    if (holders.size() > 1) text += "\n  " + difference(holders);
  }
  if (text.empty()) return;
  throw comm::AgreedError(ExitCode::invariant,
                          "replicas of a tensor with " + to_text(layout) + " differ:" + text,
                          "look for a replica that computed it alone, or for faulty memory");
}

// A buffer of equal blocks, one per coordinate of a mesh dimension. Each block begins with a
// tensor, which may be shorter than the block.
template <Number T>
class Blocks {
 public:
  Blocks(int count, std::size_t length)
      : length_(length), values_(static_cast<std::size_t>(count) * length) {}

  void put(int block, const Tensor<T>& tensor) {
    std::copy(tensor.values().begin(), tensor.values().end(), at(block));
  }
  Tensor<T> take(int block, const Shape& shape) {
    const auto first = at(block);
    return {shape, std::vector<T>(first, first + static_cast<std::ptrdiff_t>(elements_of(shape)))};
  }
  std::span<T> values() noexcept { return values_; }

 private:
  typename std::vector<T>::iterator at(int block) {
    return values_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) * length_);
  }

  std::size_t length_;
  std::vector<T> values_;
};

// How an axis of `length` is cut into `parts` pieces along a mesh dimension.
struct Along {
  std::size_t axis;
  std::size_t length;
  int parts;

  Range owned(int coordinate) const noexcept {
    return data::piece_of(length, 1, static_cast<std::uint64_t>(coordinate),
                          static_cast<std::uint64_t>(parts));
  }
  // `shape` with the axis as long as that coordinate's piece.
  Shape piece(Shape shape, int coordinate) const {
    shape[axis] = owned(coordinate).size();
    return shape;
  }
};

template <Number T>
Tensor<T> all_gather(Mesh& mesh, const std::string& name, const Along& old,
                     const Tensor<T>& piece) {
  Blocks<T> blocks(old.parts, elements_of(old.piece(piece.shape(), 0)));
  blocks.put(mesh.coordinate(name), piece);
  mesh.all_gather(name, blocks.values());
  std::vector<Tensor<T>> parts;
  parts.reserve(static_cast<std::size_t>(old.parts));
  for (int c = 0; c < old.parts; ++c) parts.push_back(blocks.take(c, old.piece(piece.shape(), c)));
  return concatenate(parts, old.axis);
}

template <Number T>
Tensor<T> all_to_all(Mesh& mesh, const std::string& name, const Along& old, const Along& now,
                     const Tensor<T>& piece) {
  const std::size_t block = elements_of(now.piece(old.piece(piece.shape(), 0), 0));
  Blocks<T> send(old.parts, block);
  Blocks<T> receive(old.parts, block);
  for (int c = 0; c < now.parts; ++c) send.put(c, cut_axis(piece, now.axis, now.owned(c)));
  mesh.all_to_all(name, std::span<const T>(send.values()), receive.values());
  const Shape mine = now.piece(piece.shape(), mesh.coordinate(name));
  std::vector<Tensor<T>> parts;
  parts.reserve(static_cast<std::size_t>(old.parts));
  for (int c = 0; c < old.parts; ++c) parts.push_back(receive.take(c, old.piece(mine, c)));
  return concatenate(parts, old.axis);
}

template <Number T>
Tensor<T> reduce_scatter(Mesh& mesh, const std::string& name, const Along& now,
                         const Tensor<T>& piece) {
  const std::size_t block = elements_of(now.piece(piece.shape(), 0));
  Blocks<T> addends(now.parts, block);
  Blocks<T> sum(1, block);
  for (int c = 0; c < now.parts; ++c) addends.put(c, cut_axis(piece, now.axis, now.owned(c)));
  mesh.reduce_scatter(name, std::span<const T>(addends.values()), sum.values());
  return sum.take(0, now.piece(piece.shape(), mesh.coordinate(name)));
}

// This rank's piece of a tensor of shape `global` after `move`. Collective, except for slices.
template <Number T>
Tensor<T> moved(Mesh& mesh, const Move& move, const Shape& global, const Tensor<T>& piece) {
  const std::string& name = move.dimension;
  const int parts = mesh.size(name);
  const auto along = [&](std::size_t axis) { return Along{axis, global[axis], parts}; };
  switch (move.kind) {
    case MoveKind::slice:
      return cut_axis(piece, move.to, along(move.to).owned(mesh.coordinate(name)));
    case MoveKind::reduce_scatter: return reduce_scatter(mesh, name, along(move.to), piece);
    case MoveKind::all_to_all:
      return all_to_all(mesh, name, along(move.from), along(move.to), piece);
    case MoveKind::all_gather: return all_gather(mesh, name, along(move.from), piece);
    case MoveKind::all_reduce: break;
  }
  Tensor<T> sum = piece;
  mesh.all_reduce(name, sum.values());
  return sum;
}

}  // namespace
}  // namespace lockstep::sharding

namespace lockstep {

template <MeshNumber T>
DTensor<T> DTensor<T>::relayout(const Layout& layout) const {
  std::vector<sharding::Move> moves;
  try {
    moves = sharding::moves_between(layout_, layout);
  } catch (const ConfigError& error) {
    throw comm::AgreedError(error.code(), error.what());
  }
  DTensor result = *this;
  for (const auto& move : moves) {
    result.piece_ =
        std::make_shared<const Tensor<T>>(sharding::moved(*mesh_, move, shape_, result.unpack()));
    result.layout_ = sharding::after(result.layout_, move);
  }
  if (moves.empty()) return result;
  return sharding::relayout_on_tape(std::move(result), *this);
}

template <MeshNumber T>
Tensor<T> DTensor<T>::to_global() const {
  const sharding::RecordingPause pause;  // the result is a constant
  return relayout(Layout::replicated(*mesh_, shape_.size())).unpack();
}

template <MeshNumber T>
void DTensor<T>::verify() const {
  sharding::require_same_replicas(*mesh_, layout_, collective::bits_of(*piece_));
}

template <MeshNumber T>
DTensor<T> pack_to_mesh(Mesh& mesh, Tensor<T> piece, const Layout& layout) {
  const Shape shape = sharding::agree_on_pieces(mesh, type_name<T>(), piece.shape(), layout);
  return sharding::Maker::make(mesh, layout, shape, std::move(piece));
}

template <MeshNumber T>
DTensor<T> copy_to_mesh(Mesh& mesh, const Tensor<T>& tensor, const Layout& layout) {
  sharding::agree_on_whole(mesh, type_name<T>(), tensor.shape(), layout,
                           collective::bits_of(tensor));
  Tensor<T> piece = tensor;
  for (std::size_t axis = 0; axis < layout.rank(); ++axis) {
    if (layout.spec(axis) == Layout::unsharded) continue;
    piece = sharding::cut_axis(piece, axis, layout.owned(tensor.shape()[axis], axis, mesh.rank()));
  }
  return sharding::Maker::make(mesh, layout, tensor.shape(), std::move(piece));
}

#define LOCKSTEP_INSTANTIATE(T)                                      \
  template class DTensor<T>;                                         \
  template DTensor<T> pack_to_mesh(Mesh&, Tensor<T>, const Layout&); \
  template DTensor<T> copy_to_mesh(Mesh&, const Tensor<T>&, const Layout&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(std::int8_t)
LOCKSTEP_INSTANTIATE(std::int16_t)
LOCKSTEP_INSTANTIATE(std::int32_t)
LOCKSTEP_INSTANTIATE(std::int64_t)
LOCKSTEP_INSTANTIATE(std::uint8_t)
LOCKSTEP_INSTANTIATE(std::uint16_t)
LOCKSTEP_INSTANTIATE(std::uint32_t)
LOCKSTEP_INSTANTIATE(std::uint64_t)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

namespace lockstep {
namespace {

// Compares the arguments of an initial value on all ranks. Collective.
void agree_on_initial(Mesh& mesh, const Shape& shape, const Layout& layout,
                      const std::string& values) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "an initial value",
                      {{"shape", to_text(shape)}, {"layout", to_text(layout)}, {"values", values}},
                      "make the same tensor on every rank");
  if (layout.mesh() != mesh.shape() || layout.rank() != shape.size() || layout.is_partial()) {
    collective::refuse(
        "an initial value of shape " + to_text(shape) + " on mesh [" + to_text(mesh.shape()) +
            "] with " + to_text(layout),
        "make the layout with this mesh, one spec for each axis, without partial sums");
  }
}

// The indices that this rank owns of each axis.
std::vector<Range> owned_ranges(const Mesh& mesh, const Shape& shape, const Layout& layout) {
  std::vector<Range> ranges;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    ranges.push_back(layout.owned(shape[axis], axis, mesh.rank()));
  }
  return ranges;
}

// Calls draw(first, values) for each row of this rank's piece: `first` is the index of the row's
// first element in the whole tensor, row-major.
template <class Draw>
std::vector<float> drawn(const Mesh& mesh, const Shape& shape, const Layout& layout, Draw draw) {
  const auto ranges = owned_ranges(mesh, shape, layout);
  std::vector<float> piece(elements_of(layout.local_shape(shape, mesh.rank())));
  const std::size_t length = ranges.empty() ? 1 : ranges.back().size();
  for (std::size_t at = 0; at < piece.size(); at += length) {
    std::size_t rest = at / length;
    std::size_t first = ranges.empty() ? 0 : ranges.back().begin;
    std::size_t stride = ranges.empty() ? 1 : shape.back();
    for (std::size_t axis = ranges.size(); axis-- > 1; rest /= ranges[axis - 1].size()) {
      first += (ranges[axis - 1].begin + rest % ranges[axis - 1].size()) * stride;
      stride *= shape[axis - 1];
    }
    draw(first, std::span(piece).subspan(at, length));
  }
  return piece;
}

template <Differentiable T>
DTensor<T> uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, float low, float high,
                   const Layout& layout) {
  const auto piece = drawn(mesh, shape, layout, [&](std::size_t first, std::span<float> values) {
    nn::stateless_uniform(seed, low, high, values, first);
  });
  return sharding::Maker::make(
      mesh, layout, shape,
      Tensor<T>(layout.local_shape(shape, mesh.rank()), {piece.begin(), piece.end()}));
}

std::string seed_text(nn::SeedPair seed) {
  return "seed " + std::to_string(seed.first) + ", " + std::to_string(seed.second);
}

// The value in this layout on this mesh, with a piece of its own: tapes tell tensors apart by their
// pieces, so two variables must not share one.
template <Differentiable T>
DTensor<T> own_copy(const DTensor<T>& value, Mesh& mesh, const Layout& layout) {
  const auto moved = value.relayout(layout);
  return sharding::Maker::make(mesh, layout, moved.shape(), Tensor<T>(moved.unpack()));
}

template <Differentiable T>
void require_shape(const DVariable<T>& variable, const DTensor<T>& value) {
  if (value.shape() == variable.shape()) return;
  collective::refuse("variable \"" + variable.name() + "\" of shape " + to_text(variable.shape()) +
                         " is assigned a tensor of shape " + to_text(value.shape()),
                     "assign a tensor of the variable's shape");
}

}  // namespace

template <Differentiable T>
DVariable<T>::DVariable(std::string name, const DTensor<T>& value)
    : DTensor<T>(own_copy(value, value.mesh(), value.layout().summed())), name_(std::move(name)) {}

template <Differentiable T>
void DVariable<T>::assign(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  require_shape(*this, value);
  sharding::require_one_mesh("assign", this->mesh(), value.mesh());
  static_cast<DTensor<T>&>(*this) = own_copy(value, this->mesh(), this->layout());
}

template <Differentiable T>
void DVariable<T>::assign_add(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  set(add(*this, value));
}

template <Differentiable T>
void DVariable<T>::assign_sub(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  set(subtract(*this, value));
}

template <Differentiable T>
void DVariable<T>::set(const DTensor<T>& result) {
  require_shape(*this, result);
  static_cast<DTensor<T>&>(*this) = result.relayout(this->layout());
}

template <Differentiable T>
DTensor<T> filled(Mesh& mesh, const Shape& shape, T value, const Layout& layout) {
  agree_on_initial(mesh, shape, layout, shortest(value));
  const Shape local = layout.local_shape(shape, mesh.rank());
  return sharding::Maker::make(mesh, layout, shape,
                               Tensor<T>(local, std::vector<T>(elements_of(local), value)));
}

template <Differentiable T>
DTensor<T> stateless_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, float low,
                             float high, const Layout& layout) {
  agree_on_initial(mesh, shape, layout,
                   seed_text(seed) + ", from " + shortest(low) + " to " + shortest(high));
  return uniform<T>(mesh, shape, seed, low, high, layout);
}

template <Differentiable T>
DTensor<T> glorot_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, const Layout& layout) {
  agree_on_initial(mesh, shape, layout, seed_text(seed));
  if (shape.size() != 2) {
    collective::refuse("glorot_uniform: shape " + to_text(shape),
                       "give a matrix [inputs, outputs]");
  }
  const float limit = nn::glorot_limit(shape[0], shape[1]);
  return uniform<T>(mesh, shape, seed, -limit, limit, layout);
}

#define LOCKSTEP_INSTANTIATE(T)                                                          \
  template class DVariable<T>;                                                           \
  template DTensor<T> filled(Mesh&, const Shape&, T, const Layout&);                     \
  template DTensor<T> stateless_uniform(Mesh&, const Shape&, nn::SeedPair, float, float, \
                                        const Layout&);                                  \
  template DTensor<T> glorot_uniform(Mesh&, const Shape&, nn::SeedPair, const Layout&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

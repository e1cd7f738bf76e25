// What each move of a relayout does to a rank's piece.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lib/distribute/exchange.hpp"
#include "lib/distribute/layout.hpp"
#include "lib/distribute/mesh.hpp"
#include "lib/distribute/relayout.hpp"

namespace lockstep::sharding {

struct Maker;
struct DTensorTest;

/// Throws ConfigError for a layout of another mesh.
void require_same_mesh(const Mesh& mesh, const Layout& layout);

/// Checks what all ranks give to pack, and returns the global shape. Collective.
Shape agree_on_pieces(Mesh& mesh, const std::string& type, const Shape& piece,
                      const Layout& layout);

/// Checks what all ranks give to copy_to_mesh. `bits`: the hash of the values. Collective.
void agree_on_whole(Mesh& mesh, const std::string& type, const Shape& shape, const Layout& layout,
                    const std::string& bits);

/// Throws comm::AgreedError (70) unless ranks that hold one piece have the same `bits`. Collective.
void require_same_replicas(Mesh& mesh, const Layout& layout, const std::string& bits);

/// The hash of a tensor's shape and bits, in words. Local.
template <Number T>
std::string bits_of(const Tensor<T>& tensor) {
  const auto values = tensor.values();
  return exchange::bits_of(exchange::pack(tensor.shape(), values.data(), values.size_bytes()));
}

/// Indices [range.begin, range.end) of `axis`.
template <class T>
Tensor<T> cut_axis(const Tensor<T>& tensor, std::size_t axis, data::Range range) {
  const auto view = exchange::view_axis(tensor.shape(), axis);
  Shape shape = tensor.shape();
  shape[axis] = range.size();
  std::vector<T> values;
  values.reserve(elements_of(shape));
  for (std::size_t o = 0; o < view.outer; ++o) {
    const auto run = tensor.values().subspan((o * view.length + range.begin) * view.inner,
                                             range.size() * view.inner);
    values.insert(values.end(), run.begin(), run.end());
  }
  return {std::move(shape), std::move(values)};
}

/// The parts one behind the other along `axis`; alike on the others. At least one.
template <class T>
Tensor<T> join_axis(const std::vector<Tensor<T>>& parts, std::size_t axis) {
  Shape shape = parts.front().shape();
  shape[axis] = 0;
  for (const auto& part : parts) shape[axis] += part.shape()[axis];
  std::vector<T> values;
  values.reserve(elements_of(shape));
  const std::size_t outer = exchange::view_axis(shape, axis).outer;
  for (std::size_t o = 0; o < outer; ++o) {
    for (const auto& part : parts) {
      const std::size_t length = part.values().size() / outer;
      const auto run = part.values().subspan(o * length, length);
      values.insert(values.end(), run.begin(), run.end());
    }
  }
  return {std::move(shape), std::move(values)};
}

/// One block of equal length for each coordinate along a mesh dimension, each with a tensor at its
/// beginning that may be shorter.
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

/// Pieces along one mesh dimension: what coordinate c of `parts` owns of an axis.
struct Along {
  std::size_t axis;
  std::size_t length;
  int parts;

  data::Range owned(int coordinate) const noexcept {
    return data::piece_of(length, 1, static_cast<std::uint64_t>(coordinate),
                          static_cast<std::uint64_t>(parts));
  }
  /// `shape` with the axis as that coordinate has it.
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
  return join_axis(parts, old.axis);
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
  return join_axis(parts, old.axis);
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

/// This rank's piece of a tensor of shape `global` behind a move. Collective, but for slices.
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

}  // namespace lockstep::sharding

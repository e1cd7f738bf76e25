#include "lib/distribute/relayout.hpp"

#include <algorithm>
#include <optional>

#include "lib/base/errors.hpp"

namespace lockstep::sharding {
namespace {

void require_comparable(const Layout& from, const Layout& to) {
  if (from.mesh() != to.mesh()) {
    throw ConfigError(
        "a tensor on mesh [" + to_text(from.mesh()) + "] cannot lie as " + to_text(to),
        "make the layout with the tensor's mesh");
  }
  if (from.rank() != to.rank()) {
    throw ConfigError("a tensor with " + to_text(from) + " cannot lie as " + to_text(to),
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

// What to do next; nothing where `now` is `to`.
std::optional<Move> next_move(const Layout& now, const Layout& to) {
  std::optional<Move> best;
  std::optional<Move> opening;  // of a circle
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

}  // namespace lockstep::sharding

// The moves that take a tensor from one layout to another.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lib/distribute/layout.hpp"

namespace lockstep::sharding {

/// In the order in which they are made where several can be: what shrinks pieces comes first.
enum class MoveKind {
  slice,           ///< replicated -> cut: local
  reduce_scatter,  ///< partial -> cut
  all_to_all,      ///< cut on one axis -> cut on another
  all_reduce,      ///< partial -> replicated
  all_gather,      ///< cut -> replicated
};

/// One change along one mesh dimension.
struct Move {
  MoveKind kind;
  std::string dimension;
  std::size_t from = 0;  ///< the axis that it cut before: all_to_all, all_gather
  std::size_t to = 0;    ///< the axis that it cuts after: slice, reduce_scatter, all_to_all

  bool operator==(const Move&) const = default;
};

/// One move for each mesh dimension whose part differs, none for the others.
///
/// An axis is never cut by two dimensions at a time. So where dimensions exchange axes in a circle,
/// the shortest of them is gathered first and sliced at last: one move more.
/// Errors   throws ConfigError: layouts of different meshes or numbers of axes; a sum that `to`
///          leaves to be taken and `from` does not.
std::vector<Move> moves_between(const Layout& from, const Layout& to);

/// The layout behind a move.
Layout after(const Layout& layout, const Move& move);

}  // namespace lockstep::sharding

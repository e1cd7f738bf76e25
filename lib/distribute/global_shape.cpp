#include <algorithm>
#include <map>

#include "lib/base/errors.hpp"
#include "lib/distribute/layout.hpp"

namespace lockstep {
namespace {

using Lengths = std::vector<std::size_t>;  // of one axis, by rank

// The one that most ranks have; of several the one that comes first.
std::size_t commonest(const Lengths& lengths) {
  std::map<std::size_t, std::size_t> times;
  for (const auto length : lengths) ++times[length];
  return *std::max_element(lengths.begin(), lengths.end(),
                           [&](auto a, auto b) { return times[a] < times[b]; });
}

// The length of the axis, were each piece as long as most ranks say.
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
  // One piece too long moves all others: then it is the commonest length that was meant.
  const Lengths even(found.size(), commonest(found));
  const bool one_is_odd = odd_ranks(found, even).size() < odd_ranks(found, expected).size();
  refuse(layout, axis, found, one_is_odd ? even : expected);
}

}  // namespace

Shape global_shape(const Layout& layout, const std::vector<Shape>& pieces) {
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

#include "lockstep/numerics/leaf_tree.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace lockstep {

std::vector<Subtree> aligned_subtrees(std::uint64_t begin, std::uint64_t end,
                                      std::uint64_t leaves) {
  const std::uint64_t whole = std::bit_ceil(std::max<std::uint64_t>(leaves, 1));
  const std::uint64_t limit = end >= leaves ? whole : end;
  std::vector<Subtree> parts;
  for (std::uint64_t at = begin; at < std::min(end, leaves);) {
    const std::uint64_t aligned = at == 0 ? whole : at & (~at + 1);
    const std::uint64_t size = std::min(aligned, std::bit_floor(limit - at));
    parts.push_back({at, size});
    at += size;
  }
  return parts;
}

std::vector<TreeSum> sums_of(std::span<const Subtree> parts) {
  struct Sum {
    Subtree tree;
    std::size_t part;
  };
  std::vector<Sum> open;  // sizes decrease: siblings are merged as soon as both exist
  std::vector<TreeSum> sums;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::uint64_t next = open.empty() ? 0 : open.back().tree.first + open.back().tree.size;
    if (parts[i].first != next || next % parts[i].size != 0) {
      throw std::invalid_argument("sums_of: a gap, or a subtree out of its place");
    }
    open.push_back({parts[i], i});
    while (open.size() > 1) {
      const Sum right = open.back();
      Sum& left = open[open.size() - 2];
      const bool siblings =
          left.tree.size == right.tree.size && left.tree.first % (2 * left.tree.size) == 0;
      if (!siblings) break;
      sums.push_back({left.part, right.part});
      left.tree.size *= 2;
      open.pop_back();
    }
  }
  for (; open.size() > 1; open.pop_back()) {  // no leaves exist between them
    sums.push_back({open[open.size() - 2].part, open.back().part});
  }
  return sums;
}

std::vector<std::uint8_t> merges_of(std::size_t parts, std::span<const TreeSum> sums) {
  std::vector<std::size_t> left;  // the part that each pending value began with
  std::vector<std::uint8_t> merges(parts);
  std::size_t done = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    left.push_back(part);
    while (done < sums.size() && left.size() > 1 && sums[done].left == left[left.size() - 2] &&
           sums[done].right == left.back()) {
      left.pop_back();
      ++merges[part];
      ++done;
    }
  }
  if (left.size() > 1 || done != sums.size()) {
    throw std::invalid_argument("merges_of: sums of other parts, or in another order");
  }
  return merges;
}

}  // namespace lockstep

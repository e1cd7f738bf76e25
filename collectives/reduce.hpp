// The arithmetic of reductions: in rank order, so that the bits depend on the number of ranks
// alone.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/collectives/communicator.hpp"

namespace lockstep::comm {

/// The elements that one rank reduces.
struct Part {
  std::size_t first;
  std::size_t count;
};

/// The part of `count` elements that rank `rank` of `size` reduces: whole cache lines; the last
/// ranks may have fewer elements, or none.
Part part_of(std::size_t count, int rank, int size);

/// The elements of each rank, in rank order.
using Inputs = std::span<const std::byte* const>;

/// Combines element i of all `inputs` in rank order, (((in0 op in1) op in2) ...), for i in
/// [first, first + count). `out` gets the results at the same positions; it may be an input.
void reduce_in_rank_order(Inputs inputs, Type type, Op op, std::size_t first, std::size_t count,
                          std::byte* out);

}  // namespace lockstep::comm

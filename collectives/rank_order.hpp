// Sums, minima and maxima over ranks in one fixed order, for backends that see all ranks' memory.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/communicator.hpp"

namespace lockstep::comm {

/// Combines element i of all `inputs`, first to last, for i in [first, first + count).
///
/// inputs   one pointer per rank, in rank order; at least one. Each has first + count elements.
/// out      gets the results at the same positions; may be one of the inputs, or apart from all.
/// Bits     out[i] = (((in0 op in1) op in2) ...): no dependence on `first`, `count` or threads.
void reduce_in_rank_order(std::span<const std::byte* const> inputs, Type type, Op op,
                          std::size_t first, std::size_t count, std::byte* out);

}  // namespace lockstep::comm

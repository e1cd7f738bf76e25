// The threads of one block, on one thread of the processor.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <random>

namespace fake_cuda {

/// Calls `thread` for every thread of a block of `block` threads. Between two barriers they run in
/// ascending order, or with `random` upwards or downwards from any of them.
void run_block(const std::function<void()>& thread, dim3 block, std::mt19937* random);

}  // namespace fake_cuda

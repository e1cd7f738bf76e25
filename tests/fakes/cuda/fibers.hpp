// The threads of one block, on one thread of the processor.
#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace fake_cuda {

/// Calls `thread` for every thread of a block of `block` threads; barriers order them.
void run_block(const std::function<void()>& thread, dim3 block, bool descending);

}  // namespace fake_cuda

#include "tests/fakes/cuda/fibers.hpp"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

thread_local uint3 threadIdx;
thread_local uint3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace fake_cuda {
namespace {

constexpr std::size_t stack_bytes = 128 * 1024;

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  bool done = false;
};

/// The block that the calling thread runs.
struct Block {
  std::vector<Fiber> fibers;  // kept from block to block for their stacks
  ucontext_t scheduler{};
  const std::function<void()>* thread = nullptr;
  std::size_t running = 0;
  bool in_fibers = false;
};
thread_local Block block_state;

[[noreturn]] void end_with(const char* what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what);
  std::abort();
}

void set_thread(std::size_t index) {
  const auto i = static_cast<unsigned>(index);
  threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
}

void enter() {
  Block& state = block_state;
  (*state.thread)();
  state.fibers[state.running].done = true;
  swapcontext(&state.fibers[state.running].context, &state.scheduler);
}

/// Runs a fiber up to its next barrier or its end.
void resume(std::size_t index) {
  block_state.running = index;
  set_thread(index);
  swapcontext(&block_state.scheduler, &block_state.fibers[index].context);
}

void start(std::size_t index) {
  Fiber& fiber = block_state.fibers[index];
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
}

}  // namespace

void run_block(const std::function<void()>& thread, dim3 block, bool descending) {
  Block& state = block_state;
  const std::size_t count = std::size_t{block.x} * block.y * block.z;
  if (count == 0 || count > 1024) end_with("a block has 1 to 1024 threads");
  blockDim = block;
  state.thread = &thread;
  if (state.fibers.size() < count) state.fibers.resize(count);
  for (std::size_t i = 0; i < count; ++i) start(i);
  std::size_t finished = 0;
  while (finished == 0) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = descending ? count - 1 - i : i;
      resume(index);
      finished += state.fibers[index].done ? 1 : 0;
    }
    if (finished != 0 && finished != count) end_with("a barrier that not all threads meet");
  }
}

/// Back to the scheduler until all threads of the block came here.
void meet() {
  Block& state = block_state;
  swapcontext(&state.fibers[state.running].context, &state.scheduler);
}

}  // namespace fake_cuda

void __syncthreads() { fake_cuda::meet(); }

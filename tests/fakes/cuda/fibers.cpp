#include "tests/fakes/cuda/fibers.hpp"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

constinit thread_local uint3 threadIdx;
constinit thread_local uint3 blockIdx;
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace fake_cuda {
namespace {

constexpr std::size_t stack_bytes = std::size_t{128} << 10;

/// A place to jump to: the compiler's own setjmp saves no signal mask, which would cost a call of
/// the kernel, and no sanitizer looks at it, which would cost more.
using Jump = void* [5];

struct Fiber {
  ucontext_t begin{};
  Jump at{};  // where it waits
  std::unique_ptr<char[]> stack;
  bool done = false;
};

/// The block that the calling thread runs. Fibers live on from block to block.
struct Block {
  std::vector<Fiber> fibers;
  Jump scheduler{};
  const std::function<void()>* thread = nullptr;
  std::size_t running = 0;
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

/// Back to the scheduler, until it resumes this fiber.
void leave() {
  Block& state = block_state;
  if (__builtin_setjmp(state.fibers[state.running].at) == 0) __builtin_longjmp(state.scheduler, 1);
}

void enter() {
  Block& state = block_state;
  for (;;) {
    (*state.thread)();
    state.fibers[state.running].done = true;
    leave();
  }
}

/// Runs a fiber up to its next barrier or its end.
void resume(std::size_t index) {
  block_state.running = index;
  set_thread(index);
  Fiber& fiber = block_state.fibers[index];
  if (__builtin_setjmp(block_state.scheduler) != 0) return;
  if (fiber.stack) __builtin_longjmp(fiber.at, 1);
  fiber.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
  getcontext(&fiber.begin);
  fiber.begin.uc_stack.ss_sp = fiber.stack.get();
  fiber.begin.uc_stack.ss_size = stack_bytes;
  fiber.begin.uc_link = nullptr;
  makecontext(&fiber.begin, enter, 0);
  setcontext(&fiber.begin);
}

}  // namespace

void run_block(const std::function<void()>& thread, dim3 block, std::mt19937* random) {
  Block& state = block_state;
  const std::size_t count = std::size_t{block.x} * block.y * block.z;
  if (count == 0 || count > 1024) end_with("a block has 1 to 1024 threads");
  blockDim = block;
  state.thread = &thread;
  if (state.fibers.size() < count) state.fibers.resize(count);
  for (std::size_t i = 0; i < count; ++i) state.fibers[i].done = false;
  std::size_t finished = 0;
  while (finished == 0) {
    const std::size_t first = random != nullptr ? (*random)() % count : 0;
    const bool descending = random != nullptr && (*random)() % 2 == 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = (first + (descending ? count - i : i)) % count;
      resume(index);
      finished += state.fibers[index].done ? 1 : 0;
    }
    if (finished != 0 && finished != count) end_with("a barrier that not all threads meet");
  }
}

void meet() { leave(); }

}  // namespace fake_cuda

void __syncthreads() { fake_cuda::meet(); }

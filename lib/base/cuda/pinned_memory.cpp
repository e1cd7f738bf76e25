#include "lib/base/cuda/pinned_memory.hpp"

#include "lib/base/cuda/runtime.hpp"

namespace lockstep::cuda {
namespace {

class PinnedMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t /*alignment*/) override {
    return cuda::allocate(Where::pinned, bytes);
  }
  void do_deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) override {
    cuda::release(Where::pinned, memory);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource& pinned_memory() noexcept {
  static PinnedMemory memory;
  return memory;
}

}  // namespace lockstep::cuda

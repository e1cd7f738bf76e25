#include "tests/fakes/cuda/memory.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address))
#endif

namespace fake_cuda {
namespace {

constexpr std::size_t capacity = std::size_t{1} << 36;  // of addresses: pages come when touched
constexpr std::size_t page = 4096;
constexpr std::size_t line = 256;
constexpr std::size_t largest_filled = std::size_t{16} << 20;  // more is scratch, slow to fill

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct Arena {
  std::mutex mutex;
  std::byte* begin = nullptr;
  std::size_t used = 0;   // up to where memory was given out
  std::size_t live = 0;   // pieces in use
  std::size_t users = 0;  // DeviceAccess objects

  Arena() {
    void* range =
        mmap(nullptr, capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) end_with("mmap");
    begin = static_cast<std::byte*>(range);
  }

  /// Lets the process read and write what is given out, or keeps it from that.
  void protect() const {
    const int access = users == 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (used != 0 && mprotect(begin, rounded_up(used, page), access) != 0) end_with("mprotect");
  }

  [[noreturn]] static void end_with(const char* call) {
    std::perror(call);
    std::abort();
  }
};

Arena& arena() {
  static Arena instance;
  return instance;
}

}  // namespace

void* device_allocate(std::size_t bytes) {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  const std::size_t taken = rounded_up(bytes, line) + line;  // a line between two pieces
  if (bytes > capacity || taken > capacity - all.used) return nullptr;
  std::byte* const memory = all.begin + all.used;
  all.used += taken;
  ++all.live;
  ASAN_POISON_MEMORY_REGION(memory, taken);
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
  ++all.users;
  all.protect();
  if (bytes <= largest_filled) std::memset(memory, 0xff, bytes);
  if (--all.users == 0) all.protect();
  return memory;
}

void device_free(void* memory, std::size_t bytes) {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  ASAN_POISON_MEMORY_REGION(memory, bytes);
  if (--all.live != 0) {  // whole pages go back at once
    const auto at = static_cast<std::size_t>(static_cast<std::byte*>(memory) - all.begin);
    const std::size_t first = rounded_up(at, page);
    const std::size_t last = (at + bytes) / page * page;
    if (first < last) madvise(all.begin + first, last - first, MADV_DONTNEED);
    return;
  }
  madvise(all.begin, rounded_up(all.used, page), MADV_DONTNEED);
  const std::size_t users = std::exchange(all.users, 0);
  all.protect();
  all.users = users;
  all.used = 0;
}

DeviceAccess::DeviceAccess() {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  if (all.users++ == 0) all.protect();
}

DeviceAccess::~DeviceAccess() {
  Arena& all = arena();
  const std::lock_guard lock(all.mutex);
  if (--all.users == 0) all.protect();
}

}  // namespace fake_cuda

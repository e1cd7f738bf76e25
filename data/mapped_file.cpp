#include "lockstep/data/mapped_file.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace lockstep::data {
namespace {

/// What this thread's copy() reads at present.
struct Reading {
  volatile std::uintptr_t begin = 0;
  volatile std::uintptr_t end = 0;
  volatile std::sig_atomic_t failed = 0;
};
thread_local Reading reading;

std::uintptr_t page_bytes;
struct sigaction action_before;

/// Puts a page of zeros where the thread's copy() could not read; the access is then repeated.
void replace_page(int signal, siginfo_t* info, void* /*context*/) {
  const int code = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (info->si_code > 0 && address >= reading.begin && address < reading.end) {
    char* const page = static_cast<char*>(info->si_addr) - address % page_bytes;
    if (::mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        page) {
      reading.failed = 1;
      errno = code;
      return;
    }
  }
  ::sigaction(signal, &action_before, nullptr);  // which the repeated access calls
  if (info->si_code <= 0) ::raise(signal);       // sent by a process: nothing is repeated
  errno = code;
}

void install_handler() noexcept {
  static const bool installed = [] {
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction ours = {};
    ours.sa_sigaction = replace_page;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    return ::sigaction(SIGBUS, &ours, &action_before) == 0;
  }();
  static_cast<void>(installed);
}

}  // namespace

MappedFile::MappedFile(int descriptor, std::uint64_t size) noexcept {
  install_handler();
  void* const begin = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (begin == MAP_FAILED) return;
  begin_ = static_cast<std::uint8_t*>(begin);
  size_ = size;
  // A page that is not in memory is read without its neighbours.
  ::madvise(begin, size, MADV_RANDOM);
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
  if (begin_ != nullptr) ::munmap(begin_, size_);
  begin_ = nullptr;
  size_ = 0;
}

void MappedFile::prefetch(std::uint64_t offset, std::size_t bytes) const noexcept {
  if (begin_ == nullptr || offset > size_ || bytes > size_ - offset) return;
  constexpr std::size_t line = 64;
  for (std::size_t i = 0; i < bytes; i += line) __builtin_prefetch(begin_ + offset + i, 0, 2);
}

bool MappedFile::copy(std::uint64_t offset, std::span<std::uint8_t> bytes) noexcept {
  if (offset > size_ || bytes.size() > size_ - offset) return false;
  const std::uint8_t* const from = begin_ + offset;
  reading.failed = 0;
  reading.begin = reinterpret_cast<std::uintptr_t>(from);
  reading.end = reading.begin + bytes.size();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(bytes.data(), from, bytes.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  reading.end = 0;
  if (reading.failed == 0) return true;
  unmap();  // it now has zeros
  return false;
}

}  // namespace lockstep::data

#include "lib/base/temporaries.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace lockstep {
namespace {

// Plain pointers in a fixed place: all that a signal handler may look at. Whoever takes a pointer
// out owns it; the mutex keeps apart those who may wait.
std::array<std::atomic<char*>, 4096> paths;
std::mutex mutex;

void end_by(int signal) {
  for (auto& slot : paths) {
    const char* const path = slot.exchange(nullptr);
    if (path != nullptr) ::unlink(path);
  }
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  ::raise(signal);
}

}  // namespace

void add_temporary(const std::filesystem::path& path) {
  char* const copy = ::strdup(path.c_str());
  if (copy == nullptr) return;
  const std::lock_guard lock(mutex);
  for (auto& slot : paths) {
    char* nothing = nullptr;
    if (slot.compare_exchange_strong(nothing, copy)) return;
  }
  std::free(copy);
}

void forget_temporary(const std::filesystem::path& path) noexcept {
  const std::lock_guard lock(mutex);
  for (auto& slot : paths) {
    char* mine = slot.load();
    if (mine == nullptr || path.native() != mine) continue;
    if (slot.compare_exchange_strong(mine, nullptr)) std::free(mine);
    return;
  }
}

void remove_temporaries_on_signals() noexcept {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction now = {};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler == SIG_IGN) continue;
    struct sigaction ours = {};
    ours.sa_handler = end_by;
    ::sigaction(signal, &ours, nullptr);
  }
}

}  // namespace lockstep

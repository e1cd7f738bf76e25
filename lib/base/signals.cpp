#include "lockstep/base/signals.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace lockstep {
namespace {

// Plain pointers at a fixed address: a signal handler may access nothing else. A pointer is owned
// by the code that exchanges it out of its slot; the mutex serialises threads outside the handler.
std::array<std::atomic<char*>, 4096> paths;
std::mutex mutex;

void end_by(int signal, siginfo_t* /*info*/, void* /*context*/) {
  remove_temporaries();
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

void remove_temporaries() noexcept {
  for (auto& slot : paths) {
    const char* const path = slot.exchange(nullptr);
    if (path != nullptr) ::unlink(path);
  }
}

namespace {

/// Installs a handler, unless the signal is ignored. Returns the action before.
struct sigaction handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction before = {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return before;
  struct sigaction ours = {};
  ours.sa_sigaction = handler;
  ours.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(signal, &ours, nullptr);
  return before;
}

}  // namespace

void remove_temporaries_on_signals() noexcept {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGPIPE}) handle(signal, end_by);
}

namespace {

constexpr std::array stop_signals = {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE};
constexpr std::int64_t repetition_ns = 1'000'000'000;

std::atomic<int> requested{0};  // the first signal
std::atomic<std::int64_t> requested_at{0};
std::size_t objects = 0;  // guarded by mutex, as the next
std::array<struct sigaction, stop_signals.size()> actions_before;

std::int64_t now_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void request_stop(int signal, siginfo_t* info, void* context) {
  int none = 0;
  const bool is_key = signal == SIGINT && info->si_code == SI_KERNEL;  // Ctrl-C, not kill()
  if (requested.compare_exchange_strong(none, signal)) {
    requested_at = now_ns();
  } else if (signal != SIGPIPE) {             // which repeats with each write
    const std::int64_t first = requested_at;  // 0: its handler has not set it yet
    const bool is_late = first != 0 && now_ns() - first >= repetition_ns;
    if (is_key || is_late) end_by(signal, info, context);
  }
}

}  // namespace

StopRequests::StopRequests() {
  const std::lock_guard lock(mutex);
  if (objects++ > 0) return;
  requested = 0;
  requested_at = 0;
  for (std::size_t i = 0; i < stop_signals.size(); ++i) {
    actions_before[i] = handle(stop_signals[i], request_stop);
  }
}

StopRequests::~StopRequests() {
  const std::lock_guard lock(mutex);
  if (--objects > 0) return;
  for (std::size_t i = 0; i < stop_signals.size(); ++i) {
    // The message of a stop may find the same closed pipe.
    if (stop_signals[i] == SIGPIPE && requested != 0) actions_before[i].sa_handler = SIG_IGN;
    ::sigaction(stop_signals[i], &actions_before[i], nullptr);
  }
}

int StopRequests::signal() const noexcept { return requested; }

bool is_stop_requested() noexcept { return requested != 0; }

}  // namespace lockstep

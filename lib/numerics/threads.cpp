#include "lockstep/numerics/threads.hpp"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/process.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/spin.hpp"

namespace lockstep {
namespace {

/// Waits while `value` is `now`, first in a loop, then asleep (see SpinWait). OpenMP's threads spin
/// for milliseconds, also where others need their core.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t now) noexcept {
  SpinWait wait;
  while (value.load(std::memory_order_acquire) == now) {
    if (!wait.spin()) value.wait(now, std::memory_order_acquire);
  }
}

/// The threads that share work with the one that owns this. No turn waits for a thread that has not
/// begun its part, because others of a busy machine have its core.
class Team {
 public:
  /// Starts threads 1 to `threads` - 1.
  explicit Team(std::size_t threads) : turns_taken_(threads) {
    others_.reserve(threads - 1);
    try {
      for (std::size_t number = 1; number < threads; ++number) {
        others_.push_back(start_thread("for matrix products, number " + std::to_string(number + 1) +
                                           " of " + std::to_string(threads) + " on this rank",
                                       [this, number] { serve(number); }));
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~Team() { end(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  std::size_t size() const noexcept { return turns_taken_.size(); }

  /// Calls `work` for each thread's part: on that thread, or on this one, after its own part, where
  /// that thread has not begun.
  void run(std::size_t count, std::size_t unit, const SharedWork& work) noexcept {
    count_ = count;
    each_ = round_up(ceil_divide(count, size()), unit);
    work_ = work;
    parts_left_.store(static_cast<std::uint32_t>(size()), std::memory_order_relaxed);
    const std::uint32_t turn = begin();
    for (std::size_t part = 0; part < size(); ++part) take(part, turn);
    while (const std::uint32_t left = parts_left_.load(std::memory_order_acquire)) {
      wait_while(parts_left_, left);
    }
  }

 private:
  static constexpr std::size_t cache_line = 64;

  struct alignas(cache_line) Turn {
    std::atomic<std::uint32_t> taken = 0;  // the last one of which a part has been begun
  };

  std::uint32_t begin() noexcept {
    const std::uint32_t turn = turn_.fetch_add(1, std::memory_order_release) + 1;
    turn_.notify_all();
    return turn;
  }

  void end() noexcept {
    ends_ = true;
    begin();
  }

  /// Does a part of a turn that no thread has begun.
  void take(std::size_t part, std::uint32_t turn) noexcept {
    std::uint32_t before = turn - 1;
    auto& taken = turns_taken_[part].taken;
    if (!taken.compare_exchange_strong(before, turn, std::memory_order_acquire)) return;
    const Range mine = {std::min(count_, part * each_), std::min(count_, (part + 1) * each_)};
    if (mine.size() > 0) work_.call(work_.work, mine, part);
    if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) parts_left_.notify_one();
  }

  void serve(std::size_t number) noexcept {
    for (std::uint32_t turn = 0;;) {
      wait_while(turn_, turn);
      turn = turn_.load(std::memory_order_acquire);
      if (ends_) return;
      take(number, turn);
    }
  }

  alignas(cache_line) std::atomic<std::uint32_t> turn_ = 0;  // raised when there is work
  std::size_t count_ = 0;                                    // what follows changes before it
  std::size_t each_ = 0;
  SharedWork work_ = {};
  std::atomic<bool> ends_ = false;
  alignas(cache_line) std::atomic<std::uint32_t> parts_left_ = 0;
  std::vector<Turn> turns_taken_;     // by part
  std::vector<std::jthread> others_;  // last member: they end before the others are destroyed
};

thread_local std::unique_ptr<Team> team;  // null: this thread alone

}  // namespace

void set_product_threads(int threads) {
  const auto count = static_cast<std::size_t>(std::max(1, threads));
  if (count != product_threads()) {
    team.reset();  // first, so that the threads of both do not count together
    omp_set_num_threads(1);
    if (count > 1) team = std::make_unique<Team>(count);
  }
  omp_set_num_threads(static_cast<int>(count));  // of the libraries
}

std::size_t product_threads() noexcept { return team ? team->size() : 1; }

void share_between_threads(std::size_t count, std::size_t unit, SharedWork work) {
  if (count == 0) return;
  if (!team) return work.call(work.work, {0, count}, 0);
  team->run(count, unit, work);
}

}  // namespace lockstep

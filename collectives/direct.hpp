// Collectives of ranks that can read each other's memory: threads, or processes of one machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.hpp"

namespace lockstep::comm {
/// All collectives, built on three things that a backend adds: a slot a rank, a meeting of all
/// ranks, and a way to find a peer's memory.
///
/// Sums     in rank order, so their bits depend on the number of ranks alone.
/// Errors   ranks whose calls differ in kind, count, type, op or root all throw the same CommError,
///          which names two ranks and both calls.
/// Cost     one meeting for up to 256 bytes, which travel in the slots; else two, and each byte is
///          read once from where its owner has it. all_reduce: every rank adds up a part.
class DirectCommunicator : public Communicator {
 public:
  static constexpr std::size_t small_bytes = 256;

  /// Names a collective and its arguments; all ranks must name the same.
  struct Call {
    enum class Kind : std::uint32_t {
      all_reduce,
      broadcast,
      all_gather,
      grouped_all_gather,
      all_to_all,
      shift
    };
    Kind kind;
    Type type;
    std::uint64_t count;
    std::int64_t detail;  // the op of all_reduce, the root of broadcast, a group's lengths
    bool operator==(const Call&) const = default;
  };

  /// What a rank shows to its peers in one collective. Small contributions are copied into it, so
  /// that one meeting is enough: nobody reads the caller's own memory.
  struct alignas(64) Slot {
    Call call;
    std::uintptr_t where;  // see locate()
    union {
      std::array<std::byte, small_bytes> small;
      std::array<std::uintptr_t, small_bytes / sizeof(std::uintptr_t)> blocks;  // of a group
    };
  };

 protected:
  DirectCommunicator(int rank, int size);

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;

 private:
  /// The slot of `rank` for collectives of this turn, 0 or 1: used alternately, for a fast rank may
  /// fill the next while a slow one still reads.
  virtual Slot& slot(int rank, unsigned turn) noexcept = 0;

  /// Returns once all ranks have called it; what they wrote before is seen by all.
  /// Throws CommError, in which `collective` is named, where that will not happen.
  virtual void meet(const char* collective) = 0;

  /// What to write into a slot so that find() on a peer leads to `data`.
  virtual std::uintptr_t locate(const std::byte* data) const noexcept = 0;
  virtual const std::byte* find(int peer, std::uintptr_t where) const noexcept = 0;

  bool show(const Call& call, const std::byte* data, std::size_t bytes);
  void gather_group(Buffers buffers);
  void meet_over(const Call& call, unsigned turn);
  const std::byte* input(int peer) const { return inputs_[static_cast<std::size_t>(peer)]; }

  std::vector<const std::byte*> inputs_;  // what each rank shows in the current collective
  unsigned round_ = 0;
};

// Sums, minima and maxima over ranks in one fixed order, for backends that see all ranks' memory.

/// Combines element i of all `inputs`, first to last, for i in [first, first + count).
///
/// inputs   one pointer per rank, in rank order; at least one. Each has first + count elements.
/// out      gets the results at the same positions; may be one of the inputs, or apart from all.
/// Bits     out[i] = (((in0 op in1) op in2) ...): no dependence on `first`, `count` or threads.
void reduce_in_rank_order(std::span<const std::byte* const> inputs, Type type, Op op,
                          std::size_t first, std::size_t count, std::byte* out);

}  // namespace lockstep::comm

// What a waiting thread does between two looks at memory.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::comm {

/// Some tens of nanoseconds in which the core's other thread may run.
inline void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::comm

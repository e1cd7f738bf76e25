// Collectives for ranks that can read each other's memory: threads, or processes of one machine;
// and reduction in rank order, so that the bits of a sum depend on the number of ranks alone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::comm {

/// Implements all collectives with three primitives of a backend: a slot for each rank, a barrier,
/// and the address of a peer's memory. A backend may replace the barrier after publishing by a
/// shorter wait: wait_for_slots().
///
/// Sums     in rank order, so their bits depend only on the number of ranks.
/// Errors   if calls differ in kind, count, type, op or root, all ranks throw the same CommError,
///          with two ranks and both calls.
/// Cost     one barrier for up to small_bytes per rank (all_reduce: small_reduced_bytes()), copied
///          through the slots; otherwise two, and each byte is read once, from its owner's memory.
///          all_reduce adds a third barrier; each rank reduces a part.
class DirectCommunicator : public Communicator {
 public:
  static constexpr std::size_t small_bytes = 1024;
  static constexpr std::size_t most_small_bytes = 4096;

  /// A collective and its arguments, which must be equal on all ranks.
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
    std::int64_t detail;      // the op of all_reduce, the root of broadcast, a group's lengths
    std::uint64_t whole = 0;  // of a call that is made of pieces: the count from this piece on
    bool operator==(const Call&) const = default;
  };

  /// A cache line of small data and the number of its collective. A peer that sees the number has
  /// the data too, after one transfer between the caches (as in NCCL's LL128); a flag for all lines
  /// would cost a second transfer.
  struct alignas(64) Line {
    std::array<std::byte, 56> data;
    std::atomic<std::uint64_t> written;
  };

  /// What a rank publishes to its peers in one collective: its call and where its data is. Small
  /// data is copied into it: peers then do not read the caller's memory, and one barrier is enough.
  struct alignas(64) Slot {
    Call call;
    std::uintptr_t address;              // see to_address()
    std::atomic<std::uint64_t> written;  // number of the collective that wrote call and address
    std::array<Line, ceil_divide(most_small_bytes, sizeof(Line::data))> lines;
  };

 protected:
  /// `first`: one less than the number of the first collective; the same on all ranks. Slots may
  /// hold numbers of earlier groups, but none that this group will use.
  DirectCommunicator(int rank, int size, std::uint64_t first = 0);

  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;

  /// The most bytes that all_reduce copies through the slots: each rank then reads those of every
  /// other, and otherwise about twice its own.
  std::size_t small_reduced_bytes() const noexcept;

  /// Where a call is made of pieces: its elements from this piece on; else 0.
  std::uint64_t left_ = 0;

 private:
  /// The slot of `rank` for this turn, 0 or 1. Collectives alternate between two slots, because a
  /// fast rank may write the next one while a slow rank still reads.
  virtual Slot& slot(int rank, unsigned turn) noexcept = 0;

  /// Returns once all ranks have called it; their earlier writes are then visible to all.
  /// Throws CommError, with the name `collective`, if a rank has ended.
  virtual void barrier(const char* collective) = 0;

  /// A barrier() that may return earlier: once all slots, though not all lines, have the number
  /// `round`. By default a barrier().
  virtual void wait_for_slots(std::uint64_t round, const char* collective);

  /// After wait_for_slots(): returns once `peer` has reached that barrier, so that its lines have
  /// the number, too.
  virtual void wait_for(int peer, std::uint64_t round, const char* collective);

  /// The address to publish in a slot for `data`; from_address() on a peer reverses it.
  virtual std::uintptr_t to_address(const std::byte* data) const noexcept = 0;
  virtual const std::byte* from_address(int peer, std::uintptr_t address) const noexcept = 0;

  void publish(const Call& call, const std::byte* data, std::size_t bytes);
  void take(int peer, std::size_t offset, std::size_t bytes, std::byte* to);
  void reduce_small(Elements values, Op op);
  void gather_group(Buffers buffers);
  Slot& slot(int rank) noexcept { return slot(rank, static_cast<unsigned>(round_ % 2)); }

  // Of the current collective:
  std::uint64_t round_;  // its number
  const char* name_ = "";
  bool small_ = false;                    // the data is in the slots
  std::vector<const std::byte*> inputs_;  // if not, where the data of each rank is
};

/// The elements of `count` that rank `rank` of `size` reduces: whole cache lines; the last ranks
/// may have fewer, or none.
Range part_of(std::size_t count, int rank, int size);

/// The elements of each rank, in rank order.
using Inputs = std::span<const std::byte* const>;

/// Combines element i of all `inputs` in rank order, (((in0 op in1) op in2) ...), for all i in
/// `range`. `out` gets the results at the same positions; it may be an input.
void reduce_in_rank_order(Inputs inputs, Type type, Op op, Range range, std::byte* out);

}  // namespace lockstep::comm

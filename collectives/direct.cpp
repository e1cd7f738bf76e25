#include "lockstep/collectives/direct.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/spin.hpp"

namespace lockstep::comm {
namespace {

constexpr std::array names = {"all_reduce",         "broadcast",  "all_gather",
                              "grouped all_gather", "all_to_all", "shift"};

using Call = DirectCommunicator::Call;

std::string describe(const Communicator& comm, const Call& call) {
  static constexpr std::array ops = {" (sum)", " (min)", " (max)"};
  static constexpr std::array types = {"u8", "u64", "f32", "f64"};
  std::string text = names[static_cast<std::size_t>(call.kind)];
  if (call.kind == Call::Kind::all_reduce) text += ops[static_cast<std::size_t>(call.detail)];
  if (call.kind == Call::Kind::broadcast)
    text += " from rank " + std::to_string(comm.world_rank(static_cast<int>(call.detail)));
  if (call.kind == Call::Kind::grouped_all_gather) {
    return text + " of " + std::to_string(call.count) + " bytes (lengths " +
           to_hex(static_cast<std::uint64_t>(call.detail)) + ")";
  }
  return text + " of " + std::to_string(call.whole) + " " +
         types[static_cast<std::size_t>(call.type)] +
         (call.whole == call.count ? "" : ", in pieces of " + std::to_string(call.count));
}

// All ranks compare with rank 0, so all throw the same error.
void require_same(const Communicator& comm, int peer, const Call& first, const Call& other) {
  if (other == first) return;
  const auto call_of = [&](int rank, const Call& call) {
    return "rank " + std::to_string(comm.world_rank(rank)) + " calls " + describe(comm, call);
  };
  throw CommError("ranks differ in a collective: " + call_of(0, first) + ", " +
                  call_of(peer, other));
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

// One block of sums stays in L1 for all inputs. It is written last, so `out` may be an input.
template <class T, class Combine>
void reduce_block(Inputs inputs, Range range, std::byte* out, Combine combine) {
  constexpr std::size_t capacity = 4096 / sizeof(T);
  std::array<T, capacity> sums;
  for (std::size_t begin = range.begin; begin < range.end; begin += capacity) {
    const std::size_t now = std::min<std::size_t>(capacity, range.end - begin);
    const std::size_t offset = begin * sizeof(T);
    const auto* older = reinterpret_cast<const T*>(inputs[0] + offset);
    for (const std::byte* input : inputs.subspan(1)) {
      const auto* values = reinterpret_cast<const T*>(input + offset);
      for (std::size_t i = 0; i < now; ++i) sums[i] = combine(older[i], values[i]);
      older = sums.data();
    }
    std::memmove(out + offset, older, now * sizeof(T));  // a single input may be `out`
  }
}

template <class T>
void reduce_typed(Inputs inputs, Op op, Range range, std::byte* out) {
  switch (op) {
    case Op::sum: return reduce_block<T>(inputs, range, out, Sum{});
    case Op::min: return reduce_block<T>(inputs, range, out, Min{});
    case Op::max: return reduce_block<T>(inputs, range, out, Max{});
  }
}

constexpr std::size_t line_bytes = sizeof(DirectCommunicator::Line::data);

/// Calls move(line, its part of the data) for the bytes [offset, offset + bytes) of small data.
template <class Lines, class Move>
void for_each_line(Lines& lines, std::size_t offset, std::size_t bytes, Move move) {
  std::size_t first = offset % line_bytes;
  for (auto* line = lines.data() + offset / line_bytes; bytes > 0; ++line, first = 0) {
    const std::size_t count = std::min(line_bytes - first, bytes);
    move(*line, Range{first, first + count});
    bytes -= count;
  }
}

/// Copies part of a line; most are whole, and of a length that compilers know.
void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == line_bytes) {
    std::memcpy(to, from, line_bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

constexpr std::size_t most_addresses =
    DirectCommunicator::small_bytes / sizeof(std::uintptr_t);  // published at once

}  // namespace

Range part_of(std::size_t count, int rank, int size) {
  constexpr std::size_t line = 64;  // elements: at least a cache line of any type
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t each = round_up(ceil_divide(count, ranks), line);
  const std::size_t begin = std::min(count, static_cast<std::size_t>(rank) * each);
  return {begin, std::min(count, begin + each)};
}

void reduce_in_rank_order(Inputs inputs, Type type, Op op, Range range, std::byte* out) {
  switch (type) {
    case Type::u8: return reduce_typed<std::uint8_t>(inputs, op, range, out);
    case Type::u64: return reduce_typed<std::uint64_t>(inputs, op, range, out);
    case Type::f32: return reduce_typed<float>(inputs, op, range, out);
    case Type::f64: return reduce_typed<double>(inputs, op, range, out);
  }
}

DirectCommunicator::DirectCommunicator(int rank, int size, std::uint64_t first)
    : Communicator(rank, size), round_(first), inputs_(static_cast<std::size_t>(size)) {}

std::size_t DirectCommunicator::small_reduced_bytes() const noexcept {
  const auto peers = static_cast<std::size_t>(std::max(size() - 1, 1));
  return std::max(small_bytes, most_small_bytes / peers);
}

void DirectCommunicator::do_all_reduce(Elements values, Op op) {
  const std::size_t bytes = width(values.type);
  publish({Call::Kind::all_reduce, values.type, values.count, static_cast<std::int64_t>(op)},
          values.data, values.count * bytes);
  if (small_) return reduce_small(values, op);
  const Range mine = part_of(values.count, rank(), size());
  reduce_in_rank_order(inputs_, values.type, op, mine, values.data);
  barrier(name_);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Range part = part_of(values.count, peer, size());
    take(peer, part.begin * bytes, part.size() * bytes, values.data + part.begin * bytes);
  }
  barrier(name_);
}

void DirectCommunicator::reduce_small(Elements values, Op op) {
  const std::size_t bytes = values.count * width(values.type);
  alignas(64) std::array<std::byte, most_small_bytes> sums;
  alignas(64) std::array<std::byte, most_small_bytes> copy;
  const auto input = [&](int from, std::byte* to) -> const std::byte* {
    if (from == rank()) return values.data;
    take(from, 0, bytes, to);
    return to;
  };
  const std::byte* older = input(0, sums.data());
  for (int peer = 1; peer < size(); ++peer) {
    const std::array both = {older, input(peer, copy.data())};
    std::byte* const out = peer + 1 < size() ? sums.data() : values.data;
    reduce_in_rank_order(both, values.type, op, {0, values.count}, out);
    older = sums.data();
  }
}

void DirectCommunicator::do_broadcast(Elements values, int root) {
  const std::size_t bytes = values.count * width(values.type);
  publish({Call::Kind::broadcast, values.type, values.count, root}, values.data, bytes);
  if (rank() != root) take(root, 0, bytes, values.data);
  if (!small_) barrier(name_);
}

void DirectCommunicator::do_all_gather(Elements values) {
  const std::size_t block = values.count / static_cast<std::size_t>(size()) * width(values.type);
  const auto at = [&](int peer) { return static_cast<std::size_t>(peer) * block; };
  publish({Call::Kind::all_gather, values.type, values.count, 0}, values.data + at(rank()), block);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) take(peer, 0, block, values.data + at(peer));
  }
  if (!small_) barrier(name_);
}

void DirectCommunicator::do_grouped_all_gather(Buffers buffers) {
  for (; buffers.size() > most_addresses; buffers = buffers.subspan(most_addresses)) {
    gather_group(buffers.first(most_addresses));
  }
  gather_group(buffers);
}

void DirectCommunicator::gather_group(Buffers buffers) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto mine = static_cast<std::size_t>(rank());
  const std::size_t bytes = packed_bytes(buffers);
  std::uint64_t lengths = buffers.size();
  for (const auto& buffer : buffers) lengths = lengths * 0x9E3779B97F4A7C15U + buffer.size();

  // What is published: the blocks themselves, or their addresses.
  const bool packs = bytes <= small_bytes;
  alignas(64) std::array<std::byte, small_bytes> packed;
  std::array<std::uintptr_t, most_addresses> addresses;
  std::byte* const data = packs ? packed.data() : reinterpret_cast<std::byte*>(addresses.data());
  const std::size_t length = packs ? bytes : buffers.size() * sizeof(std::uintptr_t);
  if (packs) {
    pack(buffers, rank(), data);
  } else {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      addresses[i] = to_address(buffers[i].data() + buffers[i].size() / ranks * mine);
    }
  }
  publish(
      {Call::Kind::grouped_all_gather, Type::u8, bytes * ranks, static_cast<std::int64_t>(lengths)},
      data, length);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // each rank starts at another peer
    take(peer, 0, length, data);
    if (packs) {
      unpack(buffers, peer, data);
      continue;
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const std::size_t block = buffers[i].size() / ranks;
      std::memcpy(buffers[i].data() + block * static_cast<std::size_t>(peer),
                  from_address(peer, addresses[i]), block);
    }
  }
  if (!packs) barrier(name_);
}

void DirectCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  const std::size_t bytes = receive.count * width(receive.type);
  const std::size_t block = bytes / static_cast<std::size_t>(size());
  publish({Call::Kind::all_to_all, receive.type, receive.count, 0}, send, bytes);
  const std::size_t mine = static_cast<std::size_t>(rank()) * block;
  std::memcpy(receive.data + mine, send + mine, block);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // each rank starts at another peer
    take(peer, mine, block, receive.data + static_cast<std::size_t>(peer) * block);
  }
  if (!small_) barrier(name_);
}

void DirectCommunicator::do_shift(const std::byte* send, Elements receive) {
  const std::size_t bytes = receive.count * width(receive.type);
  publish({Call::Kind::shift, receive.type, receive.count, 0}, send, bytes);
  take((rank() + size() - 1) % size(), 0, bytes, receive.data);
  if (!small_) barrier(name_);
}

/// Publishes a call and its data, and waits for the calls of all ranks; throws unless they are
/// equal. Small data of peers may arrive later: see take(). Peers read other data in place, until
/// the next barrier.
void DirectCommunicator::publish(const Call& call, const std::byte* data, std::size_t bytes) {
  ++round_;
  name_ = names[static_cast<std::size_t>(call.kind)];
  small_ = bytes <= (call.kind == Call::Kind::all_reduce ? small_reduced_bytes() : small_bytes);
  Slot& mine = slot(rank());
  mine.call = call;
  mine.call.whole = left_ > 0 ? left_ : call.count;
  mine.address = small_ ? 0 : to_address(data);
  mine.written.store(round_, std::memory_order_release);
  if (small_) {
    for_each_line(mine.lines, 0, bytes, [&, round = round_](Line& line, Range part) {
      copy_part(line.data.data(), data, part.size());
      line.written.store(round, std::memory_order_release);
      data += part.size();
    });
  }
  wait_for_slots(round_, name_);
  for (int peer = 0; peer < size(); ++peer) {
    require_same(*this, peer, slot(0).call, slot(peer).call);
  }
  if (small_) return;
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = from_address(peer, slot(peer).address);
  }
}

/// Copies the bytes [offset, offset + bytes) of what the peer has published.
void DirectCommunicator::take(int peer, std::size_t offset, std::size_t bytes, std::byte* to) {
  if (!small_) {
    std::memcpy(to, inputs_[static_cast<std::size_t>(peer)] + offset, bytes);
    return;
  }
  for_each_line(slot(peer).lines, offset, bytes, [&, round = round_](const Line& line, Range part) {
    for (SpinWait wait; line.written.load(std::memory_order_acquire) != round;) {
      if (!wait.spin()) wait_for(peer, round, name_);
    }
    copy_part(to, line.data.data() + part.begin, part.size());
    to += part.size();
  });
}

void DirectCommunicator::wait_for_slots(std::uint64_t /*round*/, const char* collective) {
  barrier(collective);
}

void DirectCommunicator::wait_for(int, std::uint64_t, const char*) {
  // wait_for_slots() was a barrier: all lines are written.
}

}  // namespace lockstep::comm

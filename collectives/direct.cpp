#include "lockstep/collectives/direct.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/hash.hpp"

namespace lockstep::comm {
namespace {

constexpr std::array names = {"all_reduce",         "broadcast",  "all_gather",
                              "grouped all_gather", "all_to_all", "shift"};

template <class Call>
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
template <class Call>
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

DirectCommunicator::DirectCommunicator(int rank, int size)
    : Communicator(rank, size), inputs_(static_cast<std::size_t>(size)) {}

void DirectCommunicator::do_all_reduce(Elements values, Op op) {
  const std::size_t bytes = values.count * width(values.type);
  const bool small =
      publish({Call::Kind::all_reduce, values.type, values.count, static_cast<std::int64_t>(op)},
              values.data, bytes);
  const Range mine = small ? Range{0, values.count} : part_of(values.count, rank(), size());
  reduce_in_rank_order(inputs_, values.type, op, mine, values.data);
  if (small) return;
  barrier("all_reduce");
  for (int peer = 0; peer < size(); ++peer) {
    const Range part = part_of(values.count, peer, size());
    const std::size_t offset = part.begin * width(values.type);
    if (peer != rank()) {
      std::memcpy(values.data + offset, input(peer) + offset, part.size() * width(values.type));
    }
  }
  barrier("all_reduce");
}

void DirectCommunicator::do_broadcast(Elements values, int root) {
  const std::size_t bytes = values.count * width(values.type);
  const bool small =
      publish({Call::Kind::broadcast, values.type, values.count, root}, values.data, bytes);
  if (rank() != root) std::memcpy(values.data, input(root), bytes);
  if (!small) barrier("broadcast");
}

void DirectCommunicator::do_all_gather(Elements values) {
  const std::size_t block = values.count / static_cast<std::size_t>(size()) * width(values.type);
  const auto at = [&](int peer) { return static_cast<std::size_t>(peer) * block; };
  const bool small = publish({Call::Kind::all_gather, values.type, values.count, 0},
                             values.data + at(rank()), block);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) std::memcpy(values.data + at(peer), input(peer), block);
  }
  if (!small) barrier("all_gather");
}

// Gathers as many buffers at a time as a slot can hold addresses.
void DirectCommunicator::do_grouped_all_gather(Buffers buffers) {
  constexpr std::size_t max = std::tuple_size_v<decltype(Slot::blocks)>;
  for (; buffers.size() > max; buffers = buffers.subspan(max)) gather_group(buffers.first(max));
  gather_group(buffers);
}

void DirectCommunicator::gather_group(Buffers buffers) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto mine = static_cast<std::size_t>(rank());
  const std::size_t bytes = packed_bytes(buffers);
  const bool small = bytes <= small_bytes;
  std::uint64_t lengths = buffers.size();
  for (const auto& buffer : buffers) lengths = lengths * 0x9E3779B97F4A7C15U + buffer.size();

  const unsigned turn = round_++ % 2;
  Slot& slot = this->slot(rank(), turn);
  if (small) {
    pack(buffers, rank(), slot.small.data());
  } else {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      slot.blocks[i] = to_address(buffers[i].data() + buffers[i].size() / ranks * mine);
    }
  }
  check_call(
      {Call::Kind::grouped_all_gather, Type::u8, bytes * ranks, static_cast<std::int64_t>(lengths)},
      turn);
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // each rank starts at another peer
    const Slot& theirs = this->slot(peer, turn);
    if (small) {
      unpack(buffers, peer, theirs.small.data());
      continue;
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const std::size_t block = buffers[i].size() / ranks;
      std::memcpy(buffers[i].data() + block * static_cast<std::size_t>(peer),
                  from_address(peer, theirs.blocks[i]), block);
    }
  }
  if (!small) barrier("grouped all_gather");
}

void DirectCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  const std::size_t bytes = receive.count * width(receive.type);
  const std::size_t block = bytes / static_cast<std::size_t>(size());
  const bool small = publish({Call::Kind::all_to_all, receive.type, receive.count, 0}, send, bytes);
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();  // each rank starts at another peer
    std::memcpy(receive.data + static_cast<std::size_t>(peer) * block,
                input(peer) + static_cast<std::size_t>(rank()) * block, block);
  }
  if (!small) barrier("all_to_all");
}

void DirectCommunicator::do_shift(const std::byte* send, Elements receive) {
  const std::size_t bytes = receive.count * width(receive.type);
  const bool small = publish({Call::Kind::shift, receive.type, receive.count, 0}, send, bytes);
  std::memcpy(receive.data, input((rank() + size() - 1) % size()), bytes);
  if (!small) barrier("shift");
}

/// Publishes `data` and waits until inputs_ points to the data of all ranks. Returns true if the
/// data was copied to the slot; otherwise peers read it in place, until the next barrier.
bool DirectCommunicator::publish(const Call& call, const std::byte* data, std::size_t bytes) {
  const unsigned turn = round_++ % 2;
  Slot& mine = slot(rank(), turn);
  const bool small = bytes <= small_bytes;
  if (small) std::memcpy(mine.small.data(), data, bytes);
  mine.address = small ? 0 : to_address(data);
  check_call(call, turn);
  for (int peer = 0; peer < size(); ++peer) {
    const Slot& theirs = slot(peer, turn);
    inputs_[static_cast<std::size_t>(peer)] =
        small ? theirs.small.data() : from_address(peer, theirs.address);
  }
  return small;
}

/// Waits in a barrier, then throws unless the calls of all ranks are equal.
void DirectCommunicator::check_call(const Call& call, unsigned turn) {
  Call& mine = slot(rank(), turn).call;
  mine = call;
  mine.whole = left_ > 0 ? left_ : call.count;
  barrier(names[static_cast<std::size_t>(call.kind)]);
  const Call first = slot(0, turn).call;
  for (int peer = 0; peer < size(); ++peer) require_same(*this, peer, first, slot(peer, turn).call);
}

}  // namespace lockstep::comm

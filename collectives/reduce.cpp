#include "lockstep/collectives/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace lockstep::comm {

Part part_of(std::size_t count, int rank, int size) {
  constexpr std::size_t line = 64;  // elements: at least a cache line of any type
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t each = ((count + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t first = std::min(count, static_cast<std::size_t>(rank) * each);
  return {first, std::min(each, count - first)};
}

namespace {

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
void reduce_block(Inputs inputs, std::size_t first, std::size_t count, std::byte* out,
                  Combine combine) {
  constexpr std::size_t capacity = 4096 / sizeof(T);
  std::array<T, capacity> sums;
  for (std::size_t done = 0; done < count; done += capacity) {
    const std::size_t now = std::min(capacity, count - done);
    const std::size_t offset = (first + done) * sizeof(T);
    std::memcpy(sums.data(), inputs[0] + offset, now * sizeof(T));
    for (const std::byte* input : inputs.subspan(1)) {
      const T* values = reinterpret_cast<const T*>(input + offset);
      for (std::size_t i = 0; i < now; ++i) sums[i] = combine(sums[i], values[i]);
    }
    std::memcpy(out + offset, sums.data(), now * sizeof(T));
  }
}

template <class T>
void reduce_typed(Inputs inputs, Op op, std::size_t first, std::size_t count, std::byte* out) {
  switch (op) {
    case Op::sum: return reduce_block<T>(inputs, first, count, out, Sum{});
    case Op::min: return reduce_block<T>(inputs, first, count, out, Min{});
    case Op::max: return reduce_block<T>(inputs, first, count, out, Max{});
  }
}

}  // namespace

void reduce_in_rank_order(Inputs inputs, Type type, Op op, std::size_t first, std::size_t count,
                          std::byte* out) {
  switch (type) {
    case Type::u8: return reduce_typed<std::uint8_t>(inputs, op, first, count, out);
    case Type::u64: return reduce_typed<std::uint64_t>(inputs, op, first, count, out);
    case Type::f32: return reduce_typed<float>(inputs, op, first, count, out);
    case Type::f64: return reduce_typed<double>(inputs, op, first, count, out);
  }
}

}  // namespace lockstep::comm

// Tiles of the strict products' kernels: operands staged in shared memory, sums in registers.
//
// A block computes a tile of D[m][n] = a chain over terms t, in order, of fma(A[m][t], B[t][n], .),
// and each of its threads a smaller tile within it. Terms are processed in stages; while a stage is
// multiplied the next ones are loaded from device memory to registers. The tile shape decides which
// thread computes an element; it does not change the element's expression.
//
// A stage may extend beyond the last term. There A is -0 and B is +0: fma(-0, +0, a) is a for every
// a, including -0 and NaN, so the extra terms change no chain.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/numerics/matrix.hpp"
#include "lockstep/numerics/strict.hpp"

namespace lockstep::cuda {

/// A block computes `tile_rows` x `tile_columns` elements, each thread `rows_each` x
/// `columns_each`, in stages of `stage_terms` terms. `resident`: blocks per multiprocessor that
/// registers are reserved for. `ahead`: stages that are loaded before they are needed; small tiles
/// are multiplied sooner than device memory answers.
template <unsigned tile_rows, unsigned tile_columns, unsigned stage_terms, unsigned rows_each,
          unsigned columns_each, unsigned resident_blocks, unsigned stages_ahead>
struct Tile {
  static constexpr unsigned rows = tile_rows;
  static constexpr unsigned columns = tile_columns;
  static constexpr unsigned terms = stage_terms;
  static constexpr unsigned thread_rows = rows_each;
  static constexpr unsigned thread_columns = columns_each;
  static constexpr unsigned across = columns / columns_each;  ///< threads per tile row
  static constexpr unsigned threads = rows / rows_each * across;
  static constexpr unsigned resident = resident_blocks;
  static constexpr unsigned ahead = stages_ahead;

  /// The number of tiles of a matrix.
  static constexpr std::size_t down_of(std::size_t count) { return (count + rows - 1) / rows; }
  static constexpr std::size_t across_of(std::size_t count) {
    return (count + columns - 1) / columns;
  }
};

/// Reads four neighbours, the first at a multiple of four; `outside` beyond the matrix.
///
/// Lines of `length` floats, `stride` floats apart.
struct Lines {
  const float* data;
  std::size_t stride;
  unsigned lines;
  unsigned length;
  bool aligned;  ///< every line begins and ends at a multiple of 16 bytes

  __device__ float4 four(unsigned line, unsigned at, float outside) const {
    float4 four = make_float4(outside, outside, outside, outside);
    const bool inside = line < lines && at < length;
    const float* from = data + line * stride + at;
    if (aligned) {  // the same for all threads, so that the usual case is one load without a branch
      if (inside) four = *reinterpret_cast<const float4*>(from);
    } else if (inside) {
      four.x = from[0];
      if (at + 1 < length) four.y = from[1];
      if (at + 2 < length) four.z = from[2];
      if (at + 3 < length) four.w = from[3];
    }
    return four;
  }
};

inline bool aligned_rows(const float* data, std::size_t stride) {
  return stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(data) % sizeof(float4) == 0;
}

inline Lines lines_of(const Matrix<const float>& matrix) {
  return {matrix.data, matrix.cols, static_cast<unsigned>(matrix.rows),
          static_cast<unsigned>(matrix.cols), aligned_rows(matrix.data, matrix.cols)};
}

/// The index of element (k, j) in panels (strict.hpp), for `outputs` rounded up to 16.
__device__ inline std::size_t panel_at(unsigned k, unsigned j, unsigned inputs, unsigned outputs) {
  constexpr auto panel = static_cast<unsigned>(panel_columns);
  const unsigned first = j / panel * panel;
  const unsigned width = outputs - first < panel ? outputs - first : panel;
  return std::size_t{first} * inputs + std::size_t{k} * width + (j - first);
}

/// The same for weights in panels: a line is an input.
struct PanelLines {
  const float* data;
  unsigned inputs;
  unsigned outputs;  ///< rounded to 16

  __device__ float4 four(unsigned k, unsigned j, float outside) const {
    float4 four = make_float4(outside, outside, outside, outside);
    if (k < inputs && j < outputs) {
      four = *reinterpret_cast<const float4*>(data + panel_at(k, j, inputs, outputs));
    }
    return four;
  }
};

/// Two stages of both operands, by terms. Four padding floats place a line's columns in other banks
/// than its neighbour's.
template <class T>
struct Shared {
  alignas(16) float a[2][T::terms][T::rows + 4];
  alignas(16) float b[2][T::terms][T::columns + 4];
};

/// The dimension that is contiguous in device memory: an element's terms, or the elements.
enum class Along { terms, elements };

/// A thread's part of one operand's stage, held in registers between load and store.
template <class T, unsigned elements, Along along>
struct Stage {
  static constexpr unsigned fours = elements * T::terms / 4;
  static constexpr unsigned count = (fours + T::threads - 1) / T::threads;
  static constexpr unsigned line = (along == Along::terms ? T::terms : elements) / 4;
  float4 held[count];

  template <class Source>
  __device__ __forceinline__ void load(const Source& source, unsigned element, unsigned term,
                                       float outside) {
#pragma unroll
    for (unsigned n = 0; n < count; ++n) {
      const unsigned at = n * T::threads + threadIdx.x;
      if (fours % T::threads != 0 && at >= fours) break;
      held[n] = along == Along::terms
                    ? source.four(element + at / line, term + at % line * 4, outside)
                    : source.four(term + at / line, element + at % line * 4, outside);
    }
  }

  __device__ __forceinline__ void store(float (*shared)[elements + 4]) const {
#pragma unroll
    for (unsigned n = 0; n < count; ++n) {
      const unsigned at = n * T::threads + threadIdx.x;
      if (fours % T::threads != 0 && at >= fours) break;
      if (along == Along::elements) {
        *reinterpret_cast<float4*>(&shared[at / line][at % line * 4]) = held[n];
      } else {
        const unsigned element = at / line;
        const unsigned term = at % line * 4;
        shared[term][element] = held[n].x;
        shared[term + 1][element] = held[n].y;
        shared[term + 2][element] = held[n].z;
        shared[term + 3][element] = held[n].w;
      }
    }
  }
};

/// The element of the tile that is a thread's n-th, of `each` in this direction: runs of up to four
/// for vector loads; neighbouring threads read neighbouring runs.
template <unsigned elements, unsigned each>
__device__ __forceinline__ unsigned element_of(unsigned thread, unsigned n) {
  constexpr unsigned run = each < 4 ? each : 4;
  return n / run * (elements / (each / run)) + thread * run + n % run;
}

/// A thread's elements of one term.
template <unsigned elements, unsigned each>
__device__ __forceinline__ void read_term(const float* term, unsigned thread, float (&out)[each]) {
  static_assert(each % 4 == 0 || each == 2);
  if constexpr (each == 2) {
    const auto two = *reinterpret_cast<const float2*>(term + thread * 2);
    out[0] = two.x;
    out[1] = two.y;
  } else {
#pragma unroll
    for (unsigned n = 0; n < each; n += 4) {
      const auto four =
          *reinterpret_cast<const float4*>(term + element_of<elements, each>(thread, n));
      out[n] = four.x;
      out[n + 1] = four.y;
      out[n + 2] = four.z;
      out[n + 3] = four.w;
    }
  }
}

template <class T>
using Sums = float[T::thread_rows][T::thread_columns];

/// Whether terms are added to the chains in `sums`, or begin new ones, whose first term is a
/// product: fma(a, b, +0) but for a zero's sign, which canonical() removes from what is written.
enum class Chains { accumulate, begin };

/// Adds `terms` terms to every chain, those of the stage from `first` on.
template <class T, unsigned terms, Chains chains = Chains::accumulate>
__device__ __forceinline__ void multiply(const float (*a)[T::rows + 4],
                                         const float (*b)[T::columns + 4], unsigned first,
                                         Sums<T>& sums) {
#pragma unroll
  for (unsigned t = 0; t < terms; ++t) {
    float left[T::thread_rows];
    float right[T::thread_columns];
    read_term<T::rows>(a[first + t], threadIdx.x / T::across, left);
    read_term<T::columns>(b[first + t], threadIdx.x % T::across, right);
#pragma unroll
    for (unsigned m = 0; m < T::thread_rows; ++m) {
#pragma unroll
      for (unsigned n = 0; n < T::thread_columns; ++n) {
        sums[m][n] = chains == Chains::begin && t == 0 ? left[m] * right[n]
                                                       : fmaf(left[m], right[n], sums[m][n]);
      }
    }
  }
}

/// The first elements of this block's tile, and the terms [first_term, last_term).
struct Place {
  unsigned row;
  unsigned column;
  unsigned first_term;
  unsigned last_term;
};

/// Calls run(std::integral_constant<unsigned, n>) for n = 0 to count - 1 while it returns true;
/// true if it always did.
template <unsigned count, class Run>
__device__ __forceinline__ bool all_of_slots(const Run& run) {
  return [&]<unsigned... n>(std::integer_sequence<unsigned, n...>) {
    return (run(std::integral_constant<unsigned, n>()) && ...);
  }
  (std::make_integer_sequence<unsigned, count>());
}

/// Calls use(stage, a, b, term) for the stages in order. `stage` is the stage's number modulo
/// `cycle`, a multiple of `ahead`, at compile time; `term` is its first term. All threads of the
/// block must call it.
///
/// Stage s is loaded to slot s % ahead. Slots are numbers at compile time, so that they stay in
/// registers, and nothing but the store of a stage waits for its load.
template <class T, Along a_along, Along b_along, unsigned cycle = T::ahead, class A, class B,
          class Use>
__device__ __forceinline__ void for_each_stage(Shared<T>& shared, const A& a, const B& b,
                                               const Place& place, const Use& use) {
  Stage<T, T::rows, a_along> next_a[T::ahead];
  Stage<T, T::columns, b_along> next_b[T::ahead];
  unsigned term = place.first_term;
  unsigned now = 0;
  const auto load = [&](auto slot, unsigned first) {
    next_a[slot].load(a, place.row, first, -0.0F);
    next_b[slot].load(b, place.column, first, 0.0F);
  };
  const auto store = [&](auto slot) {
    next_a[slot].store(shared.a[now]);
    next_b[slot].store(shared.b[now]);
    __syncthreads();
  };
  all_of_slots<T::ahead>([&](auto slot) {
    load(slot, term + slot * T::terms);
    return true;
  });
  store(std::integral_constant<unsigned, 0>());
  const auto use_stage = [&](auto stage) {  // the one that is in shared memory
    constexpr unsigned slot = stage % T::ahead;
    load(std::integral_constant<unsigned, slot>(), term + T::ahead * T::terms);
    use(stage, shared.a[now], shared.b[now], term);
    if (place.last_term - term <= T::terms) return false;
    term += T::terms;
    now = 1 - now;  // free: all threads have passed the barrier after reading it
    store(std::integral_constant<unsigned, (slot + 1) % T::ahead>());
    return true;
  };
  while (all_of_slots<cycle>(use_stage)) {
  }
}

/// The value written for a sum: +0 for -0, and one NaN.
__device__ inline float canonical(float a) {
  return a != a ? std::numeric_limits<float>::quiet_NaN() : a + 0.0F;
}

}  // namespace lockstep::cuda

// The chains of the bf16 products in register tiles, with denormals flushed (bf16.hpp).
//
// Included once per target: the include guard toggles with Highway's.
#if defined(LOCKSTEP_BF16) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_BF16
#undef LOCKSTEP_BF16
#else
#define LOCKSTEP_BF16
#endif

#include <span>

#include "lockstep/numerics/bf16.hpp"
#include "lockstep/numerics/strict_tile-inl.hpp"

#if LOCKSTEP_HAS_KERNELS

#if HWY_ARCH_X86
#include <xmmintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86

/// Sets the flags of x86 by which denormal operands and results count as zero, until the end of its
/// scope. Compilers do not know that arithmetic depends on the flags, so all arithmetic of the
/// scope is in functions that are not inlined.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | flush_to_zero | denormals_zero); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned flush_to_zero = 0x8000;
  static constexpr unsigned denormals_zero = 0x0040;
  unsigned before_;
};

HWY_INLINE Vector flush(Vector a) { return a; }

#else

struct FlushDenormals {
  FlushDenormals() {}  // NOLINT: not trivial, so that it is no unused variable
};

HWY_INLINE Vector flush(Vector a) {
  const Vector smallest = hn::Set(tag, std::numeric_limits<float>::min());
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(a), smallest), a);
}

#endif

/// Terms of a chain: of row r, factor(n)[r * row] times the columns from columns(n) on. Of the two
/// chains of a chunk, are_pairs: the n-th terms are used together; only the last even one may be
/// alone.
struct Strided {
  static constexpr bool are_pairs = true;
  const float* a;
  std::size_t row;
  std::size_t step;
  const float* b;
  std::size_t stride;

  const float* factor(std::size_t n) const { return a + n * step; }
  const float* columns(std::size_t n) const { return b + n * stride; }
  template <std::size_t ahead>
  std::size_t step_ahead(std::size_t) const {  ///< from columns(n) to columns(n + ahead)
    return ahead * stride;
  }
  Strided from(std::size_t column) const { return {a, row, step, b + column, stride}; }
};

/// Of the terms that a list names.
struct Listed {
  static constexpr bool are_pairs = true;
  const float* a;
  std::size_t row;
  const float* b;
  std::size_t stride;
  const std::uint32_t* list;

  const float* factor(std::size_t n) const { return a + list[n]; }
  const float* columns(std::size_t n) const { return b + list[n] * stride; }
  template <std::size_t ahead>
  std::size_t step_ahead(std::size_t n) const {
    return (std::size_t{list[n + ahead]} - list[n]) * stride;
  }
  Listed from(std::size_t column) const { return {a, row, b + column, stride, list}; }
};

/// The terms of a chunk.
template <class Terms>
struct Pair {
  Terms even;
  std::size_t evens;
  Terms odd;
  std::size_t odds;
};

#if HWY_ARCH_X86

/// The terms of which bits are set.
struct Chosen {
  static constexpr bool are_pairs = false;
  Strided all;
  std::uint32_t bits;

  Chosen from(std::size_t column) const { return {all.from(column), bits}; }
};

/// sums = the chain of these terms.
template <std::size_t ahead, std::size_t R, std::size_t V>
HWY_INLINE void chain(Sums<R, V>& sums, const Strided& t, std::size_t count) {
  clear(sums);
  add_terms<ahead>(sums, t.a, t.row, t.step, t.b, t.stride, count);
}
template <std::size_t ahead, std::size_t R, std::size_t V>
HWY_INLINE void chain(Sums<R, V>& sums, const Listed& t, std::size_t count) {
  clear(sums);
  add_listed_terms<ahead>(sums, t.a, t.row, t.b, t.stride, t.list, count);
}
template <std::size_t ahead, std::size_t R, std::size_t V>
HWY_INLINE void chain(Sums<R, V>& sums, const Chosen& t, std::size_t) {
  clear(sums);
  for (std::uint32_t bits = t.bits; bits != 0; bits &= bits - 1) {
    const auto n = static_cast<std::size_t>(std::countr_zero(bits));
    add_term(sums, t.all.factor(n), t.all.row, t.all.columns(n));
  }
}

#else

/// One element's chain.
template <class Terms>
float chain_of(const Terms& t, std::size_t count, std::size_t r, std::size_t c) {
  float sum = 0;
  for (std::size_t n = 0; n < count; ++n) {
    sum = flushed_fma(t.factor(n)[r * t.row], t.columns(n)[c], sum);
  }
  return sum;
}

/// The same on ARM.
template <std::size_t ahead, std::size_t R, std::size_t V, class Terms>
HWY_INLINE void chain(Sums<R, V>& sums, const Terms& t, std::size_t count) {
  const Vector scale = hn::Set(tag, 0x1p24F);
  const Vector smallest = hn::Set(tag, 0x1p-102F);
  clear(sums);
  for (std::size_t n = 0; n < count; ++n) {
    Vector columns[V];
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      columns[v] = hn::LoadU(tag, t.columns(n) + v * lanes);
    }
    LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
      const Vector factor = hn::Mul(hn::Set(tag, t.factor(n)[r * t.row]), scale);
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        const Vector sum = hn::MulAdd(factor, columns[v], sums.at[r][v]);
        sums.at[r][v] = hn::IfThenZeroElse(hn::Lt(hn::Abs(sum), smallest), sum);
      }
    }
  }
  const Vector back = hn::Set(tag, 0x1p-24F);
  auto finite = hn::IsFinite(sums.at[0][0]);
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
      finite = hn::And(finite, hn::IsFinite(sums.at[r][v]));
      sums.at[r][v] = hn::Mul(sums.at[r][v], back);
    }
  }
  if (hn::AllTrue(tag, finite)) return;
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t v = 0; v < V; ++v) {
      alignas(64) std::array<float, lanes> all;
      for (std::size_t c = 0; c < lanes; ++c) all[c] = chain_of(t, count, r, v * lanes + c);
      sums.at[r][v] = hn::Load(tag, all.data());
    }
  }
}

#endif

/// Vectors of columns whose even and odd chains are computed together: both in registers, but with
/// AVX2 one of them in memory.
template <std::size_t R, std::size_t V>
constexpr std::size_t group_vectors = lanes == 8    ? V
                                      : 4 * R <= 28 ? std::min<std::size_t>(V, 2)
                                                    : 1;

/// even and odd = the chains of these terms.
template <std::size_t ahead, std::size_t R, std::size_t V, class Terms>
HWY_INLINE void two_chains(Sums<R, V>& even, Sums<R, V>& odd, const Pair<Terms>& t) {
  if constexpr (lanes == 16 && Terms::are_pairs) {
    // Term by term, so that twice as many multiply-adds are independent.
    clear(even);
    clear(odd);
    for (std::size_t n = 0; n < t.odds; ++n) {
      if constexpr (ahead > 0) {
        const std::size_t step = t.even.template step_ahead<ahead>(n);
        prefetch_columns<V>(t.even.columns(n) + step);
        prefetch_columns<V>(t.odd.columns(n) + step);
      }
      add_term(even, t.even.factor(n), t.even.row, t.even.columns(n));
      add_term(odd, t.odd.factor(n), t.odd.row, t.odd.columns(n));
    }
    if (t.odds == t.evens) return;
    add_term(even, t.even.factor(t.odds), t.even.row, t.even.columns(t.odds));
  } else {
    chain<ahead>(even, t.even, t.evens);
    if constexpr (lanes == 8) {
      // Else compilers keep both chains in registers, which do not suffice.
      asm volatile("" : : "r"(&even) : "memory");
    }
    chain<ahead>(odd, t.odd, t.odds);
  }
}

/// add_chunk() of the vectors [first, first + group).
template <std::size_t ahead, std::size_t group, std::size_t R, std::size_t V, class Terms>
HWY_INLINE void add_group(Sums<R, V>& sums, const Pair<Terms>& t, std::size_t first, bool begin) {
  Sums<R, group> even;
  Sums<R, group> odd;
  two_chains<ahead>(
      even, odd,
      Pair<Terms>{t.even.from(first * lanes), t.evens, t.odd.from(first * lanes), t.odds});
  LOCKSTEP_UNROLL for (std::size_t r = 0; r < R; ++r) {
    LOCKSTEP_UNROLL for (std::size_t v = 0; v < group; ++v) {
      const Vector chunk = flush(hn::Add(even.at[r][v], odd.at[r][v]));
      Vector& sum = sums.at[r][first + v];
      sum = begin ? chunk : flush(hn::Add(flush(sum), chunk));
    }
  }
}

/// sums = sums + (even + odd), or without `sums` if they begin here.
template <std::size_t ahead, std::size_t R, std::size_t V, class Terms>
HWY_INLINE void add_chunk(Sums<R, V>& sums, const Pair<Terms>& t, bool begin = false) {
  constexpr std::size_t group = group_vectors<R, V>;
  LOCKSTEP_UNROLL for (std::size_t first = 0; first + group <= V; first += group) {
    add_group<ahead, group>(sums, t, first, begin);
  }
  if constexpr (V % group != 0) add_group<ahead, V % group>(sums, t, V - V % group, begin);
}

/// The chunk of `terms` terms from t's n-th on.
HWY_INLINE Pair<Strided> chunk_of(const Strided& t, std::size_t n, std::size_t terms) {
  const Strided even{t.factor(n), t.row, 2 * t.step, t.columns(n), 2 * t.stride};
  const Strided odd{t.factor(n + 1), t.row, even.step, t.columns(n + 1), even.stride};
  return {even, (terms + 1) / 2, odd, terms / 2};
}

constexpr hn::RebindToUnsigned<decltype(tag)> word_tag;
using Words = hn::Vec<decltype(word_tag)>;

/// round_to_bf16.
HWY_INLINE Vector rounded(Vector value) {
  const Words bits = hn::BitCast(word_tag, value);
  const Words even = hn::And(hn::ShiftRight<16>(bits), hn::Set(word_tag, 1U));
  const Words sum = hn::Add(bits, hn::Add(even, hn::Set(word_tag, 0x7fffU)));
  const auto normal = hn::Ne(hn::And(bits, hn::Set(word_tag, 0x7f800000U)), hn::Zero(word_tag));
  const Words out = hn::IfThenElseZero(normal, hn::And(sum, hn::Set(word_tag, 0xffff0000U)));
  const Vector nan = hn::Set(tag, std::numeric_limits<float>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(value), nan, hn::BitCast(tag, out));
}

/// Are the values seen finite?
class Finite {
 public:
  HWY_ATTR Finite() : bits_(hn::Zero(word_tag)) {}
  HWY_INLINE void see(Vector value) {
    bits_ = hn::Max(bits_, hn::BitCast(word_tag, hn::Abs(value)));
  }
  HWY_INLINE bool all() const {
    return hn::AllTrue(word_tag, hn::Lt(bits_, hn::Set(word_tag, 0x7f800000U)));
  }

 private:
  Words bits_;
};

/// Chains in float32: strict.hpp.
struct Float32Chain {
  static constexpr bool is_bf16 = false;
  static constexpr std::size_t list_pays = 16;  ///< if it leaves out this part of columns
  static HWY_INLINE Vector factor(Vector value) { return value; }
  struct Mode {
    Mode() {}  // NOLINT: as above
  };
  static constexpr Constant<panel_columns> usual_stride{};  ///< of forward and, mostly, of dX
  static_assert(panel_columns == input_columns);

  template <std::size_t ahead, std::size_t R, std::size_t V>
  static HWY_INLINE void add(Sums<R, V>& sums, const Strided& t, std::size_t count) {
    if (t.stride == usual_stride) {
      add_terms<ahead>(sums, t.a, t.row, t.step, t.b, usual_stride, count);
    } else {
      add_terms<ahead>(sums, t.a, t.row, t.step, t.b, t.stride, count);
    }
  }

  /// The terms of a list_columns().
  template <std::size_t ahead, std::size_t R, std::size_t V>
  static HWY_INLINE void add(Sums<R, V>& sums, const Listed& t, std::size_t listed, std::size_t) {
    if (t.stride == usual_stride) {
      add_listed_terms<ahead>(sums, t.a, t.row, t.b, usual_stride, t.list, listed);
    } else {
      add_listed_terms<ahead>(sums, t.a, t.row, t.b, t.stride, t.list, listed);
    }
  }
};

/// Chains in bf16, of terms from a multiple of 32 on.
struct Bf16Chain {
  static constexpr bool is_bf16 = true;
  static constexpr std::size_t list_pays = 4;
  static HWY_INLINE Vector factor(Vector value) { return rounded(value); }
  using Mode = FlushDenormals;

  template <std::size_t ahead, std::size_t R, std::size_t V>
  static HWY_NOINLINE void add(Sums<R, V>& sums, const Strided& t, std::size_t count) {
    for (std::size_t n = 0; n < count; n += bf16_chunk) {
      add_chunk<ahead>(sums, chunk_of(t, n, std::min(bf16_chunk, count - n)));
    }
  }

  /// The list begins with the number of pairs in each chunk of `inputs`.
  template <std::size_t ahead, std::size_t R, std::size_t V>
  static HWY_NOINLINE void add(Sums<R, V>& sums, const Listed& t, std::size_t, std::size_t inputs) {
    const std::size_t chunks = chunks_of(inputs);
    const std::uint32_t* pairs = t.list + chunks;
    for (std::size_t c = 0; c < chunks; ++c) {
      const std::size_t alone = c + 1 == chunks ? inputs % 2 : 0;
      const Listed even{t.a, t.row, t.b, t.stride, pairs};
      const Listed odd{t.a + 1, t.row, t.b + t.stride, t.stride, pairs};
      add_chunk<ahead>(sums, Pair<Listed>{even, t.list[c], odd, t.list[c] - alone});
      pairs += t.list[c];
    }
  }
};

/// Bf16Products::round.
bool round(std::span<const float> values, std::span<float> out) {
  assert(values.size() == out.size());
  Finite finite;
  for (std::size_t i = 0; i < values.size(); i += lanes) {
    const auto exist = first_lanes(values.size() - i);
    const Vector value = rounded(load(exist, values.data() + i));
    finite.see(value);
    store(value, exist, out.data() + i);
  }
  return finite.all();
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS
#endif  // guard

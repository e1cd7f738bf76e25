// db: leaves summed directly from dz, which is read once.
//
// Included once per target: the include guard toggles with Highway's.
#if defined(LOCKSTEP_STRICT_BIAS) == defined(HWY_TARGET_TOGGLE)
#ifdef LOCKSTEP_STRICT_BIAS
#undef LOCKSTEP_STRICT_BIAS
#else
#define LOCKSTEP_STRICT_BIAS
#endif

#include "lockstep/numerics/strict_weights-inl.hpp"

#if LOCKSTEP_HAS_KERNELS

HWY_BEFORE_NAMESPACE();
namespace lockstep::HWY_NAMESPACE {
namespace {

/// The sums over all rows of the columns that begin at `dz`, of which `exist` exist.
void bias_columns(const float* dz, Matrix<const float> all, std::size_t leaf, std::size_t exist,
                  float* waiting, std::array<float, max_columns>& out) {
  constexpr std::size_t V = max_vectors;
  FirstLanes part[V];
  for (std::size_t v = 0; v < V; ++v) part[v] = first_lanes(exist - std::min(exist, v * lanes));
  Sums<1, V> sums;
  for (std::size_t q = 0, i = 0; i < all.rows; ++q) {
    clear(sums);
    for (const std::size_t end = i + std::min(leaf, all.rows - i); i < end; ++i, dz += all.cols) {
      LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
        const Vector row = load(part[v], dz + v * lanes);
        sums.at[0][v] = hn::Add(row, sums.at[0][v]);
      }
    }
    merge_pending_nodes(sums, waiting, q, i == all.rows);
  }
  LOCKSTEP_UNROLL for (std::size_t v = 0; v < V; ++v) {
    hn::StoreU(canonical(sums.at[0][v]), tag, out.data() + v * lanes);
  }
}

void backward_bias(Matrix<const float> dz, std::size_t leaf, Range slice, std::span<float> db) {
  assert(db.size() == slice.size() && slice.end <= round_to_unit(dz.cols) && leaf > 0);
  if (dz.rows == 0) return std::fill(db.begin(), db.end(), 0.0F);
  constexpr std::size_t levels = std::numeric_limits<std::size_t>::digits;
  alignas(64) std::array<float, levels * max_columns> waiting;
  alignas(64) std::array<float, max_columns> sums;
  for (std::size_t j = slice.begin; j < slice.end; j += max_columns) {
    const std::size_t exist = std::min(max_columns, dz.cols - std::min(dz.cols, j));
    bias_columns(dz.data + j, dz, leaf, exist, waiting.data(), sums);
    const std::size_t count = std::min(max_columns, slice.end - j);
    std::copy_n(sums.begin(), count, db.begin() + static_cast<std::ptrdiff_t>(j - slice.begin));
  }
}

}  // namespace
}  // namespace lockstep::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // LOCKSTEP_HAS_KERNELS
#endif  // guard

// Features from stored bytes and numbers (stored_source.hpp).
#include <cmath>
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/stored_source.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::data {
namespace {

#if defined(__x86_64__)
// IEEE division is correctly rounded, so vector and scalar code give the same bits.

bool has_avx2() noexcept {
  static const bool has_instructions = __builtin_cpu_supports("avx2") != 0;
  return has_instructions;
}

/// Divides the values in groups of eight; returns the number of values divided.
[[gnu::target("avx2")]] std::size_t scale_eights(std::span<const std::uint8_t> bytes, float* out,
                                                 float divisor) noexcept {
  const __m256 by = _mm256_set1_ps(divisor);
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes.data() + i));
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
    _mm256_storeu_ps(out + i, _mm256_div_ps(wide, by));
  }
  return i;
}

[[gnu::target("avx2")]] std::size_t divide_eights(std::span<float> values, float divisor) noexcept {
  const __m256 by = _mm256_set1_ps(divisor);
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    float* const eight = values.data() + i;
    _mm256_storeu_ps(eight, _mm256_div_ps(_mm256_loadu_ps(eight), by));
  }
  return i;
}
#endif

}  // namespace

float checked_divisor(std::optional<float> divide_by, float otherwise) {
  const float divisor = divide_by.value_or(otherwise);
  if (std::isfinite(divisor) && divisor > 0.0F) return divisor;
  throw ConfigError("divide-by is " + std::to_string(divisor),
                    "give `divide_by` a positive, finite number, or auto");
}

ByteScale::ByteScale(std::optional<float> divide_by)
    : divisor_(checked_divisor(divide_by, 255.0F)) {
  for (std::size_t v = 0; v < table_.size(); ++v) table_[v] = static_cast<float>(v) / divisor_;
}

void ByteScale::apply(std::span<const std::uint8_t> bytes,
                      std::span<float> features) const noexcept {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (has_avx2()) done = scale_eights(bytes, features.data(), divisor_);
#endif
  for (std::size_t i = done; i < bytes.size(); ++i) features[i] = table_[bytes[i]];
}

void divide(std::span<float> values, float divisor) noexcept {
  std::size_t done = 0;
#if defined(__x86_64__)
  if (has_avx2()) done = divide_eights(values, divisor);
#endif
  for (std::size_t i = done; i < values.size(); ++i) values[i] /= divisor;
}

}  // namespace lockstep::data

// Whether this processor multiplies bf16 by AMX, and as bf16.hpp defines it.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "lockstep/base/aligned.hpp"
#include "lockstep/numerics/bf16.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lockstep {
namespace {

/// Forward of one layer.
struct Trial {
  static constexpr std::size_t rows = 16;
  static constexpr std::size_t inputs = 96;
  static constexpr std::size_t outputs = 16;
  AlignedBuffer<float> x{rows * inputs};
  AlignedBuffer<float> w{inputs * outputs};
  AlignedBuffer<float> bias{outputs};

  /// Factors of which exponents are about `exponent`.
  Trial(int exponent, bool special) {
    std::minstd_rand random(7);
    for (const auto factors : {x.span(), w.span()}) {
      for (float& value : factors) value = draw(random, exponent, special);
    }
    for (float& value : bias.span()) value = draw(random, 2 * exponent, special);
  }

  std::array<std::uint32_t, rows * outputs> result(const Bf16Products& bf16) const {
    AlignedBuffer<float> weights(w.size());
    std::copy_n(w.data(), w.size(), weights.data());
    if (bf16.round != nullptr) bf16.round(w.span(), weights.span());
    AlignedBuffer<float> scratch(bf16.products.forward_scratch(rows, inputs));
    std::array<float, rows * outputs> y;
    bf16.products.forward({x.data(), rows, inputs}, {{inputs, outputs}, weights.span()},
                          bias.span(), Activation::identity, {y.data(), rows, outputs},
                          {0, outputs}, Output::overwrite, Zeros::dense, scratch.span());
    return std::bit_cast<std::array<std::uint32_t, rows * outputs>>(y);
  }

 private:
  static float draw(std::minstd_rand& random, int exponent, bool special) {
    constexpr std::array values = {0.0F,
                                   -0.0F,
                                   1e-40F,
                                   -1e-45F,
                                   std::numeric_limits<float>::min(),
                                   std::numeric_limits<float>::max(),
                                   -std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN()};
    if (special && random() % 64 == 0) return values[random() % values.size()];
    const auto numerator = static_cast<float>(random() % 513) - 256;
    return std::ldexp(numerator, exponent - 8 - static_cast<int>(random() % 8));
  }
};

#if defined(__x86_64__) && defined(__linux__)

bool has_instructions() {
  constexpr unsigned amx_tile = 1U << 24;
  constexpr unsigned amx_bf16 = 1U << 22;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_tile) != 0 &&
         (edx & amx_bf16) != 0;
}

/// Asks Linux (5.16) to save the tiles of this process; without that their use ends it.
bool may_use_tiles() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

bool has_instructions() { return false; }
bool may_use_tiles() { return false; }

#endif

}  // namespace

bool give_definition(const Bf16Products& bf16) {
  for (const int exponent : {0, -58, -62}) {  // sums about 2^-126 are flushed
    for (const bool special : {false, true}) {
      const Trial trial(exponent, special);
      if (trial.result(bf16) != trial.result(scalar_bf16_products())) return false;
    }
  }
  return true;
}

bool has_amx() {
  static const bool found = amx_products() != nullptr && has_instructions() && may_use_tiles() &&
                            give_definition(*amx_products());
  return found;
}

}  // namespace lockstep

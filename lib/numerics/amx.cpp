#include "lockstep/numerics/amx.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "lockstep/base/aligned.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lockstep {
namespace {

/// Forward of a small layer.
struct Trial {
  static constexpr std::size_t rows = 16;
  static constexpr std::size_t inputs = 96;
  static constexpr std::size_t outputs = 16;
  AlignedBuffer<float> x{rows * inputs};
  AlignedBuffer<float> w{inputs * outputs};
  AlignedBuffer<float> bias{outputs};

  /// factor() and start(): the next value of x or w, and of the bias.
  template <class Factor, class Start>
  Trial(const Factor& factor, const Start& start) {
    std::generate(x.span().begin(), x.span().end(), factor);
    std::generate(w.span().begin(), w.span().end(), factor);
    std::generate(bias.span().begin(), bias.span().end(), start);
  }

  std::array<std::uint32_t, rows * outputs> result(const Bf16Products& bf16) const {
    AlignedBuffer<float> rounded(bf16.round != nullptr ? w.size() : 0);
    if (bf16.round != nullptr) bf16.round(w.span(), rounded.span());
    const std::span<const float> weights = bf16.round != nullptr ? rounded.span() : w.span();
    AlignedBuffer<float> scratch(bf16.products.forward_scratch(rows, inputs));
    std::array<float, rows * outputs> y;
    bf16.products.forward({x.data(), rows, inputs}, {{inputs, outputs}, weights}, bias.span(),
                          Activation::identity, {y.data(), rows, outputs}, {0, outputs},
                          Output::overwrite, Zeros::dense, scratch.span());
    return std::bit_cast<std::array<std::uint32_t, rows * outputs>>(y);
  }

  bool is_matched_by(const Bf16Products& bf16) const {
    return result(bf16) == result(scalar_bf16_products());
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

/// Requests permission to use tile data, of Linux since 5.16: without it the first use is a SIGILL.
bool request_permission() {
  constexpr long request = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;    // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, request, tile_data) == 0;
}

#else

bool has_instructions() { return false; }
bool request_permission() { return false; }

#endif

}  // namespace

bool match_definition(const Bf16Products& bf16) {
  std::minstd_rand random(7);
  const auto ordinary = [&random] {
    return std::ldexp(static_cast<float>(random()) - 0x1p30F, -30 - static_cast<int>(random() % 8));
  };
  constexpr float least = std::numeric_limits<float>::min();  // 2^-126
  // Products of 2^-126, 2^-151 and less: a sum just below 2^-126 is flushed after it is rounded.
  const auto tiny = [&random] {
    constexpr std::array factors = {0x1p-63F, 0x1p-63F, 0x1p-88F, 0x1.02p-88F, 0x1p-89F, 0.0F};
    const float factor = factors[random() % factors.size()];
    return random() % 2 == 0 ? factor : -factor;
  };
  const auto least_or_less = [&random] { return random() % 2 == 0 ? least : -0.0F; };
  const auto special = [&random, &ordinary] {
    constexpr std::array values = {-0.0F,
                                   1e-40F,
                                   -1e-45F,
                                   least,
                                   std::numeric_limits<float>::max(),
                                   -std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN()};
    return random() % 256 == 0 ? values[random() % values.size()] : ordinary();
  };
  return Trial(ordinary, ordinary).is_matched_by(bf16) &&
         Trial(tiny, least_or_less).is_matched_by(bf16) &&
         Trial(special, special).is_matched_by(bf16);
}

bool has_amx() {
  static const bool found = amx_products() != nullptr && has_instructions() &&
                            request_permission() && match_definition(*amx_products());
  return found;
}

}  // namespace lockstep

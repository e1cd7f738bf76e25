// RAII and exceptions for cuBLASLt: one float product at a time; its algorithm is chosen once.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <type_traits>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/numerics/cuda/device_products.hpp"

namespace lockstep::cuda {
/// Throws DeviceError that names `call`, the device and the status; ConfigError (2) if memory is
/// exhausted.
void check(cublasStatus_t status, const char* call);

/// A handle of cuBLASLt, destroyed by `destroy`.
template <auto destroy>
struct Destroy {
  void operator()(auto* object) const noexcept { destroy(object); }
};
template <class Pointer, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Pointer>, Destroy<destroy>>;

/// D = epilogue(op(A) op(B)) in cuBLASLt's layout, column-major and packed: op(A) [m, k], op(B) [k,
/// n], D [m, n]. A row-major matrix [r, c] is a column-major one [c, r].
struct Gemm {
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;

  auto operator<=>(const Gemm&) const = default;
};

/// Device memory of the operands.
struct Operands {
  const float* a = nullptr;
  const float* b = nullptr;
  float* d = nullptr;
  const float* bias = nullptr;     ///< [m], for epilogues with bias
  float* bias_gradient = nullptr;  ///< [m], for BGRADA
};

/// A handle, its scratch memory, and the algorithms chosen so far.
/// The algorithm of a product depends only on the product, the precision, the device and whether
/// all operands are aligned to 16 bytes: not on addresses or earlier calls.
class Blas {
 public:
  /// For the calling thread's device.
  explicit Blas(Precision precision);

  /// Chooses the algorithm for aligned operands; false if there is none.
  bool supports(const Gemm& gemm) { return plan(gemm, alignment).found; }

  /// Errors   throws ConfigError (2) if cuBLASLt has no algorithm.
  void enqueue(const Gemm& gemm, const Operands& operands, const Stream& stream);

 private:
  using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
  using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

  /// Bytes: the widest memory access of a thread.
  static constexpr std::size_t alignment = 16;

  struct Plan {
    Description description;
    Layout a, b, d;
    cublasLtMatmulAlgo_t algorithm = {};
    bool found = false;
  };

  Description describe(const Gemm& gemm) const;
  static Layout layout(std::size_t rows, std::size_t cols);
  Preference preference(std::size_t aligned) const;
  Plan make_plan(const Gemm& gemm, std::size_t aligned) const;
  Plan& plan(const Gemm& gemm, std::size_t aligned);

  Precision precision_;
  Handle handle_;
  DeviceBuffer<std::byte> workspace_;
  std::map<std::pair<Gemm, std::size_t>, Plan> plans_;
};

}  // namespace lockstep::cuda

#include "lib/numerics/cuda/blas.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::cuda {
namespace {

/// What cuBLAS takes by default on Hopper.
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

cublasComputeType_t compute_type(Precision precision) {
  switch (precision) {
    case Precision::float32: break;
    case Precision::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    // Weights and activations stay float; the library rounds them on the way into the units.
    case Precision::bf16: return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  return CUBLAS_COMPUTE_32F;
}

const char* name(Precision precision) {
  switch (precision) {
    case Precision::float32: break;
    case Precision::tf32: return "tf32";
    case Precision::bf16: return "bf16";
  }
  return "float32";
}

std::string here() {
  int device = -1;
  cudaGetDevice(&device);
  return " on device " + std::to_string(device);
}

template <class Value>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

cublasLtHandle_t make_handle() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

bool aligned(const Operands& operands, std::size_t bytes) {
  const std::array<const void*, 5> addresses = {operands.a, operands.b, operands.d, operands.bias,
                                                operands.bias_gradient};
  return std::ranges::all_of(addresses, [&](const void* address) {
    return std::bit_cast<std::uintptr_t>(address) % bytes == 0;
  });
}

std::string describe_sizes(const Gemm& gemm) {
  const auto text = [](std::size_t count) { return std::to_string(count); };
  return "[" + text(gemm.m) + ", " + text(gemm.k) + "] x [" + text(gemm.k) + ", " + text(gemm.n) +
         "]" + (gemm.transpose_a ? ", the first transposed" : "") +
         (gemm.transpose_b ? ", the second transposed" : "") + ", epilogue " + text(gemm.epilogue);
}

}  // namespace

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    throw ConfigError(call + here() + ": the device's memory is used up",
                      "use narrower layers or a smaller --batch-size, or share no device");
  }
  throw DeviceError(call + here() + ": " + cublasLtGetStatusString(status) + " (" +
                    cublasLtGetStatusName(status) + ")");
}

Blas::Blas(Precision precision)
    : precision_(precision), handle_(make_handle()), workspace_(workspace_bytes) {}

Blas::Description Blas::describe(const Gemm& gemm) const {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, compute_type(precision_), CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  Description description(made);
  const auto form = [](bool transposed) -> std::int32_t {
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, form(gemm.transpose_a));
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, form(gemm.transpose_b));
  set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(gemm.epilogue));
  return description;
}

Blas::Layout Blas::layout(std::size_t rows, std::size_t cols) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, CUDA_R_32F, rows, cols, static_cast<std::int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  return Layout(made);
}

Blas::Preference Blas::preference(std::size_t aligned) const {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_.size()});
  const auto bytes = static_cast<std::uint32_t>(aligned);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes);
  set(made, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes);
  return preference;
}

Blas::Plan Blas::make_plan(const Gemm& gemm, std::size_t aligned) const {
  Plan plan;
  plan.description = describe(gemm);
  plan.a = gemm.transpose_a ? layout(gemm.k, gemm.m) : layout(gemm.m, gemm.k);
  plan.b = gemm.transpose_b ? layout(gemm.n, gemm.k) : layout(gemm.k, gemm.n);
  plan.d = layout(gemm.m, gemm.n);
  if (gemm.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {  // an address of the alignment to expect
    const void* bias = workspace_.data() + aligned;
    set(plan.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.description.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
      preference(aligned).get(), 1, &result, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return plan;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.found = count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = result.algo;
  return plan;
}

Blas::Plan& Blas::plan(const Gemm& gemm, std::size_t aligned) {
  const std::pair key(gemm, aligned);
  const auto at = plans_.find(key);
  return at != plans_.end() ? at->second
                            : plans_.emplace(key, make_plan(gemm, aligned)).first->second;
}

void Blas::enqueue(const Gemm& gemm, const Operands& operands, const Stream& stream) {
  Plan& chosen = plan(gemm, aligned(operands, alignment) ? alignment : alignof(float));
  if (!chosen.found) {
    throw ConfigError("cuBLASLt has no algorithm" + here() + " for " + describe_sizes(gemm) +
                          " in " + name(precision_),
                      "use another --precision, or --products strict");
  }
  const void* bias = operands.bias != nullptr ? operands.bias : operands.bias_gradient;
  if (bias != nullptr) {
    set(chosen.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  const float one = 1;
  const float zero = 0;
  check(cublasLtMatmul(handle_.get(), chosen.description.get(), &one, operands.a, chosen.a.get(),
                       operands.b, chosen.b.get(), &zero, operands.d, chosen.d.get(), operands.d,
                       chosen.d.get(), &chosen.algorithm, workspace_.data(), workspace_.size(),
                       stream.get()),
        "cublasLtMatmul");
}

}  // namespace lockstep::cuda

// cuBLASLt without a device: plain loops that run in their stream's order.
//
// Inputs are rounded as the compute type allows, so that tests see which one was asked for; sums
// run downwards, which is nobody else's order; the workspace is overwritten. What the library
// refuses is refused: sizes that do not fit, an algorithm chosen for something else, operands less
// aligned than the preference said, too small a workspace.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/fakes/cuda/fake.hpp"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
  std::uint64_t rows;
  std::uint64_t cols;
  std::int64_t ld;
  bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::array<std::uint32_t, 4> alignment = {256, 256, 256, 256};  // A, B, C, D: the library's own
};

namespace {

constexpr std::size_t scratch_bytes = 4096;

cublasStatus_t status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return CUBLAS_STATUS_SUCCESS;
    case cudaErrorMemoryAllocation: return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorInvalidValue: return CUBLAS_STATUS_INVALID_VALUE;
    case cudaErrorNotSupported: return CUBLAS_STATUS_NOT_SUPPORTED;
    case cudaErrorUnknown: return CUBLAS_STATUS_INTERNAL_ERROR;
    default: return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

/// To `bits` of mantissa, to nearest and to even.
float rounded(float value, int bits) {
  const int dropped = 23 - bits;
  if (dropped == 0 || !std::isfinite(value)) return value;
  auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = (1U << (dropped - 1)) - 1 + ((word >> dropped) & 1U);
  word = (word + half) >> dropped << dropped;
  return std::bit_cast<float>(word);
}

int mantissa(cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_32F: break;
    case CUBLAS_COMPUTE_32F_FAST_TF32: return 10;
    case CUBLAS_COMPUTE_32F_FAST_16BF: return 7;
  }
  return 23;
}

/// A matrix as it lies in memory, and whether it is meant transposed.
struct View {
  const float* data;
  cublasLtMatrixLayoutOpaque_t layout;
  bool transposed;

  std::size_t rows() const { return transposed ? layout.cols : layout.rows; }
  std::size_t cols() const { return transposed ? layout.rows : layout.cols; }
  float at(std::size_t row, std::size_t col) const {
    if (transposed) std::swap(row, col);
    return data[col * static_cast<std::size_t>(layout.ld) + row];
  }
};

bool adds_bias(std::uint32_t epilogue) { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }

/// The value before it is stored.
float finished(const cublasLtMatmulDescOpaque_t& what, float value, std::size_t row) {
  if (adds_bias(what.epilogue)) value += static_cast<const float*>(what.bias)[row];
  return what.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ? std::fmax(value, 0.0F) : value;
}

/// d = epilogue(alpha a b + beta c); c lies as d does, and is not read for beta = 0.
void multiply(const cublasLtMatmulDescOpaque_t& what, float alpha, View a, View b, float beta,
              const float* c, float* d, std::size_t ld) {
  const int bits = mantissa(what.compute);
  for (std::size_t col = 0; col < b.cols(); ++col) {
    for (std::size_t row = 0; row < a.rows(); ++row) {
      float sum = 0;
      for (std::size_t k = a.cols(); k-- > 0;) {
        sum += rounded(a.at(row, k), bits) * rounded(b.at(k, col), bits);
      }
      const std::size_t at = col * ld + row;
      d[at] = finished(what, alpha * sum + (beta == 0 ? 0 : beta * c[at]), row);
    }
  }
  if (what.epilogue != CUBLASLT_EPILOGUE_BGRADA) return;
  for (std::size_t row = 0; row < a.rows(); ++row) {
    float sum = 0;
    for (std::size_t k = a.cols(); k-- > 0;) sum += a.at(row, k);
    static_cast<float*>(what.bias)[row] = sum;
  }
}

bool known_epilogue(std::uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_RELU_BIAS || epilogue == CUBLASLT_EPILOGUE_BGRADA;
}

bool fits(const cublasLtMatrixLayoutOpaque_t& layout) {
  return layout.rows > 0 && layout.cols > 0 && layout.ld >= static_cast<std::int64_t>(layout.rows);
}

/// Whether sizes and epilogue make a product.
bool consistent(const cublasLtMatmulDescOpaque_t& what, const cublasLtMatrixLayoutOpaque_t& a,
                const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
                const cublasLtMatrixLayoutOpaque_t& d) {
  const View left = {nullptr, a, what.transpose_a == CUBLAS_OP_T};
  const View right = {nullptr, b, what.transpose_b == CUBLAS_OP_T};
  const bool needs_bias = what.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  return fits(a) && fits(b) && fits(d) && c == d && left.cols() == right.rows() &&
         left.rows() == d.rows && right.cols() == d.cols && known_epilogue(what.epilogue) &&
         (!needs_bias || what.bias != nullptr);
}

/// What an algorithm was chosen for: sizes, forms and epilogue, then the alignments.
cublasLtMatmulAlgo_t algorithm_for(const cublasLtMatmulDescOpaque_t& what,
                                   const cublasLtMatrixLayoutOpaque_t& a,
                                   const cublasLtMatrixLayoutOpaque_t& d) {
  const bool transposed = what.transpose_a == CUBLAS_OP_T;
  const auto form_a = static_cast<std::uint64_t>(what.transpose_a);
  const auto form_b = static_cast<std::uint64_t>(what.transpose_b);
  return {{d.rows, d.cols, transposed ? a.rows : a.cols, form_a * 2 + form_b, what.epilogue,
           static_cast<std::uint64_t>(what.compute), 0, 0}};
}

bool aligned(const void* address, std::uint64_t bytes) {
  return address != nullptr && std::bit_cast<std::uintptr_t>(address) % bytes == 0;
}

template <class Value>
cublasStatus_t assign(Value& to, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// Owned by whoever asked: fake_cuda::live_objects() counts memory alone, LeakSanitizer the rest.
template <class Object>
cublasStatus_t make(Object** made, const Object& object) {
  *made = new Object(object);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Object>
cublasStatus_t destroy(Object* object) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// Every function notes its call first, and ends there where it was asked to fail.
#define FAKE(function)                                                                           \
  if (const auto failed = status_of(fake_cuda::note(function)); failed != CUBLAS_STATUS_SUCCESS) \
  return failed

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the program failed to launch";
    case CUBLAS_STATUS_INVALID_VALUE: return "an invalid value was given";
    default: return "the call failed";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  FAKE("cublasLtCreate");
  return make(handle, {});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t /*scale*/) {
  FAKE("cublasLtMatmulDescCreate");
  return make(description, {.compute = compute});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return destroy(description);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  FAKE("cublasLtMatmulDescSetAttribute");
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(description->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t /*type*/,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  FAKE("cublasLtMatrixLayoutCreate");
  return make(layout, {rows, cols, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  FAKE("cublasLtMatmulPreferenceCreate");
  return make(preference, {});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  FAKE("cublasLtMatmulPreferenceSetAttribute");
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return assign(preference->workspace, value, bytes);
  }
  const int operand = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  return assign(preference->alignment.at(static_cast<std::size_t>(operand)), value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  FAKE("cublasLtMatmulAlgoGetHeuristic");
  *count = 0;
  if (handle == nullptr || asked < 1 || !consistent(*description, *a, *b, *c, *d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (preference->workspace < scratch_bytes) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {algorithm_for(*description, *a, *d), scratch_bytes, CUBLAS_STATUS_SUCCESS, 1, {}};
  const auto& bytes = preference->alignment;
  results[0].algo.data[6] = std::uint64_t{bytes[0]} << 32 | bytes[1];
  results[0].algo.data[7] = std::uint64_t{bytes[2]} << 32 | bytes[3];
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  FAKE("cublasLtMatmul");
  if (handle == nullptr || !consistent(*description, *a_layout, *b_layout, *c_layout, *d_layout)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto expected = algorithm_for(*description, *a_layout, *d_layout);
  const std::uint64_t* sizes = algo->data;
  constexpr std::uint64_t low = 0xffffffff;
  if (!std::equal(sizes, sizes + 6, expected.data) || !aligned(a, sizes[6] >> 32) ||
      !aligned(b, sizes[6] & low) || !aligned(c, sizes[7] >> 32) || !aligned(d, sizes[7] & low) ||
      !aligned(workspace, 16) || workspace_bytes < scratch_bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const View left = {static_cast<const float*>(a), *a_layout,
                     description->transpose_a == CUBLAS_OP_T};
  const View right = {static_cast<const float*>(b), *b_layout,
                      description->transpose_b == CUBLAS_OP_T};
  fake_cuda::enqueue(
      stream, [=, what = *description, ld = d_layout->ld, by = *static_cast<const float*>(alpha),
               held = *static_cast<const float*>(beta)] {
        std::memset(workspace, 0xff, scratch_bytes);
        multiply(what, by, left, right, held, static_cast<const float*>(c), static_cast<float*>(d),
                 static_cast<std::size_t>(ld));
      });
  return CUBLAS_STATUS_SUCCESS;
}

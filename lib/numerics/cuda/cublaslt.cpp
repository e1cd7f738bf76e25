// RAII and exceptions for cuBLASLt: one float product at a time; its algorithm is chosen once.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/numerics/cuda/device_products.hpp"
#include "lockstep/numerics/cuda/elementwise.hpp"

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

namespace {

/// The default of cuBLAS on Hopper.
constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

cublasComputeType_t compute_type(Precision precision) {
  switch (precision) {
    case Precision::float32: break;
    case Precision::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    // Weights and activations stay float; cuBLASLt rounds them before the tensor cores.
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
                      "use narrower layers or a smaller `batch_size`, or share no device");
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
  if (gemm.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {  // a dummy address with the expected alignment
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
                      "use another `precision`, or `products=strict`");
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

// The `library` products. cuBLASLt is column-major, and a row-major matrix is a transposed
// column-major one. So every product is computed transposed, with exchanged operands: y^T = W^T
// x^T, dx^T = W dz^T, dW^T = dz^T x.
namespace lockstep {
namespace {

cuda::Gemm forward_of(std::size_t rows, std::size_t inputs, std::size_t outputs,
                      Activation activation) {
  const auto epilogue =
      activation == Activation::relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return {.m = outputs, .n = rows, .k = inputs, .epilogue = epilogue};
}

cuda::Gemm backward_input_of(std::size_t rows, std::size_t inputs, std::size_t outputs) {
  return {.m = inputs, .n = rows, .k = outputs, .transpose_a = true};
}

cuda::Gemm weight_gradients_of(std::size_t rows, std::size_t inputs, std::size_t outputs,
                               cublasLtEpilogue_t epilogue) {
  return {.m = outputs, .n = inputs, .k = rows, .transpose_b = true, .epilogue = epilogue};
}

class LibraryDeviceProducts final : public DeviceProducts {
 public:
  LibraryDeviceProducts(std::size_t rows, Precision precision)
      : rows_(rows), blas_(precision), gradients_blas_(precision) {}

  const char* name() const noexcept override { return "library"; }

  /// Chooses the algorithms of full batches before the first step.
  void reserve(std::size_t inputs, std::size_t outputs) override {
    if (rows_ == 0) return;
    blas_.supports(forward_of(rows_, inputs, outputs, Activation::identity));
    blas_.supports(forward_of(rows_, inputs, outputs, Activation::relu));
    blas_.supports(backward_input_of(rows_, inputs, outputs));
    gradients_blas_.supports(weight_gradients_of(rows_, inputs, outputs, CUBLASLT_EPILOGUE_BGRADA));
  }

  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const cuda::Stream& stream) override {
    assert(x.rows == y.rows && x.rows <= rows_ && x.cols == w.inputs && y.cols == w.outputs);
    if (y.rows == 0) return;
    blas_.enqueue(forward_of(y.rows, w.inputs, w.outputs, activation),
                  {.a = w.weight.data(), .b = x.data, .d = y.data, .bias = w.bias.data()}, stream);
  }

  void backward_input(Matrix<const float> dz, const LayerWeights<float>& w, Matrix<const float> x,
                      Activation below, Matrix<float> dx, const cuda::Stream& stream) override {
    assert(dz.rows == dx.rows && dx.rows <= rows_ && dx.cols == w.inputs && dz.cols == w.outputs);
    if (dx.rows == 0) return;
    blas_.enqueue(backward_input_of(dx.rows, w.inputs, w.outputs),
                  {.a = w.weight.data(), .b = dz.data, .d = dx.data}, stream);
    // cuBLASLt's epilogue DRELU needs a bit mask from the forward pass; x holds the same values.
    if (below == Activation::relu) cuda::apply_relu_gradient(x.flat(), dx.flat(), stream);
  }

  void weight_gradients(Matrix<const float> x, Matrix<const float> dz, std::size_t /*leaf*/,
                        std::span<float> dw, std::span<float> db,
                        const cuda::Stream& stream) override {
    assert(x.rows == dz.rows && x.rows <= rows_);
    assert(dw.size() == x.cols * dz.cols && db.size() == dz.cols);
    if (x.rows == 0) {
      cuda::clear(dw, stream);
      cuda::clear(db, stream);
      return;
    }
    const auto fused = weight_gradients_of(x.rows, x.cols, dz.cols, CUBLASLT_EPILOGUE_BGRADA);
    if (gradients_blas_.supports(fused)) {
      gradients_blas_.enqueue(
          fused, {.a = dz.data, .b = x.data, .d = dw.data(), .bias_gradient = db.data()}, stream);
      return;
    }
    gradients_blas_.enqueue(weight_gradients_of(x.rows, x.cols, dz.cols, CUBLASLT_EPILOGUE_DEFAULT),
                            {.a = dz.data, .b = x.data, .d = dw.data()}, stream);
    cuda::sum_columns(dz, db, stream);
  }

 private:
  std::size_t rows_;
  cuda::Blas blas_;
  cuda::Blas gradients_blas_;  ///< with its own workspace: of weight_gradients()
};

}  // namespace

std::unique_ptr<DeviceProducts> make_library_device_products(std::size_t rows,
                                                             Precision precision) {
  return std::make_unique<LibraryDeviceProducts>(rows, precision);
}

}  // namespace lockstep

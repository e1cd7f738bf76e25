// The `library` products on a device: cuBLASLt's.
//
// Row-major matrices are column-major ones transposed, so every product stands here transposed and
// with its operands exchanged: y^T = W^T x^T, dx^T = W dz^T, dW^T = dz^T x.
#include <cassert>

#include "lib/numerics/cuda/blas.hpp"
#include "lib/numerics/cuda/elementwise.hpp"

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
  LibraryDeviceProducts(std::size_t rows, Precision precision) : rows_(rows), blas_(precision) {}

  const char* name() const noexcept override { return "library"; }

  /// The algorithms of full batches, so that the first step does not wait for them.
  void reserve(std::size_t inputs, std::size_t outputs) override {
    if (rows_ == 0) return;
    blas_.supports(forward_of(rows_, inputs, outputs, Activation::identity));
    blas_.supports(forward_of(rows_, inputs, outputs, Activation::relu));
    blas_.supports(backward_input_of(rows_, inputs, outputs));
    blas_.supports(weight_gradients_of(rows_, inputs, outputs, CUBLASLT_EPILOGUE_BGRADA));
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
    // The library's own mask (DRELU) wants the bits that forward would have kept; x says the same.
    if (below == Activation::relu) enqueue_relu_mask(x.flat(), dx.flat(), stream);
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
    if (blas_.supports(fused)) {
      blas_.enqueue(fused, {.a = dz.data, .b = x.data, .d = dw.data(), .bias_gradient = db.data()},
                    stream);
      return;
    }
    blas_.enqueue(weight_gradients_of(x.rows, x.cols, dz.cols, CUBLASLT_EPILOGUE_DEFAULT),
                  {.a = dz.data, .b = x.data, .d = dw.data()}, stream);
    enqueue_column_sums(dz, db, stream);
  }

 private:
  std::size_t rows_;
  cuda::Blas blas_;
};

}  // namespace

std::unique_ptr<DeviceProducts> make_library_device_products(std::size_t rows,
                                                             Precision precision) {
  return std::make_unique<LibraryDeviceProducts>(rows, precision);
}

}  // namespace lockstep

// The three matrix products of a dense layer: one interface for strict and library products.
//
// B rows of the batch, I inputs, O outputs of the layer, L examples in a leaf.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/numerics/matrix.hpp"
#include "lib/numerics/threads.hpp"

namespace lockstep {

/// The function applied to every output: z itself, or max(z, 0).
enum class Activation { identity, relu };

/// Whether a product replaces the result or adds to the values already in it (beta = 0 or 1). Sums
/// over inputs (outputs, in backward_input) can so be split between calls: strict products give the
/// same bits as one call.
enum class Output { overwrite, accumulate };

/// The precision that factors are rounded to; sums are in float32.
enum class Precision { float32, tf32, bf16 };

/// A dense layer's weights as its products store them.
template <class Real>
struct LayerWeights {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::span<const Real> weight;  ///< weight_size(inputs, outputs) elements
  std::span<const Real> bias;    ///< bias_size(outputs) elements; not read when accumulating
};

/// Matrix products of one rank, and the layout of the weights they read.
///
/// The logical weight is a row-major matrix [I, O]; products may store it otherwise, with padding
/// that stays zero. Shapes are the caller's duty (asserted). Everything is local; one thread calls
/// an object at a time, which may itself use the threads of set_product_threads().
template <class Real>
class Products {
 public:
  Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  virtual ~Products() = default;

  /// "strict", "library (oneDNN)", "library (Eigen)", or "reference" in double.
  virtual const char* name() const noexcept = 0;

  /// Stored elements of a weight [I, O], and of a bias [O].
  virtual std::size_t weight_size(std::size_t inputs, std::size_t outputs) const = 0;
  virtual std::size_t bias_size(std::size_t outputs) const = 0;

  /// Convert between the logical matrix and the stored layout.
  virtual void store(Matrix<const Real> logical, std::span<Real> stored) const = 0;
  virtual void load(std::span<const Real> stored, Matrix<Real> logical) const = 0;

  /// y = activation(x W + b), or activation(x W + y) when accumulating.
  /// Shapes   x [B, I], y [B, O]; B may be 0.
  virtual void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
                       Matrix<Real> y, Output output = Output::overwrite) = 0;

  /// dx = dz W^T, or dz W^T + dx when accumulating; times the derivative of `below`, the
  /// activation that gave x: for relu, dx is zero where x is not positive.
  /// Shapes   dz [B, O], x and dx [B, I].
  virtual void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w,
                              Matrix<const Real> x, Activation below, Matrix<Real> dx,
                              Output output = Output::overwrite) = 0;

  /// The slice of dW = x^T dz, a sum over the batch, never a mean; zero for B = 0. Rows are in
  /// leaves of `leaf`; only strict products keep them apart.  dw: slice.size() elements.
  /// Errors   throws std::invalid_argument for a slice that these products cannot compute alone.
  virtual void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t leaf,
                                Range slice, std::span<Real> dw) = 0;

  /// The slice of db, the column sums of dz; as above.
  virtual void backward_bias(Matrix<const Real> dz, std::size_t leaf, Range slice,
                             std::span<Real> db) = 0;
};

/// Row-major weights. In float the products are oneDNN's, or Eigen's in a build without oneDNN; in
/// double, which gradient checks use, they are Eigen's.
template <class Real>
std::unique_ptr<Products<Real>> make_library_products();

/// The library of make_library_products<float>(): "oneDNN" or "Eigen".
const char* library_products_name() noexcept;

/// The instruction set to use; every choice gives the same bits.
enum class Simd { automatic, scalar, avx2, avx512 };

/// Weights in panels, every element a fixed expression (strict.hpp).
/// Errors   throws ConfigError where this processor lacks the instructions.
std::unique_ptr<Products<float>> make_strict_products(Simd simd);

}  // namespace lockstep

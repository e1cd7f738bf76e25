// The three matrix products of a dense layer: one interface for strict and library products.
//
// B rows of the batch, I inputs, O outputs of the layer, L examples in a leaf.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "lockstep/numerics/matrix.hpp"

namespace lockstep {
/// The function applied to every output: z itself, or max(z, 0).
enum class Activation { identity, relu };

/// max(z, 0); NaN and -0 are kept.
template <std::floating_point Real>
constexpr Real relu(Real z) noexcept {
  return z < 0 ? Real{0} : z;
}

/// Multiplies dx by the derivative of `below`, the activation that computed x.
template <class Real>
void apply_relu_gradient(Activation below, Matrix<const Real> x, Matrix<Real> dx) {
  if (below != Activation::relu) return;
  const auto in = x.flat();
  const auto out = dx.flat();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] > 0 ? out[i] : Real{0};
}

/// Whether a product overwrites the result or is added to the values in it (beta = 0 or 1). A sum
/// over inputs (outputs, in backward_input) can so be split between calls: strict products give the
/// same bits as one call.
enum class Output { overwrite, accumulate };

/// What one call computes of a result, for layers that several ranks share.
struct Part {
  Output output = Output::overwrite;
  /// From and to multiples of 16; the end may exceed the number of columns.
  Range columns = {0, std::numeric_limits<std::uint64_t>::max()};
};

/// The precision that factors are rounded to; sums are in float32.
enum class Precision { float32, tf32, bf16 };
/// Their names in options, in order.
inline constexpr std::array precision_words = {"float32", "tf32", "bf16"};

/// A dense layer's weights in the layout of its products.
template <class Real>
struct LayerWeights {
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  std::span<const Real> weight;  ///< weight_size(inputs, outputs) elements
  std::span<const Real> bias;    ///< bias_size(outputs) elements; not read when accumulating
};

/// The matrix products of one rank, and the layout of their weights.
///
/// The logical weight is a row-major matrix [I, O]; products may store it in another layout, with
/// padding that stays zero. The caller ensures matching shapes (asserted). Everything is local; one
/// thread at a time calls an object, which may use those of set_product_threads().
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

  /// The stored element of row k and column j of a weight [I, O].
  virtual std::size_t weight_index(std::size_t inputs, std::size_t outputs, std::size_t k,
                                   std::size_t j) const = 0;

  /// Convert between the logical matrix and the stored layout.
  virtual void store(Matrix<const Real> logical, std::span<Real> stored) const = 0;
  virtual void load(std::span<const Real> stored, Matrix<Real> logical) const = 0;

  /// y = activation(x W + b), or activation(x W + y) when accumulating: the columns of `part`.
  /// Shapes   x [B, I], y [B, O]; B may be 0.
  /// Errors   throws std::invalid_argument for a part that these products cannot compute
  ///          separately.
  virtual void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
                       Matrix<Real> y, const Part& part = {}) = 0;

  /// dx = dz W^T, or dz W^T + dx when accumulating; times the derivative of `below`, the
  /// activation that gave x: for relu, dx is zero where x is not positive: the columns of
  /// `part`.
  /// Shapes   dz [B, O], x and dx [B, I].
  /// Errors   as forward().
  virtual void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w,
                              Matrix<const Real> x, Activation below, Matrix<Real> dx,
                              const Part& part = {}) = 0;

  /// The slice of dW = x^T dz, a sum (not a mean) over the batch; zero for B = 0. Rows form leaves
  /// of `leaf` rows; only strict products sum them separately.  dw: slice.size() elements.
  /// Errors   throws std::invalid_argument for a slice that these products cannot compute
  ///          separately.
  virtual void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t leaf,
                                Range slice, std::span<Real> dw) = 0;

  /// The slice of db, the column sums of dz; as above.
  virtual void backward_bias(Matrix<const Real> dz, std::size_t leaf, Range slice,
                             std::span<Real> db) = 0;
};

/// Row-major weights. In float the products are oneDNN's, or Eigen's in a build without oneDNN; in
/// double, for gradient checks, they are Eigen's.
template <class Real>
std::unique_ptr<Products<Real>> make_library_products();

/// The library of make_library_products<float>(): "oneDNN" or "Eigen".
const char* library_products_name() noexcept;

/// The instruction set to use; the bits do not depend on it. `automatic` is the widest that the
/// processor has, and for bf16 AMX.
enum class Simd { automatic, scalar, avx2, avx512, neon };
/// Their names in options, in order.
inline constexpr std::array simd_words = {"auto", "scalar", "avx2", "avx512", "neon"};

/// "AVX2", "AVX-512" or "NEON"; "scalar", "automatic".
const char* simd_name(Simd simd) noexcept;

/// Whether strict products may leave out terms with a factor that is exactly zero. The bits are the
/// same: weights are finite, so that such a term adds a zero.
enum class Zeros { automatic, dense };
/// Their names in options, in order.
inline constexpr std::array zeros_words = {"auto", "dense"};

/// Weights in panels. In float32 every element is a fixed expression: a chain of fused
/// multiply-adds in the order of the inputs (outputs, for backward_input), or in leaves of rows
/// that are added as a tree (numerics/leaf_tree.hpp). It depends neither on threads and
/// instructions, nor on which other elements are computed. The same holds in bf16, but chains may
/// be split between calls at multiples of 32 terms alone. Not in tf32.
///
/// Errors   throws ConfigError if this processor lacks the instructions.
std::unique_ptr<Products<float>> make_strict_products(Simd simd, Zeros zeros = Zeros::automatic,
                                                      Precision precision = Precision::float32);

/// Calls `inner` for everything: a base for wrappers that change some calls. Local, as Products is.
template <class Real>
class ForwardingProducts : public Products<Real> {
 public:
  explicit ForwardingProducts(std::unique_ptr<Products<Real>> inner) : inner_(std::move(inner)) {}

  const char* name() const noexcept override { return inner_->name(); }
  std::size_t weight_size(std::size_t inputs, std::size_t outputs) const override {
    return inner_->weight_size(inputs, outputs);
  }
  std::size_t weight_index(std::size_t inputs, std::size_t outputs, std::size_t k,
                           std::size_t j) const override {
    return inner_->weight_index(inputs, outputs, k, j);
  }
  std::size_t bias_size(std::size_t outputs) const override { return inner_->bias_size(outputs); }
  void store(Matrix<const Real> logical, std::span<Real> stored) const override {
    inner_->store(logical, stored);
  }
  void load(std::span<const Real> stored, Matrix<Real> logical) const override {
    inner_->load(stored, logical);
  }
  void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
               Matrix<Real> y, const Part& part) override {
    inner_->forward(x, w, activation, y, part);
  }
  void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx, const Part& part) override {
    inner_->backward_input(dz, w, x, below, dx, part);
  }
  void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t leaf, Range slice,
                        std::span<Real> dw) override {
    inner_->backward_weights(x, dz, leaf, slice, dw);
  }
  void backward_bias(Matrix<const Real> dz, std::size_t leaf, Range slice,
                     std::span<Real> db) override {
    inner_->backward_bias(dz, leaf, slice, db);
  }

 private:
  std::unique_ptr<Products<Real>> inner_;
};

}  // namespace lockstep

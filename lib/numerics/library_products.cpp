// The `library` products: oneDNN's in float, plain loops in double (which only tests use).
#include <dnnl.h>

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>

#include "lib/numerics/products.hpp"

namespace lockstep {
namespace {

enum class Form : char { plain = 'N', transposed = 'T' };

/// c = a b + beta c, where a form says that the matrix stands there transposed.
void gemm(Form a_form, Matrix<const float> a, Form b_form, Matrix<const float> b, float beta,
          Matrix<float> c) {
  const auto inner = static_cast<dnnl_dim_t>(a_form == Form::plain ? a.cols : a.rows);
  const auto size = [](std::size_t count) { return static_cast<dnnl_dim_t>(count); };
  const dnnl_status_t status = dnnl_sgemm(
      static_cast<char>(a_form), static_cast<char>(b_form), size(c.rows), size(c.cols), inner, 1.0F,
      a.data, size(a.cols), b.data, size(b.cols), beta, c.data, size(c.cols));
  if (status != dnnl_success) {
    throw std::runtime_error("dnnl_sgemm failed with status " + std::to_string(status));
  }
}

void gemm(Form a_form, Matrix<const double> a, Form b_form, Matrix<const double> b, double beta,
          Matrix<double> c) {
  const std::size_t inner = a_form == Form::plain ? a.cols : a.rows;
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.cols; ++j) {
      double sum = beta == 0 ? 0 : beta * c(i, j);
      for (std::size_t k = 0; k < inner; ++k) {
        sum += (a_form == Form::plain ? a(i, k) : a(k, i)) *
               (b_form == Form::plain ? b(k, j) : b(j, k));
      }
      c(i, j) = sum;
    }
  }
}

template <class Real>
class LibraryProducts final : public Products<Real> {
 public:
  const char* name() const noexcept override {
    return std::is_same_v<Real, float> ? "library" : "reference";
  }

  std::size_t weight_size(std::size_t inputs, std::size_t outputs) const override {
    return inputs * outputs;
  }
  std::size_t bias_size(std::size_t outputs) const override { return outputs; }

  void store(Matrix<const Real> logical, std::span<Real> stored) const override {
    std::copy(logical.flat().begin(), logical.flat().end(), stored.begin());
  }
  void load(std::span<const Real> stored, Matrix<Real> logical) const override {
    std::copy(stored.begin(), stored.end(), logical.flat().begin());
  }

  void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
               Matrix<Real> y, Output output) override {
    if (y.rows == 0) return;
    for (std::size_t i = 0; output == Output::overwrite && i < y.rows; ++i) {
      std::copy(w.bias.begin(), w.bias.end(), y.row(i).begin());
    }
    gemm(Form::plain, x, Form::plain, matrix(w), Real{1}, y);
    if (activation == Activation::relu) {
      for (Real& value : y.flat()) value = value < 0 ? 0 : value;  // keeps NaN: it must be seen
    }
  }

  void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx, Output output) override {
    if (dx.rows == 0) return;
    const Real held = output == Output::overwrite ? 0 : 1;
    gemm(Form::plain, dz, Form::transposed, matrix(w), held, dx);
    if (below == Activation::relu) {
      const auto out = dx.flat();
      const auto in = x.flat();
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] > 0 ? out[i] : 0;
    }
  }

  void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t, Range slice,
                        std::span<Real> dw) override {
    if (slice.size() != x.cols * dz.cols) {
      throw std::invalid_argument("library products compute whole weight gradients");
    }
    if (x.rows == 0) {
      std::fill(dw.begin(), dw.end(), Real{0});
    } else {
      gemm(Form::transposed, x, Form::plain, dz, Real{0}, Matrix<Real>(dw.data(), x.cols, dz.cols));
    }
  }

  void backward_bias(Matrix<const Real> dz, std::size_t, Range slice, std::span<Real> db) override {
    std::fill(db.begin(), db.end(), Real{0});
    for (std::size_t i = 0; i < dz.rows; ++i) {
      const auto row = dz.row(i).subspan(slice.begin, slice.size());
      for (std::size_t j = 0; j < row.size(); ++j) db[j] += row[j];
    }
  }

 private:
  static Matrix<const Real> matrix(const LayerWeights<Real>& w) {
    return {w.weight.data(), w.inputs, w.outputs};
  }
};

}  // namespace

template <class Real>
std::unique_ptr<Products<Real>> make_library_products() {
  return std::make_unique<LibraryProducts<Real>>();
}

template std::unique_ptr<Products<float>> make_library_products();
template std::unique_ptr<Products<double>> make_library_products();

}  // namespace lockstep

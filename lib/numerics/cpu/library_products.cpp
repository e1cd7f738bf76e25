// The `library` products: oneDNN's in float, plain loops in double (which only tests use).
#include <dnnl.h>
#include <omp.h>

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

}  // namespace

template <class Real>
void multiply_forward(Matrix<const Real> x, Matrix<const Real> w, std::span<const Real> bias,
                      Activation activation, Matrix<Real> y) {
  assert(x.rows == y.rows && x.cols == w.rows && w.cols == y.cols && bias.size() == y.cols);
  if (y.rows == 0) return;
  for (std::size_t i = 0; i < y.rows; ++i) std::copy(bias.begin(), bias.end(), y.row(i).begin());
  gemm(Form::plain, x, Form::plain, w, Real{1}, y);
  if (activation == Activation::relu) {
    for (Real& value : y.flat()) value = value < 0 ? 0 : value;  // keeps NaN: it must be seen
  }
}

template <class Real>
void multiply_backward_input(Matrix<const Real> dz, Matrix<const Real> w, Matrix<const Real> x,
                             Activation below, Matrix<Real> dx) {
  assert(dz.rows == dx.rows && dz.cols == w.cols && w.rows == dx.cols && x.cols == dx.cols);
  if (dx.rows == 0) return;
  gemm(Form::plain, dz, Form::transposed, w, Real{0}, dx);
  if (below == Activation::relu) {
    const auto out = dx.flat();
    const auto in = x.flat();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = in[i] > 0 ? out[i] : 0;
  }
}

template <class Real>
void multiply_backward_weights(Matrix<const Real> x, Matrix<const Real> dz, Matrix<Real> dw,
                               std::span<Real> db) {
  assert(x.rows == dz.rows && x.cols == dw.rows && dz.cols == dw.cols && db.size() == dw.cols);
  std::fill(db.begin(), db.end(), Real{0});
  if (x.rows == 0) {
    std::fill(dw.flat().begin(), dw.flat().end(), Real{0});
    return;
  }
  gemm(Form::transposed, x, Form::plain, dz, Real{0}, dw);
  for (std::size_t i = 0; i < dz.rows; ++i) {
    const auto row = dz.row(i);
    for (std::size_t j = 0; j < row.size(); ++j) db[j] += row[j];
  }
}

void set_product_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }

#define LOCKSTEP_INSTANTIATE(Real)                                                              \
  template void multiply_forward(Matrix<const Real>, Matrix<const Real>, std::span<const Real>, \
                                 Activation, Matrix<Real>);                                     \
  template void multiply_backward_input(Matrix<const Real>, Matrix<const Real>,                 \
                                        Matrix<const Real>, Activation, Matrix<Real>);          \
  template void multiply_backward_weights(Matrix<const Real>, Matrix<const Real>, Matrix<Real>, \
                                          std::span<Real>);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

// The `library` products: in float oneDNN's, or Eigen's in a build without oneDNN; in double
// Eigen's.
#ifdef LOCKSTEP_ONEDNN
#include <dnnl.h>
#endif

#include <Eigen/Core>
#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "lockstep/numerics/products.hpp"

namespace lockstep {
namespace {

enum class Form : char { plain = 'N', transposed = 'T' };

template <class Real>
auto eigen_view(Matrix<Real> matrix) {
  using Dense =
      Eigen::Matrix<std::remove_const_t<Real>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using View = std::conditional_t<std::is_const_v<Real>, const Dense, Dense>;
  return Eigen::Map<View>(matrix.data, static_cast<Eigen::Index>(matrix.rows),
                          static_cast<Eigen::Index>(matrix.cols));
}

/// c = op(a) op(b), or c += op(a) op(b); at most one operand is stored transposed.
template <class Real>
void gemm(Form a_form, Matrix<const Real> a, Form b_form, Matrix<const Real> b, Output output,
          Matrix<Real> c) {
  auto result = eigen_view(c);
  const auto multiply = [&](const auto& left, const auto& right) {
    if (output == Output::overwrite) {
      result.noalias() = left * right;
    } else {
      result.noalias() += left * right;
    }
  };
  const auto left = eigen_view(a);
  const auto right = eigen_view(b);
  if (a_form == Form::transposed) {
    multiply(left.transpose(), right);
  } else if (b_form == Form::transposed) {
    multiply(left, right.transpose());
  } else {
    multiply(left, right);
  }
}

#ifdef LOCKSTEP_ONEDNN
void gemm(Form a_form, Matrix<const float> a, Form b_form, Matrix<const float> b, Output output,
          Matrix<float> c) {
  const auto inner = static_cast<dnnl_dim_t>(a_form == Form::plain ? a.cols : a.rows);
  const auto size = [](std::size_t count) { return static_cast<dnnl_dim_t>(count); };
  const float beta = output == Output::overwrite ? 0 : 1;
  const dnnl_status_t status = dnnl_sgemm(
      static_cast<char>(a_form), static_cast<char>(b_form), size(c.rows), size(c.cols), inner, 1.0F,
      a.data, size(a.cols), b.data, size(b.cols), beta, c.data, size(c.cols));
  if (status != dnnl_success) {
    throw std::runtime_error("dnnl_sgemm failed with status " + std::to_string(status));
  }
}
#endif

template <class Real>
class LibraryProducts final : public Products<Real> {
 public:
  const char* name() const noexcept override {
    if (std::is_same_v<Real, double>) return "reference";
#ifdef LOCKSTEP_ONEDNN
    return "library (oneDNN)";
#else
    return "library (Eigen)";
#endif
  }

  std::size_t weight_size(std::size_t inputs, std::size_t outputs) const override {
    return inputs * outputs;
  }
  std::size_t weight_index(std::size_t /*inputs*/, std::size_t outputs, std::size_t k,
                           std::size_t j) const override {
    return k * outputs + j;
  }
  std::size_t bias_size(std::size_t outputs) const override { return outputs; }

  void store(Matrix<const Real> logical, std::span<Real> stored) const override {
    std::copy(logical.flat().begin(), logical.flat().end(), stored.begin());
  }
  void load(std::span<const Real> stored, Matrix<Real> logical) const override {
    std::copy(stored.begin(), stored.end(), logical.flat().begin());
  }

  void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
               Matrix<Real> y, const Part& part) override {
    require_whole(part, y);
    if (y.rows == 0) return;
    for (std::size_t i = 0; part.output == Output::overwrite && i < y.rows; ++i) {
      std::copy(w.bias.begin(), w.bias.end(), y.row(i).begin());
    }
    gemm(Form::plain, x, Form::plain, matrix(w), Output::accumulate, y);
    if (activation == Activation::relu) {
      for (Real& value : y.flat()) value = relu(value);
    }
  }

  void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx, const Part& part) override {
    require_whole(part, dx);
    if (dx.rows == 0) return;
    gemm(Form::plain, dz, Form::transposed, matrix(w), part.output, dx);
    apply_relu_gradient(below, x, dx);
  }

  void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t, Range slice,
                        std::span<Real> dw) override {
    if (slice.size() != x.cols * dz.cols) {
      throw std::invalid_argument("library products compute whole weight gradients");
    }
    if (x.rows == 0) {
      std::fill(dw.begin(), dw.end(), Real{0});
    } else {
      gemm(Form::transposed, x, Form::plain, dz, Output::overwrite,
           Matrix<Real>(dw.data(), x.cols, dz.cols));
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
  static void require_whole(const Part& part, Matrix<const Real> result) {
    if (part.columns.begin == 0 && part.columns.end >= result.cols) return;
    throw std::invalid_argument("library products compute whole results");
  }

  static Matrix<const Real> matrix(const LayerWeights<Real>& w) {
    return {w.weight.data(), w.inputs, w.outputs};
  }
};

}  // namespace

const char* library_products_name() noexcept {
#ifdef LOCKSTEP_ONEDNN
  return "oneDNN";
#else
  return "Eigen";
#endif
}

template <class Real>
std::unique_ptr<Products<Real>> make_library_products() {
  return std::make_unique<LibraryProducts<Real>>();
}

template std::unique_ptr<Products<float>> make_library_products();
template std::unique_ptr<Products<double>> make_library_products();

}  // namespace lockstep

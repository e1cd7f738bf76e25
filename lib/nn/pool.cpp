#include "lib/nn/layers.hpp"

namespace lockstep::nn {
namespace {

/// The windows of one pooled image. Channels stand side by side and share the loops.
class PoolWindows {
 public:
  PoolWindows(const Pool& spec, const Extent& input, const Extent& output)
      : input_(input), output_(output), size_(spec.size) {}

  /// Calls visit(out, in) for every pixel of every window, window by window, then row by row:
  /// where its channels begin in the output and in the input.
  template <class Visit>
  void for_each_pixel(Visit visit) const {
    for (std::size_t p = 0; p < output_.positions(); ++p) {
      const std::size_t row = p / output_.columns * size_;
      const std::size_t column = p % output_.columns * size_;
      for (std::size_t k = 0; k < size_ * size_; ++k) {
        const std::size_t pixel = (row + k / size_) * input_.columns + column + k % size_;
        visit(p * output_.channels, pixel * input_.channels, k == 0);
      }
    }
  }

  std::size_t channels() const noexcept { return input_.channels; }
  std::size_t pixels() const noexcept { return size_ * size_; }

 private:
  Extent input_;
  Extent output_;
  std::size_t size_;
};

/// A NaN is greater than all, so that it is seen.
template <class Real>
bool is_greater(Real value, Real than) {
  return value > than || (value != value && than == than);
}

template <class Real>
class MaxPool final : public Layer<Real> {
 public:
  MaxPool(const Pool& spec, const Extent& input, const Extent& output)
      : Layer<Real>(input.size(), output.size()), windows_(spec, input, output) {}

  void forward(const Pass<Real>&, Matrix<const Real> x, Matrix<Real> y) override {
    for (std::size_t i = 0; i < x.rows; ++i) {
      const Real* from = x.row(i).data();
      Real* to = y.row(i).data();
      windows_.for_each_pixel([&](std::size_t out, std::size_t in, bool first) {
        for (std::size_t c = 0; c < windows_.channels(); ++c) {
          const Real value = from[in + c];
          to[out + c] = first || is_greater(value, to[out + c]) ? value : to[out + c];
        }
      });
    }
  }

  void backward_input(const Pass<Real>&, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
    const std::size_t outputs = this->outputs();
    greatest_.resize(outputs);
    for (std::size_t i = 0; i < x.rows; ++i) {
      const auto from = x.row(i);
      windows_.for_each_pixel([&](std::size_t out, std::size_t in, bool first) {
        for (std::size_t c = 0; c < windows_.channels(); ++c) {
          std::size_t& best = greatest_[out + c];
          best = first || is_greater(from[in + c], from[best]) ? in + c : best;
        }
      });
      for (std::size_t out = 0; out < outputs; ++out) dx(i, greatest_[out]) = dz(i, out);
    }
    through(below, x, dx);
  }

 private:
  PoolWindows windows_;
  std::vector<std::size_t> greatest_;  // where it stands, for each output of a row
};

template <class Real>
class AveragePool final : public Layer<Real> {
 public:
  AveragePool(const Pool& spec, const Extent& input, const Extent& output)
      : Layer<Real>(input.size(), output.size()), windows_(spec, input, output) {}

  void forward(const Pass<Real>&, Matrix<const Real> x, Matrix<Real> y) override {
    const auto pixels = static_cast<Real>(windows_.pixels());
    for (std::size_t i = 0; i < x.rows; ++i) {
      const Real* from = x.row(i).data();
      Real* to = y.row(i).data();
      windows_.for_each_pixel([&](std::size_t out, std::size_t in, bool first) {
        for (std::size_t c = 0; c < windows_.channels(); ++c) {
          to[out + c] = first ? from[in + c] : to[out + c] + from[in + c];
        }
      });
      for (Real& value : y.row(i)) value = value / pixels;
    }
  }

  void backward_input(const Pass<Real>&, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto pixels = static_cast<Real>(windows_.pixels());
    std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
    for (std::size_t i = 0; i < x.rows; ++i) {
      const Real* from = dz.row(i).data();
      Real* to = dx.row(i).data();
      windows_.for_each_pixel([&](std::size_t out, std::size_t in, bool) {
        for (std::size_t c = 0; c < windows_.channels(); ++c) to[in + c] = from[out + c] / pixels;
      });
    }
    through(below, x, dx);
  }

 private:
  PoolWindows windows_;
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_pool(const Pool& spec, const Extent& input) {
  const Extent output = output_of(spec, input);
  if (spec.pooling == Pooling::max) return std::make_unique<MaxPool<Real>>(spec, input, output);
  return std::make_unique<AveragePool<Real>>(spec, input, output);
}

template std::unique_ptr<Layer<float>> make_pool(const Pool&, const Extent&);
template std::unique_ptr<Layer<double>> make_pool(const Pool&, const Extent&);

}  // namespace lockstep::nn

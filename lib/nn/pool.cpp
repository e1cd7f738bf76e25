#include "lib/nn/layers.hpp"

namespace lockstep::nn {
namespace {

/// The windows of one pooled image. Channels stand side by side and share the loops.
class PoolWindows {
 public:
  PoolWindows(const Pool& spec, const Extent& input, const Extent& output)
      : input_(input), output_(output), size_(spec.size) {}

  /// Calls visit(out, in) for every window in order: where its channels begin in the output, and
  /// those of its first pixel in the input.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t p = 0; p < output_.positions(); ++p) {
      const std::size_t row = p / output_.columns * size_;
      const std::size_t column = p % output_.columns * size_;
      visit(p * channels(), (row * input_.columns + column) * channels());
    }
  }

  /// From a window's first pixel to pixel `k` of it, row by row.
  std::size_t step(std::size_t k) const noexcept {
    return (k / size_ * input_.columns + k % size_) * channels();
  }

  std::size_t channels() const noexcept { return input_.channels; }
  std::size_t pixels() const noexcept { return size_ * size_; }

  /// Whether every pixel is in a window.
  bool cover() const noexcept {
    return output_.rows * size_ == input_.rows && output_.columns * size_ == input_.columns;
  }

 private:
  Extent input_;
  Extent output_;
  std::size_t size_;
};

/// A NaN is greater than all, so that it is seen. Without branches: loops over channels are
/// vectors.
template <class Real>
bool is_greater(Real value, Real than) {
  return (value > than) | ((value != value) & (than == than));
}

template <class Real>
class PoolLayer : public Layer<Real> {
 public:
  PoolLayer(const Pool& spec, const Extent& input, const Extent& output)
      : Layer<Real>(input.size(), output.size()), windows_(spec, input, output) {}

  void forward(const Pass<Real>&, Matrix<const Real> x, Matrix<Real> y) final {
    share(x.rows, 1, [&](Slice rows, std::size_t) {
      for (std::size_t i = rows.first; i < rows.last; ++i) {
        const Real* from = x.row(i).data();
        Real* to = y.row(i).data();
        windows_.for_each([&](std::size_t out, std::size_t in) { pool(from + in, to + out); });
      }
    });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) final {
    if (!windows_.cover()) std::fill(dx.flat().begin(), dx.flat().end(), Real{0});
    const std::size_t each = 2 * windows_.channels();
    const auto scratch = pass.scratch.get(Scratch<Real>::columns, each * product_threads());
    share(x.rows, 1, [&](Slice rows, std::size_t thread) {
      for (std::size_t i = rows.first; i < rows.last; ++i) {
        windows_.for_each([&](std::size_t out, std::size_t in) {
          spread(dz.row(i).data() + out, x.row(i).data() + in, dx.row(i).data() + in,
                 scratch.data() + thread * each);
        });
      }
    });
    through(below, x, dx);
  }

 protected:
  /// One window of all channels, from its first pixel on.
  virtual void pool(const Real* x, Real* y) const = 0;

  /// Its gradients by every pixel. scratch: two values a channel.
  virtual void spread(const Real* dz, const Real* x, Real* dx, Real* scratch) const = 0;

  PoolWindows windows_;
};

template <class Real>
class MaxPool final : public PoolLayer<Real> {
 public:
  using PoolLayer<Real>::PoolLayer;

 private:
  void pool(const Real* x, Real* y) const override {
    const std::size_t channels = windows_.channels();
    std::copy_n(x, channels, y);
    for (std::size_t k = 1; k < windows_.pixels(); ++k) {
      const Real* const in = x + windows_.step(k);
      for (std::size_t c = 0; c < channels; ++c) y[c] = is_greater(in[c], y[c]) ? in[c] : y[c];
    }
  }

  /// The first pixel of the greatest value takes the gradient, and leaves zero to its equals.
  void spread(const Real* dz, const Real* x, Real* dx, Real* scratch) const override {
    const std::size_t channels = windows_.channels();
    Real* const greatest = scratch;
    Real* const left = scratch + channels;
    pool(x, greatest);
    std::copy_n(dz, channels, left);
    for (std::size_t k = 0; k < windows_.pixels(); ++k) {
      const Real* const in = x + windows_.step(k);
      Real* const out = dx + windows_.step(k);
      for (std::size_t c = 0; c < channels; ++c) {
        const bool here = (in[c] == greatest[c]) | (in[c] != in[c]);
        out[c] = here ? left[c] : Real{0};
        left[c] = here ? Real{0} : left[c];
      }
    }
  }

  using PoolLayer<Real>::windows_;
};

template <class Real>
class AveragePool final : public PoolLayer<Real> {
 public:
  using PoolLayer<Real>::PoolLayer;

 private:
  void pool(const Real* x, Real* y) const override {
    const std::size_t channels = windows_.channels();
    const auto pixels = static_cast<Real>(windows_.pixels());
    std::copy_n(x, channels, y);
    for (std::size_t k = 1; k < windows_.pixels(); ++k) {
      const Real* const in = x + windows_.step(k);
      for (std::size_t c = 0; c < channels; ++c) y[c] = y[c] + in[c];
    }
    for (std::size_t c = 0; c < channels; ++c) y[c] = y[c] / pixels;
  }

  void spread(const Real* dz, const Real*, Real* dx, Real*) const override {
    const auto pixels = static_cast<Real>(windows_.pixels());
    for (std::size_t k = 0; k < windows_.pixels(); ++k) {
      Real* const out = dx + windows_.step(k);
      for (std::size_t c = 0; c < windows_.channels(); ++c) out[c] = dz[c] / pixels;
    }
  }

  using PoolLayer<Real>::windows_;
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

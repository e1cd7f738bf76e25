// Convolution and pooling over windows of an image.
#include <cstring>

#include "lockstep/nn/layer.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

/// The windows of one pooled image. Channels are contiguous; loops run over all of them.
class PoolWindows {
 public:
  /// Windows of rows x columns pixels, side by side.
  PoolWindows(std::size_t rows, std::size_t columns, const FeatureShape& input,
              const FeatureShape& output)
      : input_(input), output_(output), rows_(rows), columns_(columns) {}

  /// Calls visit(out, in) for every window in order: the offsets of its channels in the output and
  /// of its first pixel's channels in the input.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t p = 0; p < output_.positions(); ++p) {
      const std::size_t row = p / output_.columns * rows_;
      const std::size_t column = p % output_.columns * columns_;
      visit(p * channels(), (row * input_.columns + column) * channels());
    }
  }

  /// The offset of pixel `k` of a window, row by row, from its first pixel.
  std::size_t step(std::size_t k) const noexcept {
    return (k / columns_ * input_.columns + k % columns_) * channels();
  }

  std::size_t channels() const noexcept { return input_.channels; }
  std::size_t pixels() const noexcept { return rows_ * columns_; }

  /// True if every pixel is in a window.
  bool cover() const noexcept {
    return output_.rows * rows_ == input_.rows && output_.columns * columns_ == input_.columns;
  }

 private:
  FeatureShape input_;
  FeatureShape output_;
  std::size_t rows_;
  std::size_t columns_;
};

/// A NaN counts as the maximum, so that it propagates. Branch-free, so that loops over channels are
/// vectorised.
template <class Real>
bool is_greater(Real value, Real than) {
  return (value > than) | ((value != value) & (than == than));
}

template <class Real>
class PoolLayer : public Layer<Real> {
 public:
  PoolLayer(const PoolWindows& windows, const FeatureShape& input, const FeatureShape& output)
      : Layer<Real>(input.size(), output.size()), windows_(windows) {}

  void forward(const Pass<Real>&, Matrix<const Real> x, Matrix<Real> y) final {
    share(x.rows, 1, x.cols, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const Real* from = x.row(i).data();
        Real* to = y.row(i).data();
        windows_.for_each([&](std::size_t out, std::size_t in) { pool(from + in, to + out); });
      }
    });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) final {
    const std::size_t each = 2 * windows_.channels();
    const auto scratch = pass.scratch.get(Scratch<Real>::columns, each * product_threads());
    share(x.rows, 1, x.cols, [&](Range rows, std::size_t thread) {
      const Matrix<Real> mine = dx.slice(rows);
      if (!windows_.cover()) std::fill(mine.flat().begin(), mine.flat().end(), Real{0});
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        windows_.for_each([&](std::size_t out, std::size_t in) {
          spread(dz.row(i).data() + out, x.row(i).data() + in, dx.row(i).data() + in,
                 scratch.data() + thread * each);
        });
      }
      apply_relu_gradient(below, x.slice(rows), mine);
    });
  }

 protected:
  /// Pools one window for all channels; `x` is its first pixel.
  virtual void pool(const Real* x, Real* y) const = 0;

  /// Computes the gradients of the window's pixels. scratch: two values per channel.
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

  /// The first pixel with the maximum receives the gradient; pixels with equal values receive zero.
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

/// kernel x kernel windows within or centred on the pixels of `input`; `output` has one pixel per
/// window. A window's row is contiguous in the image, except for the part outside it.
struct Windows {
  FeatureShape input;
  FeatureShape output;
  std::size_t kernel = 1;
  std::size_t stride = 1;
  std::size_t before = 0;  ///< rows and columns of zero padding before the first

  /// The number of values of a window: row, column, channel.
  std::size_t size() const noexcept { return kernel * kernel * input.channels; }

  /// im2col: sets `windows` [output.positions(), size()] to the windows of one image; zero outside
  /// it.
  template <class Real>
  void gather(const Real* image, Real* windows) const {
    const std::size_t width = kernel * input.channels;
    for_each_window([&](std::size_t row, std::size_t column, bool inside) {
      if (inside) {
        const Real* in = image + first_of(row, column);
        for (std::size_t k = 0; k < kernel; ++k, in += row_values(), windows += width) {
          copy(in, width, windows);
        }
        return;
      }
      std::fill_n(windows, size(), Real{0});
      for_each_run(row, column, [&](std::size_t at, std::size_t first, std::size_t count) {
        std::copy_n(image + first, count, windows + at);
      });
      windows += size();
    });
  }

  /// col2im: sets each pixel to the sum over the `windows` that hold it, in the order of the
  /// windows.
  template <class Real>
  void scatter(const Real* windows, Real* image) const {
    const std::size_t width = kernel * input.channels;
    std::fill_n(image, input.size(), Real{0});
    for_each_window([&](std::size_t row, std::size_t column, bool inside) {
      if (inside) {
        Real* out = image + first_of(row, column);
        for (std::size_t k = 0; k < kernel; ++k, out += row_values()) {
          add(windows + k * width, width, out);
        }
      } else {
        for_each_run(row, column, [&](std::size_t at, std::size_t first, std::size_t count) {
          add(windows + at, count, image + first);
        });
      }
      windows += size();
    });
  }

 private:
  std::size_t row_values() const noexcept { return input.columns * input.channels; }

  /// The image offset of the window at this row and column, which are inside.
  std::size_t first_of(std::size_t row, std::size_t column) const noexcept {
    return ((row - before) * input.columns + column - before) * input.channels;
  }

  /// Calls visit(row, column, inside) for every window in order: its origin, counted with the
  /// padding, and whether the whole window is inside the image.
  template <class Visit>
  void for_each_window(Visit visit) const {
    for (std::size_t i = 0; i < output.rows; ++i) {
      const std::size_t row = i * stride;
      const bool rows_inside = row >= before && row + kernel <= input.rows + before;
      for (std::size_t j = 0; j < output.columns; ++j) {
        const std::size_t column = j * stride;
        visit(row, column,
              rows_inside && column >= before && column + kernel <= input.columns + before);
      }
    }
  }

  /// Calls visit(at, first, count) for every row of a window that overlaps the image: `count`
  /// values from offset `at` of the window and offset `first` of the image.
  template <class Visit>
  void for_each_run(std::size_t row, std::size_t column, Visit visit) const {
    const std::size_t skipped = column < before ? before - column : 0;
    const std::size_t end = std::min(column + kernel, input.columns + before);
    if (end <= column + skipped) return;
    const std::size_t count = end - column - skipped;
    for (std::size_t k = 0; k < kernel; ++k) {
      if (row + k < before || row + k - before >= input.rows) continue;
      const std::size_t pixel = (row + k - before) * input.columns + column + skipped - before;
      visit((k * kernel + skipped) * input.channels, pixel * input.channels,
            count * input.channels);
    }
  }

  /// Runs are short: copies vectors of four; the last one may overlap values already copied.
  template <class Real>
  static void copy(const Real* from, std::size_t count, Real* to) {
    constexpr std::size_t four = 4;
    if (count >= 32) return static_cast<void>(std::memcpy(to, from, count * sizeof(Real)));
    if (count < four) {
      for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
      return;
    }
    for (std::size_t i = 0; i + four < count; i += four) {
      std::memcpy(to + i, from + i, four * sizeof(Real));
    }
    std::memcpy(to + count - four, from + count - four, four * sizeof(Real));
  }

  template <class Real>
  static void add(const Real* from, std::size_t count, Real* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
  }
};

template <class Real>
class ConvolutionLayer final : public Layer<Real> {
 public:
  ConvolutionLayer(const Convolution& spec, const FeatureShape& input, const FeatureShape& output)
      : Layer<Real>(input.size(), output.size()),
        spec_(spec),
        windows_{input, output, spec.kernel, spec.stride,
                 spec.padding == Padding::same ? (spec.kernel - 1) / 2 : 0},
        positions_(output.positions()) {}

  Activation activation() const noexcept override { return spec_.activation; }

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    const std::size_t inputs = windows_.size();
    const std::size_t outputs = spec_.filters;
    const Start start = Start::glorot(inputs, spec_.kernel * spec_.kernel * outputs);
    return {{prefix + ".weight", inputs, outputs, false, products.weight_size(inputs, outputs), 0,
             start},
            {prefix + ".bias", 1, outputs, true, products.bias_size(outputs)}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    for_pieces(x.rows, [&](Range rows) {
      pass.products.forward(gathered(pass, x.slice(rows)), weights(pass), spec_.activation,
                            by_position(y.slice(rows)));
    });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    for_pieces(x.rows, [&](Range rows) {
      const Matrix<Real> gradients = windows(pass, rows.size());
      pass.products.backward_input(by_position(dz.slice(rows)), weights(pass), gradients,
                                   Activation::identity, gradients);
      scatter(gradients, x.slice(rows), below, dx.slice(rows));
    });
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    const std::size_t piece = piece_rows(leaf, positions_ * windows_.size());
    const std::size_t rows_of_leaf = leaf * positions_;
    out.with(pass.tensor, [&](Range slice, std::span<Real> dw) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, dw, [&](Range rows, std::span<Real> into) {
        pass.products.backward_weights(gathered(pass, x.slice(rows)), by_position(dz.slice(rows)),
                                       rows_of_leaf, slice, into);
      });
    });
    out.with(pass.tensor + 1, [&](Range slice, std::span<Real> db) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, db, [&](Range rows, std::span<Real> into) {
        pass.products.backward_bias(by_position(dz.slice(rows)), rows_of_leaf, slice, into);
      });
    });
  }

 private:
  /// A matrix row for every pixel of the output.
  template <class Element>
  Matrix<Element> by_position(Matrix<Element> images) const {
    return reshape_to_columns(spec_.filters, images);
  }

  Matrix<Real> windows(const Pass<Real>& pass, std::size_t images) const {
    const std::size_t rows = images * positions_;
    const auto memory = pass.scratch.get(Scratch<Real>::columns, rows * windows_.size());
    return {memory.data(), rows, windows_.size()};
  }

  /// The windows of all images of x.
  Matrix<const Real> gathered(const Pass<Real>& pass, Matrix<const Real> x) const {
    const Matrix<Real> result = windows(pass, x.rows);
    share(x.rows, 1, positions_ * windows_.size(), [&](Range images, std::size_t) {
      for (std::size_t i = images.begin; i < images.end; ++i) {
        windows_.gather(x.row(i).data(), result.row(i * positions_).data());
      }
    });
    return result;
  }

  /// Adds up the gradients by the windows, and multiplies by the derivative of `below`.
  void scatter(Matrix<const Real> windows, Matrix<const Real> x, Activation below,
               Matrix<Real> dx) const {
    share(dx.rows, 1, positions_ * windows_.size(), [&](Range images, std::size_t) {
      for (std::size_t i = images.begin; i < images.end; ++i) {
        windows_.scatter(windows.row(i * positions_).data(), dx.row(i).data());
      }
      apply_relu_gradient(below, x.slice(images), dx.slice(images));
    });
  }

  template <class Work>
  void for_pieces(std::size_t rows, Work work) const {
    const std::size_t piece = cached_rows(positions_ * windows_.size(), product_threads());
    for (std::size_t first = 0; first < rows; first += piece) {
      work(Range{first, std::min(rows, first + piece)});
    }
  }

  LayerWeights<Real> weights(const Pass<Real>& pass) const {
    return {windows_.size(), spec_.filters, pass.block.value(pass.tensor),
            pass.block.value(pass.tensor + 1)};
  }

  Convolution spec_;
  Windows windows_;
  std::size_t positions_;
};

template <class Real>
std::unique_ptr<Layer<Real>> make_pool(Pooling pooling, const PoolWindows& windows,
                                       const FeatureShape& input, const FeatureShape& output) {
  if (pooling == Pooling::max) return std::make_unique<MaxPool<Real>>(windows, input, output);
  return std::make_unique<AveragePool<Real>>(windows, input, output);
}

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Pool& spec, const FeatureShape& input) {
  const FeatureShape output = spec.output_of(input);
  return make_pool<Real>(spec.pooling, {spec.size, spec.size, input, output}, input, output);
}

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const GlobalPool& spec, const FeatureShape& input) {
  const FeatureShape output = spec.output_of(input);
  return make_pool<Real>(spec.pooling, {input.rows, input.columns, input, output}, input, output);
}

template std::unique_ptr<Layer<float>> make_layer(const GlobalPool&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const GlobalPool&, const FeatureShape&);

template std::unique_ptr<Layer<float>> make_layer(const Pool&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const Pool&, const FeatureShape&);

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Convolution& spec, const FeatureShape& input) {
  return std::make_unique<ConvolutionLayer<Real>>(spec, input, spec.output_of(input));
}

template std::unique_ptr<Layer<float>> make_layer(const Convolution&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const Convolution&, const FeatureShape&);

}  // namespace lockstep::nn

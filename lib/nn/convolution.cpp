#include "lib/nn/layers.hpp"
#include "lib/nn/leaf_pieces.hpp"
#include "lib/nn/windows.hpp"

namespace lockstep::nn {
namespace {

/// Elements of windows that stay in a core's cache between gathering and the product; and those of
/// a piece of leaves, whose sums cost more to add than they have rows.
constexpr std::size_t most_cached = 1 << 16;
constexpr std::size_t most_summed = 1 << 18;

template <class Real>
class ConvolutionLayer final : public Layer<Real> {
 public:
  ConvolutionLayer(const Convolution& spec, const Extent& input, const Extent& output)
      : Layer<Real>(input.size(), output.size()),
        spec_(spec),
        windows_{input, output, spec.kernel,
                 spec.padding == Padding::same ? (spec.kernel - 1) / 2 : 0},
        positions_(output.positions()) {}

  Activation activation() const noexcept override { return spec_.activation; }

  std::vector<Tensor> tensors(const std::string& prefix,
                              const Products<Real>& products) const override {
    const std::size_t inputs = windows_.size();
    const std::size_t outputs = spec_.filters;
    const Start start = Start::glorot(inputs, spec_.kernel * spec_.kernel * outputs);
    return {{prefix + ".weight", inputs, outputs, false, products.weight_size(inputs, outputs), 0,
             start},
            {prefix + ".bias", 1, outputs, true, products.bias_size(outputs)}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    for_pieces(x.rows, [&](std::size_t first, std::size_t count) {
      pass.products.forward(gathered(pass, rows_of(x, first, count)), weights(pass),
                            spec_.activation, by_position(rows_of(y, first, count)));
    });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    for_pieces(x.rows, [&](std::size_t first, std::size_t count) {
      const Matrix<Real> gradients = windows(pass, count);
      pass.products.backward_input(by_position(rows_of(dz, first, count)), weights(pass), gradients,
                                   Activation::identity, gradients);
      scatter(gradients, rows_of(dx, first, count));
    });
    through(below, x, dx);
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    const std::size_t piece = piece_rows(leaf, positions_ * windows_.size(), most_summed);
    const std::size_t rows_of_leaf = leaf * positions_;
    out.with(pass.tensor, [&](Slice slice, std::span<Real> dw) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, dw,
                          [&](std::size_t first, std::size_t count, std::span<Real> into) {
                            pass.products.backward_weights(gathered(pass, rows_of(x, first, count)),
                                                           by_position(rows_of(dz, first, count)),
                                                           rows_of_leaf, slice, into);
                          });
    });
    out.with(pass.tensor + 1, [&](Slice slice, std::span<Real> db) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, db,
                          [&](std::size_t first, std::size_t count, std::span<Real> into) {
                            pass.products.backward_bias(by_position(rows_of(dz, first, count)),
                                                        rows_of_leaf, slice, into);
                          });
    });
  }

 private:
  /// A row for every pixel of the output.
  template <class Element>
  Matrix<Element> by_position(Matrix<Element> images) const {
    return in_rows_of(spec_.filters, images);
  }

  Matrix<Real> windows(const Pass<Real>& pass, std::size_t images) const {
    const std::size_t rows = images * positions_;
    const auto memory = pass.scratch.get(Scratch<Real>::columns, rows * windows_.size());
    return {memory.data(), rows, windows_.size()};
  }

  /// Of every image of x.
  Matrix<const Real> gathered(const Pass<Real>& pass, Matrix<const Real> x) const {
    const Matrix<Real> result = windows(pass, x.rows);
    share(x.rows, 1, [&](Slice images, std::size_t) {
      for (std::size_t i = images.first; i < images.last; ++i) {
        windows_.gather(x.row(i).data(), result.row(i * positions_).data());
      }
    });
    return result;
  }

  void scatter(Matrix<const Real> windows, Matrix<Real> dx) const {
    share(dx.rows, 1, [&](Slice images, std::size_t) {
      for (std::size_t i = images.first; i < images.last; ++i) {
        windows_.scatter(windows.row(i * positions_).data(), dx.row(i).data());
      }
    });
  }

  template <class Work>
  void for_pieces(std::size_t rows, Work work) const {
    const std::size_t piece =
        std::max<std::size_t>(1, most_cached / (positions_ * windows_.size())) * product_threads();
    for (std::size_t first = 0; first < rows; first += piece) {
      work(first, std::min(piece, rows - first));
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

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_convolution(const Convolution& spec, const Extent& input) {
  return std::make_unique<ConvolutionLayer<Real>>(spec, input, output_of(spec, input));
}

template std::unique_ptr<Layer<float>> make_convolution(const Convolution&, const Extent&);
template std::unique_ptr<Layer<double>> make_convolution(const Convolution&, const Extent&);

}  // namespace lockstep::nn

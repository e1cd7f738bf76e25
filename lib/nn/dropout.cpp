#include <cmath>

#include "lockstep/base/philox.hpp"
#include "lockstep/nn/layer.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

/// One key per layer and step.
Philox::Key key_of(const Draws& draws) {
  const Philox::Block mixed = Philox::at(
      {low_word(draws.seed), high_word(draws.seed), low_word(draws.step), high_word(draws.step)},
      {low_word(draws.layer), 0x64726F70U});  // "drop"
  return {mixed[0], mixed[1]};
}

template <class Real>
class DropoutLayer final : public Layer<Real> {
 public:
  DropoutLayer(const Dropout& spec, const FeatureShape& input)
      : Layer<Real>(input.size(), input.size()),
        drop_threshold_(static_cast<std::uint64_t>(spec.rate * 4294967296.0)),
        kept_(static_cast<Real>(1 / (1 - spec.rate))) {}

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    share(x.rows, 1, operations(pass) * x.cols,
          [&](Range rows, std::size_t) { apply(pass, rows, x, y); });
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    share(dz.rows, 1, operations(pass) * dz.cols, [&](Range rows, std::size_t) {
      apply(pass, rows, dz, dx);
      apply_relu_gradient(below, x.slice(rows), dx.slice(rows));
    });
  }

 private:
  /// For a value, about: a quarter of Philox, or a copy.
  static std::size_t operations(const Pass<Real>& pass) { return pass.draws ? 20 : 1; }

  /// For some of the rows. The same mask forward and backward: `from` where kept, else zero; all of
  /// `from` in evaluation. NaN is never dropped, so that the record that it comes from is found.
  void apply(const Pass<Real>& pass, Range rows, Matrix<const Real> from, Matrix<Real> to) const {
    if (!pass.draws) {
      const auto values = from.slice(rows).flat();
      std::copy(values.begin(), values.end(), to.slice(rows).flat().begin());
      return;
    }
    const Philox::Key key = key_of(*pass.draws);
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      const std::uint64_t row = pass.draws->first_row + i;
      const auto in = from.row(i);
      const auto out = to.row(i);
      Philox::Block words{};
      for (std::size_t e = 0; e < in.size(); ++e) {
        if (e % words.size() == 0) {
          const std::uint64_t group = e / words.size();
          words =
              Philox::at({low_word(group), high_word(group), low_word(row), high_word(row)}, key);
        }
        const bool is_dropped = words[e % words.size()] < drop_threshold_ && !std::isnan(in[e]);
        out[e] = is_dropped ? Real{0} : in[e] * kept_;
      }
    }
  }

  std::uint64_t drop_threshold_;  ///< compared with a random word
  Real kept_;                     ///< scale of kept values
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const Dropout& spec, const FeatureShape& input) {
  return std::make_unique<DropoutLayer<Real>>(spec, input);
}

template std::unique_ptr<Layer<float>> make_layer(const Dropout&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const Dropout&, const FeatureShape&);

}  // namespace lockstep::nn

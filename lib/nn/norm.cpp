// Batch normalisation and layer normalisation.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/nn/layer.hpp"
#include "lockstep/numerics/threads.hpp"

namespace lockstep::nn {
namespace {

constexpr double epsilon = 1e-5;
constexpr std::size_t operations = 5;  // for a value, about: see share()

enum TensorOrder : std::size_t { gain, bias, running_mean, running_variance };

/// Computes the slices of the gradients of gain and bias: the sums of dz n and of dz over all rows
/// and positions. normalise(values, n) computes n from the values of a position, one per channel.
template <class Real, class Normalise>
void gain_and_bias_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                             std::size_t leaf, std::size_t channels, const GradientSlice<Real>& out,
                             Normalise normalise) {
  const std::size_t piece = piece_rows(leaf, x.cols);
  const auto sums = [&](std::size_t tensor, auto terms_of) {
    out.with(pass.tensor + tensor, [&](Range slice, std::span<Real> into) {
      sum_by_pieces<Real>(x.rows, piece, pass.scratch, into, [&](Range rows, std::span<Real> part) {
        pass.products.backward_bias(terms_of(reshape_to_columns(channels, x.slice(rows)),
                                             reshape_to_columns(channels, dz.slice(rows))),
                                    leaf * (x.cols / channels), slice, part);
      });
    });
  };
  sums(gain, [&](Matrix<const Real> from, Matrix<const Real> by_output) -> Matrix<const Real> {
    const auto memory = pass.scratch.get(Scratch<Real>::columns, from.rows * channels);
    const Matrix<Real> terms(memory.data(), from.rows, channels);
    share(from.rows, 1, operations * channels, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        normalise(from.row(i), terms.row(i));
        for (std::size_t c = 0; c < channels; ++c) terms(i, c) = by_output(i, c) * terms(i, c);
      }
    });
    return terms;
  });
  sums(bias, [](Matrix<const Real>, Matrix<const Real> by_output) { return by_output; });
}

template <class Real>
class BatchNormLayer final : public Layer<Real> {
 public:
  BatchNormLayer(const BatchNorm& spec, const FeatureShape& input)
      : Layer<Real>(input.size(), input.size()),
        channels_(input.channels),
        positions_(input.positions()),
        momentum_(spec.momentum),
        activation_(spec.activation),
        sums_(2 * channels_),
        batch_mean_(channels_),
        batch_variance_(channels_),
        mean_(channels_),
        scale_(channels_) {}

  Activation activation() const noexcept override { return activation_; }
  bool sums_over_batch() const noexcept override { return true; }

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    const std::size_t stored = products.bias_size(channels_);
    return {{prefix + ".gain", 1, channels_, true, stored, 0, Start::ones()},
            {prefix + ".bias", 1, channels_, true, stored},
            {prefix + ".mean", 1, channels_, true, stored},
            {prefix + ".variance", 1, channels_, true, stored, 0, Start::ones()}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    if (pass.batch != nullptr) {
      compute_batch_statistics(*pass.batch, x);
    } else {
      load_running_statistics(pass);
    }
    const auto gains = pass.block.value(pass.tensor + gain);
    const auto biases = pass.block.value(pass.tensor + bias);
    const Matrix<const Real> from = reshape_to_columns(channels_, x);
    const Matrix<Real> to = reshape_to_columns(channels_, y);
    share(from.rows, 1, operations * channels_, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const Real* in = from.row(i).data();
        Real* out = to.row(i).data();
        for (std::size_t c = 0; c < channels_; ++c) {
          out[c] = (in[c] - mean_[c]) * scale_[c] * gains[c] + biases[c];
        }
        if (activation_ != Activation::relu) continue;
        for (std::size_t c = 0; c < channels_; ++c) out[c] = relu(out[c]);
      }
    });
  }

  /// With n = (x - mean) * scale and N terms per channel:
  /// dx = gain * scale * (dz - sum(dz) / N - n * sum(dz n) / N).
  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto gains = pass.block.value(pass.tensor + gain);
    const Matrix<const Real> from = reshape_to_columns(channels_, x);
    const Matrix<const Real> by_output = reshape_to_columns(channels_, dz);
    const Matrix<Real> to = reshape_to_columns(channels_, dx);
    if (pass.batch == nullptr) {  // frozen: mean and scale are constants
      share(from.rows, 1, operations * channels_, [&](Range rows, std::size_t) {
        for (std::size_t i = rows.begin; i < rows.end; ++i) {
          for (std::size_t c = 0; c < channels_; ++c) {
            to(i, c) = gains[c] * scale_[c] * by_output(i, c);
          }
        }
        apply_relu_gradient(below, from.slice(rows), to.slice(rows));
      });
      return;
    }
    sum_gradients(pass, by_output, from);
    const double terms = terms_of(*pass.batch);
    for (double& sum : sums_) sum = sum / terms;
    share(from.rows, 1, operations * channels_, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        for (std::size_t c = 0; c < channels_; ++c) {
          const Real n = (from(i, c) - mean_[c]) * scale_[c];
          const auto mean_dz = static_cast<Real>(sums_[c]);
          const auto mean_dz_n = static_cast<Real>(sums_[channels_ + c]);
          to(i, c) = gains[c] * scale_[c] * (by_output(i, c) - mean_dz - n * mean_dz_n);
        }
      }
      apply_relu_gradient(below, from.slice(rows), to.slice(rows));
    });
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    gain_and_bias_gradients(pass, x, dz, leaf, channels_, out,
                            [&](std::span<const Real> values, std::span<Real> n) {
                              for (std::size_t c = 0; c < channels_; ++c) {
                                n[c] = (values[c] - mean_[c]) * scale_[c];
                              }
                            });
    for (const std::size_t tensor : {running_mean, running_variance}) {
      out.clear(pass.tensor + tensor);
    }
  }

  void end_training_pass(ParameterBlock<Real>& block, std::size_t tensor) override {
    update_running(block.value(tensor + running_mean), batch_mean_);
    update_running(block.value(tensor + running_variance), batch_variance_);
  }

 private:
  /// The number of values of a channel in the global batch.
  double terms_of(const BatchSums& batch) const {
    return static_cast<double>(batch.examples()) * static_cast<double>(positions_);
  }

  /// The statistics of the global batch. Squares of floats are exact in double.
  void compute_batch_statistics(BatchSums& batch, Matrix<const Real> x) {
    batch.sum(sums_, [&](Range examples, std::span<double> into) {
      const Matrix<const Real> rows = reshape_to_columns(channels_, x.slice(examples));
      share_channels(rows.rows, [&](Range channels) {
        for (std::size_t i = 0; i < rows.rows; ++i) {
          const Real* in = rows.row(i).data();
          for (std::size_t c = channels.begin; c < channels.end; ++c) {
            const auto value = static_cast<double>(in[c]);
            into[c] = into[c] + value;
            into[channels_ + c] = into[channels_ + c] + value * value;
          }
        }
      });
    });
    const double terms = terms_of(batch);
    for (std::size_t c = 0; c < channels_; ++c) {
      const double mean = sums_[c] / terms;
      const double variance = sums_[channels_ + c] / terms - mean * mean;
      set(c, mean, variance < 0 ? 0 : variance);  // keeps NaN
      batch_mean_[c] = mean;
      batch_variance_[c] = variance < 0 ? 0 : variance;
    }
  }

  /// Uses the running statistics, in evaluation.
  void load_running_statistics(const Pass<Real>& pass) {
    const auto mean = pass.block.value(pass.tensor + running_mean);
    const auto variance = pass.block.value(pass.tensor + running_variance);
    for (std::size_t c = 0; c < channels_; ++c) {
      set(c, static_cast<double>(mean[c]), static_cast<double>(variance[c]));
    }
  }

  void set(std::size_t channel, double mean, double variance) {
    mean_[channel] = static_cast<Real>(mean);
    scale_[channel] = static_cast<Real>(1 / std::sqrt(variance + epsilon));
  }

  /// Computes the sums of dz and of dz n.
  void sum_gradients(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x) {
    pass.batch->sum(sums_, [&](Range examples, std::span<double> into) {
      const Range rows = {examples.begin * positions_, examples.end * positions_};
      share_channels(rows.size(), [&](Range channels) {
        for (std::size_t i = rows.begin; i < rows.end; ++i) {
          for (std::size_t c = channels.begin; c < channels.end; ++c) {
            const Real n = (x(i, c) - mean_[c]) * scale_[c];
            into[c] = into[c] + static_cast<double>(dz(i, c));
            into[channels_ + c] =
                into[channels_ + c] + static_cast<double>(dz(i, c)) * static_cast<double>(n);
          }
        }
      });
    });
  }

  /// Calls add(part) for parts of the channels, on the rank's threads; it adds the terms of `rows`
  /// rows. Rows are not divided, so that the terms of a channel are added in their order.
  template <class Add>
  void share_channels(std::size_t rows, Add add) const {
    constexpr std::size_t unit = 8;  // about a cache line of doubles
    if (channels_ <= unit) return add(Range{0, channels_});
    share(channels_, unit, operations * rows, [&](Range part, std::size_t) { add(part); });
  }

  /// A variance of finite values may exceed float32: then the running one is its greatest number.
  void update_running(std::span<Real> running, const std::vector<double>& batch) const {
    constexpr double greatest = std::numeric_limits<Real>::max();
    for (std::size_t c = 0; c < channels_; ++c) {
      const double next = static_cast<double>(running[c]) * momentum_ + batch[c] * (1 - momentum_);
      running[c] = static_cast<Real>(std::min(next, greatest));  // keeps NaN
    }
  }

  std::size_t channels_;
  std::size_t positions_;
  double momentum_;
  Activation activation_;
  std::vector<double> sums_;            // two per channel
  std::vector<double> batch_mean_;      // of the last training pass
  std::vector<double> batch_variance_;  //
  std::vector<Real> mean_;              // of the last pass: x is normalised to (x - mean) * scale
  std::vector<Real> scale_;
};

/// x is normalised to (x - mean) * scale.
template <class Real>
struct Statistics {
  Real mean;
  Real scale;
};

template <class Real>
Statistics<Real> statistics(std::span<const Real> x) {
  const auto count = static_cast<Real>(x.size());
  Real sum = 0;
  for (const Real value : x) sum = sum + value;
  const Real mean = sum / count;
  Real squares = 0;
  for (const Real value : x) {
    const Real distance = value - mean;
    squares = squares + distance * distance;
  }
  return {mean, 1 / std::sqrt(squares / count + static_cast<Real>(epsilon))};
}

template <class Real>
class LayerNormLayer final : public Layer<Real> {
 public:
  explicit LayerNormLayer(const FeatureShape& input)
      : Layer<Real>(input.size(), input.size()), channels_(input.channels) {}

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    const std::size_t stored = products.bias_size(channels_);
    return {{prefix + ".gain", 1, channels_, true, stored, 0, Start::ones()},
            {prefix + ".bias", 1, channels_, true, stored}};
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const auto gain = pass.block.value(pass.tensor);
    const auto bias = pass.block.value(pass.tensor + 1);
    const Matrix<const Real> from = reshape_to_columns(channels_, x);
    const Matrix<Real> to = reshape_to_columns(channels_, y);
    share(from.rows, 1, 2 * operations * channels_, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const auto [mean, scale] = statistics<Real>(from.row(i));
        for (std::size_t c = 0; c < channels_; ++c) {
          to(i, c) = (from(i, c) - mean) * scale * gain[c] + bias[c];
        }
      }
    });
  }

  /// With n = (x - mean) * scale and g = dz * gain: dx = scale * (g - mean(g) - n * mean(g n)).
  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto gain = pass.block.value(pass.tensor);
    const Matrix<const Real> from = reshape_to_columns(channels_, x);
    const Matrix<const Real> by_output = reshape_to_columns(channels_, dz);
    const Matrix<Real> to = reshape_to_columns(channels_, dx);
    const auto count = static_cast<Real>(channels_);
    share(from.rows, 1, 3 * operations * channels_, [&](Range rows, std::size_t) {
      for (std::size_t i = rows.begin; i < rows.end; ++i) {
        const auto [mean, scale] = statistics<Real>(from.row(i));
        Real sum = 0;
        Real product = 0;
        for (std::size_t c = 0; c < channels_; ++c) {
          const Real g = by_output(i, c) * gain[c];
          sum = sum + g;
          product = product + g * ((from(i, c) - mean) * scale);
        }
        for (std::size_t c = 0; c < channels_; ++c) {
          const Real n = (from(i, c) - mean) * scale;
          to(i, c) = scale * (by_output(i, c) * gain[c] - sum / count - n * (product / count));
        }
      }
      apply_relu_gradient(below, from.slice(rows), to.slice(rows));
    });
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    gain_and_bias_gradients(pass, x, dz, leaf, channels_, out,
                            [&](std::span<const Real> values, std::span<Real> n) {
                              const auto [mean, scale] = statistics<Real>(values);
                              for (std::size_t c = 0; c < channels_; ++c) {
                                n[c] = (values[c] - mean) * scale;
                              }
                            });
  }

 private:
  std::size_t channels_;
};

}  // namespace

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const BatchNorm& spec, const FeatureShape& input) {
  return std::make_unique<BatchNormLayer<Real>>(spec, input);
}

template std::unique_ptr<Layer<float>> make_layer(const BatchNorm&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const BatchNorm&, const FeatureShape&);

template <class Real>
std::unique_ptr<Layer<Real>> make_layer(const LayerNorm& /*spec*/, const FeatureShape& input) {
  return std::make_unique<LayerNormLayer<Real>>(input);
}

template std::unique_ptr<Layer<float>> make_layer(const LayerNorm&, const FeatureShape&);
template std::unique_ptr<Layer<double>> make_layer(const LayerNorm&, const FeatureShape&);

}  // namespace lockstep::nn

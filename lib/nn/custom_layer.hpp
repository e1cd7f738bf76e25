// Custom layers written for one example: a class with a name and three functions.
//
//   struct Prelu {  // y = x where x > 0, else slope * x, with a slope per feature
//     std::string name() const { return "prelu"; }
//
//     nn::CustomSizes sizes(const nn::FeatureShape& input) const {
//       return {.output = input, .weights = {{"slope", input.size(), {.value = 0.25F}}}};
//     }
//     template <class Real>
//     void forward(std::span<const Real> x, nn::Weights<const Real> weights,
//                  std::span<Real> y) const;
//     template <class Real>
//     void backward(std::span<const Real> x, nn::Weights<const Real> weights,
//                   std::span<const Real> dy, std::span<Real> dx, nn::Weights<Real> dweights)
//                   const;
//   };
//   const nn::NetworkShape shape(nn::flat(784), {nn::Dense{64, Activation::identity},
//                                              nn::custom(Prelu{})}, 10);
//
// forward() sets y [outputs] from x [inputs]. backward() sets dx [inputs] and dweights, which are 0
// before the call, to the products of dy [outputs] with the derivatives of y. weights[i] is the
// i-th of sizes().weights. Both are local, keep no state, and are called with float, and with
// double by check_gradients(); so the layer is canonical (see Layer), and its weights have one hash
// on any number of ranks. A layer with settings gives them as `nn::Fields fields() const`, and has
// a constructor from Fields, for checkpoints. sizes() throws ConfigError, with the reason and the
// remedy only, for an input that the layer does not take.
//
// The weights count as vectors, as biases do: they do not decay, and LAMB and LARS give them no
// norm of their own.
//
// std::exp, std::log and std::tanh may differ in their last bits between machines, and so would the
// weights' hash. nn::sigmoid, nn::log_sum_exp and nn::probabilities (loss.hpp) do not in float:
// tanh(x) = 2 sigmoid(2 x) - 1.
//
// Speed: backward() is called for dx, and on every rank once more for each vector of
// CustomSizes::weights, but never for an example whose dy is all 0: its gradients are 0. A layer
// with many weights is faster as a class derived from Layer (layer.hpp), which sees whole batches.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/layer.hpp"
#include "lockstep/nn/loss.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/nn/parameters.hpp"

namespace lockstep::nn {

/// A vector of weights of a custom layer.
struct CustomWeights {
  std::string name;  ///< in checkpoints, behind the number of the layer: "1.slope"
  std::size_t size = 0;
  Start start = {};  ///< initial values: zero by default
};

/// The output and the weights of a custom layer for an input.
struct CustomSizes {
  FeatureShape output;
  std::vector<CustomWeights> weights = {};
};

/// Throws ConfigError, with the reason only, if weights have no name or that of others.
void require_names(const CustomSizes& sizes);

/// The weights of a custom layer, or their gradients, in the order of CustomSizes::weights.
template <class Real>
using Weights = std::span<const std::span<Real>>;

namespace custom_layer {

template <class L, class Real>
concept Forward = requires(const L& layer, std::span<const Real> x, Weights<const Real> weights,
                           std::span<Real> y) {
  layer.forward(x, weights, y);
};

template <class L, class Real>
concept Backward = requires(const L& layer, std::span<const Real> x, Weights<const Real> weights,
                            std::span<Real> dx, Weights<Real> dweights) {
  layer.backward(x, weights, x, dx, dweights);
};

/// Calls the functions of `L` for the rows of a batch.
template <class L, class Real>
class Rows final : public Layer<Real> {
 public:
  Rows(const L& functions, const FeatureShape& input, CustomSizes sizes)
      : Layer<Real>(input.size(), sizes.output.size()),
        functions_(functions),
        sizes_(std::move(sizes)),
        dx_(input.size()) {
    std::size_t all = 0;
    for (const auto& weights : sizes_.weights) all += weights.size;
    terms_.resize(all);
  }

  std::vector<ParameterSpec> tensors(const std::string& prefix,
                                     const Products<Real>& products) const override {
    std::vector<ParameterSpec> specs;
    specs.reserve(sizes_.weights.size());
    for (const auto& weights : sizes_.weights) {
      specs.push_back({.name = prefix + "." + weights.name,
                       .rows = 1,
                       .cols = weights.size,
                       .vector = true,
                       .stored = products.bias_size(weights.size),
                       .start = weights.start});
    }
    return specs;
  }

  void forward(const Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    find_weights(pass);
    for (std::size_t i = 0; i < x.rows; ++i) {
      functions_.forward(std::span<const Real>(x.row(i)), weights(), std::span<Real>(y.row(i)));
    }
  }

  void backward_input(const Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    find_weights(pass);
    for (std::size_t i = 0; i < x.rows; ++i) backward(x.row(i), dz.row(i), dx.row(i));
    apply_relu_gradient(below, x, dx);
  }

  void weight_gradients(const Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const GradientSlice<Real>& out) override {
    find_weights(pass);
    for (std::size_t tensor = 0; tensor < sizes_.weights.size(); ++tensor) {
      const std::size_t size = sizes_.weights[tensor].size;
      const auto sum_rows = [&](Range slice, Range rows, std::span<Real> sums) {
        const auto memory = pass.scratch.get(Scratch<Real>::columns, rows.size() * size);
        const Matrix<Real> terms = {memory.data(), rows.size(), size};
        for (std::size_t i = 0; i < rows.size(); ++i) {
          backward(x.row(rows.begin + i), dz.row(rows.begin + i), dx_);
          std::ranges::copy(dweights_[tensor], terms.row(i).begin());
        }
        pass.products.backward_bias(terms, leaf, slice, sums);
      };
      out.with(pass.tensor + tensor, [&](Range slice, std::span<Real> sums) {
        sum_by_pieces<Real>(x.rows, piece_rows(leaf, size), pass.scratch, sums,
                            [&](Range rows, std::span<Real> part) { sum_rows(slice, rows, part); });
      });
    }
  }

 private:
  Weights<const Real> weights() const { return weights_; }

  /// Sets weights_ and dweights_ to this pass's. Local.
  void find_weights(const Pass<Real>& pass) {
    weights_.clear();
    dweights_.clear();
    std::span<Real> terms(terms_);
    for (std::size_t tensor = 0; tensor < sizes_.weights.size(); ++tensor) {
      const std::size_t size = sizes_.weights[tensor].size;
      weights_.push_back(pass.block.value(pass.tensor + tensor).first(size));
      dweights_.push_back(terms.first(size));
      terms = terms.subspan(size);
    }
  }

  /// Sets dx, and terms_ to what one example adds to the gradients of the weights. Both are zero
  /// where dy is: of an example of weight 0, or of no example (rows that fill a block are zeros);
  /// a derivative there may be infinite.
  void backward(std::span<const Real> x, std::span<const Real> dy, std::span<Real> dx) {
    std::ranges::fill(terms_, Real{0});
    if (std::ranges::all_of(dy, [](Real value) { return value == 0; })) {
      std::ranges::fill(dx, Real{0});
      return;
    }
    functions_.backward(x, weights(), dy, dx, Weights<Real>(dweights_));
  }

  L functions_;
  CustomSizes sizes_;
  std::vector<Real> dx_;
  std::vector<Real> terms_;
  std::vector<std::span<const Real>> weights_;
  std::vector<std::span<Real>> dweights_;
};

template <class L>
class Kind final : public LayerKind {
 public:
  explicit Kind(L functions) : functions_(std::move(functions)) {}

  std::string name() const override { return functions_.name(); }
  Fields fields() const override {
    if constexpr (requires { functions_.fields(); }) return functions_.fields();
    return {};
  }
  FeatureShape output_of(const FeatureShape& input) const override {
    const CustomSizes sizes = functions_.sizes(input);
    require_names(sizes);
    return sizes.output;
  }
  double weights(const FeatureShape& input) const override {
    double all = 0;
    for (const auto& weights : functions_.sizes(input).weights) {
      all += static_cast<double>(weights.size);
    }
    return all;
  }
  std::unique_ptr<Layer<float>> make(const FeatureShape& input) const override {
    return std::make_unique<Rows<L, float>>(functions_, input, functions_.sizes(input));
  }
  std::unique_ptr<Layer<double>> make_double(const FeatureShape& input) const override {
    return std::make_unique<Rows<L, double>>(functions_, input, functions_.sizes(input));
  }

 private:
  L functions_;
};

}  // namespace custom_layer

/// The layer of a NetworkShape that has the functions of `layer`, of which it keeps a copy. Local.
template <class L>
Custom custom(L layer) {
  static_assert(
      requires {
        { layer.name() } -> std::convertible_to<std::string>;
      },
      "a custom layer has a function std::string name() const");
  static_assert(
      requires {
        { layer.sizes(FeatureShape()) } -> std::convertible_to<CustomSizes>;
      },
      "a custom layer has a function nn::CustomSizes sizes(const nn::FeatureShape&) const");
  static_assert(custom_layer::Forward<L, float> && custom_layer::Forward<L, double>,
                "a custom layer has forward(x, weights, y) const of float and of double");
  static_assert(custom_layer::Backward<L, float> && custom_layer::Backward<L, double>,
                "a custom layer has backward(x, weights, dy, dx, dweights) const of float and of "
                "double");
  return {std::make_shared<custom_layer::Kind<L>>(std::move(layer))};
}

/// Adds the layers of L to the kinds that checkpoints are read with. L has a constructor from
/// Fields, or a default constructor if it has no settings.
/// Errors   throws std::invalid_argument: see LayerKinds::add.
template <class L>
void add_custom(LayerKinds& kinds, const std::string& name) {
  static_assert(
      std::constructible_from<L, const Fields&> || !requires(const L& layer) { layer.fields(); },
      "a custom layer with fields() needs a constructor from nn::Fields: checkpoints keep its "
      "settings");
  kinds.add(name, [](const Fields& fields) {
    if constexpr (std::constructible_from<L, const Fields&>) {
      return custom(L(fields)).kind;
    } else {
      return custom(L()).kind;
    }
  });
}

/// The greatest error, |difference - gradient| / max(1, |gradient|), and its position:
/// "2.weight[17]". At most about 1e-6 if the gradient is correct; a step of 1e-6 rarely crosses a
/// point where relu or a maximum is not differentiable.
struct GradientCheck {
  double worst = 0;
  std::string place = {};
};

/// Computes, in double, the gradient of a network of this shape with random weights on random rows
/// (whole numbers of the vocabulary, with an embedding), and compares it with central differences
/// of the loss for every weight that is not frozen, or for about sixty weights of a larger tensor
/// and as many whose gradient is not zero. Random layers use the same random numbers in every pass.
/// Errors   throws ConfigError for 0 rows, and if all gradients are zero, so that nothing was
///          checked: as with one output and the default loss, which is 0 for every output. Pass the
///          loss you train with.
/// Ranks    local.
GradientCheck check_gradients(const NetworkShape& shape,
                              const Loss<double>& loss = SoftmaxCrossEntropy<double>(),
                              std::size_t rows = 3, std::uint32_t seed = 3);

}  // namespace lockstep::nn

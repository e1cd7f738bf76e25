// Descriptions of networks and their layers without weights, as in run files and checkpoints.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/numerics/products.hpp"

namespace lockstep::nn {
/// The layout of one example's values between two layers: row-major, the channels of a pixel
/// adjacent. Values that are not an image are the channels of one pixel.
struct FeatureShape {
  std::size_t rows = 1;
  std::size_t columns = 1;
  std::size_t channels = 0;
  bool image = false;

  std::size_t positions() const noexcept { return rows * columns; }
  std::size_t size() const noexcept { return positions() * channels; }
  friend bool operator==(const FeatureShape&, const FeatureShape&) = default;
};

/// The largest number of values of an example between two layers: 4 TB.
inline constexpr std::uint64_t max_values = std::uint64_t{1} << 40;

/// The shape of `size` values that are not an image.
inline FeatureShape flat(std::size_t size) { return {1, 1, size, false}; }

/// A layer's keys and values, as in run files and checkpoints.
using FieldValue = std::variant<std::uint64_t, double, std::string, std::vector<std::string>, bool>;
using Fields = std::vector<std::pair<std::string, FieldValue>>;

template <class Real>
class Layer;

/// The description of a custom layer: derive from this and from Layer (layer.hpp), and put
/// Custom{kind} into a NetworkShape. Immutable and shared.
class LayerKind {
 public:
  LayerKind() = default;
  LayerKind(const LayerKind&) = delete;
  LayerKind& operator=(const LayerKind&) = delete;
  virtual ~LayerKind() = default;

  /// The layer's "kind" in checkpoints. NetworkShape rejects the names of built-in layers.
  virtual std::string name() const = 0;

  /// Its other keys and values, from which LayerKinds::Read restores it: finite numbers, and texts
  /// in UTF-8. "kind", "name", "from" and "freeze" are keys of LayerSpec.
  virtual Fields fields() const { return {}; }

  /// Its description in the banner: "scale 3".
  virtual std::string text() const { return name(); }

  /// The output shape for this input shape.
  /// Errors   throws ConfigError, with the reason only, if the layer does not accept `input`.
  virtual FeatureShape output_of(const FeatureShape& input) const = 0;

  /// The total logical size of the tensors of the layer that make() returns; 0 by default. A
  /// Network rejects a layer with another size.
  virtual double weights(const FeatureShape& /*input*/) const { return 0; }

  /// Layer::sums_over_batch() of the layer that make() returns.
  virtual bool sums_over_batch() const { return false; }

  /// Create the layer in float, for training, and in double, for gradient checks.
  virtual std::unique_ptr<Layer<float>> make(const FeatureShape& input) const = 0;
  virtual std::unique_ptr<Layer<double>> make_double(const FeatureShape& input) const = 0;
};

// The built-in layers. Their functions are those of LayerSpec below, which call them; a layer
// without weights() has none, one without multiply_adds() has no products, and one without
// sums_over_batch() does not sum.

/// A fully connected layer. Its input is not an image.
struct Dense {
  std::size_t width = 0;
  Activation activation = Activation::relu;

  FeatureShape output_of(const FeatureShape& input) const;
  double weights(const FeatureShape& input) const;
  double multiply_adds(const FeatureShape& input) const;
  std::string text() const;
  Fields fields() const;
};

/// same: (kernel - 1) / 2 zeros, rounded down, before the first row and column, and as many windows
/// as fill the image: the image size is kept with a stride of 1, else divided by the stride and
/// rounded up. With an odd kernel this is PyTorch's padding = (kernel - 1) / 2; TensorFlow's "same"
/// begins elsewhere if the stride is above 1. valid: no padding.
enum class Padding { same, valid };

/// A kernel x kernel window over all channels, at every stride-th pixel.
struct Convolution {
  std::size_t filters = 0;
  std::size_t kernel = 0;
  Padding padding = Padding::valid;
  Activation activation = Activation::relu;
  std::size_t stride = 1;

  FeatureShape output_of(const FeatureShape& input) const;
  double weights(const FeatureShape& input) const;
  double multiply_adds(const FeatureShape& input) const;
  std::string text() const;
  Fields fields() const;
};

enum class Pooling { max, average };

/// Pooling over adjacent windows of size x size; incomplete windows are dropped.
struct Pool {
  Pooling pooling = Pooling::max;
  std::size_t size = 0;

  FeatureShape output_of(const FeatureShape& input) const;
  std::string text() const;
  Fields fields() const;
};

/// Pooling of each channel over the whole image; gives a value a channel, which are not an image.
struct GlobalPool {
  Pooling pooling = Pooling::average;

  FeatureShape output_of(const FeatureShape& input) const;
  std::string text() const;
  Fields fields() const;
};

/// Converts an image to a vector of the same values.
struct Flatten {
  FeatureShape output_of(const FeatureShape& input) const { return flat(input.size()); }
  std::string text() const { return "flatten"; }
  Fields fields() const;
};

/// In training, sets a value to zero with probability `rate`, else multiplies it by 1 / (1 - rate).
struct Dropout {
  double rate = 0;

  FeatureShape output_of(const FeatureShape& input) const { return input; }
  std::string text() const;
  Fields fields() const;
};

/// Normalises the channels of each pixel (all values, if not an image) to mean 0 and variance 1,
/// then applies a gain and a bias per channel.
struct LayerNorm {
  FeatureShape output_of(const FeatureShape& input) const { return input; }
  double weights(const FeatureShape& input) const {
    return 2 * static_cast<double>(input.channels);
  }
  std::string text() const { return "layer-norm"; }
  Fields fields() const;
};

/// Normalises each channel to mean 0 and variance 1 over all examples and pixels of the global
/// batch, then applies a gain and a bias per channel. Evaluation uses running statistics instead;
/// after each step running = running * momentum + (the batch's) * (1 - momentum).
struct BatchNorm {
  double momentum = 0.9;
  Activation activation = Activation::identity;

  FeatureShape output_of(const FeatureShape& input) const { return input; }
  double weights(const FeatureShape& input) const {
    return 4 * static_cast<double>(input.channels);
  }
  double running_statistics(const FeatureShape& input) const {
    return 2 * static_cast<double>(input.channels);
  }
  bool sums_over_batch() const { return true; }
  std::string text() const { return "batch-norm"; }
  Fields fields() const;
};

/// The sum of two or more inputs of equal shape, in their order.
struct Add {
  Activation activation = Activation::identity;

  FeatureShape output_of(std::span<const FeatureShape> inputs) const;
  std::string text() const { return "add"; }
  Fields fields() const;
};

/// The channels of two or more inputs of equal rows and columns, side by side in their order.
struct Concatenate {
  FeatureShape output_of(std::span<const FeatureShape> inputs) const;
  std::string text() const { return "concatenate"; }
  Fields fields() const;
};

/// A row of `width` weights for each value of the network's input, which are whole numbers in
/// [0, vocabulary): other values give NaN, and are not differentiated. The output has a channel for
/// each of the row's weights, and is an image: of one row, if the input is none.
struct Embedding {
  std::size_t vocabulary = 0;
  std::size_t width = 0;

  FeatureShape output_of(const FeatureShape& input) const;
  double weights(const FeatureShape& /*input*/) const {
    return static_cast<double>(vocabulary) * static_cast<double>(width);
  }
  std::string text() const;
  Fields fields() const;
};

/// A custom layer.
struct Custom {
  std::shared_ptr<const LayerKind> kind;  ///< null: output_of() throws ConfigError

  FeatureShape output_of(const FeatureShape& input) const;
  double weights(const FeatureShape& input) const { return kind->weights(input); }
  bool sums_over_batch() const { return kind != nullptr && kind->sums_over_batch(); }
  std::string text() const { return kind != nullptr ? kind->text() : "custom"; }
  Fields fields() const;
};

/// What a layer computes.
using LayerFunction = std::variant<Dense, Convolution, Pool, GlobalPool, Flatten, Dropout,
                                   LayerNorm, BatchNorm, Add, Concatenate, Embedding, Custom>;

/// A function of two or more inputs.
template <class Function>
concept Merges = requires(const Function& function, std::span<const FeatureShape> inputs) {
  { function.output_of(inputs) } -> std::same_as<FeatureShape>;
};

/// A layer of a network: its function, its name and where its inputs come from.
struct LayerSpec {
  LayerFunction function;
  std::string name;               ///< see require_layer_name(); empty: none
  std::vector<std::string> from;  ///< names of earlier layers, or "input"; empty: the layer before
  std::string place = {};         ///< where it is written, for errors: "run.toml:12"; may be empty
  /// Training does not change its weights and running statistics; batch normalisation uses the
  /// running statistics in training, too.
  bool frozen = false;

  template <class Function>
  requires std::constructible_from<LayerFunction, Function> LayerSpec(
      Function its_function, std::string its_name = {},  // NOLINT: converts functions
      std::vector<std::string> its_from = {})
      : function(std::move(its_function)), name(std::move(its_name)), from(std::move(its_from)) {}
};

/// True for a layer that computes nothing and has no buffers: its output is its input's value.
bool is_flatten(const LayerSpec& layer);

/// The name of the network's input in LayerSpec::from.
inline constexpr const char* input_name = "input";

/// Throws ConfigError, with the reason only, unless `name` is of letters, digits and -_./, which
/// need no escapes in TOML and JSON, and is not that of the input.
void require_layer_name(const std::string& name);

/// Throws ConfigError, with the reason only, for a setting of a built-in layer that a run file may
/// not have either, such as a width of 0.
void require_valid(const LayerFunction& function);

/// The output shape of a layer for its inputs, in order.
/// Errors   throws ConfigError, with the reason only: the layer does not accept these inputs, or
///          this number of them, or has more than 2^40 outputs; and what require_valid() throws.
FeatureShape output_of(const LayerSpec& layer, std::span<const FeatureShape> inputs);

/// Number of weights of the layer, including running statistics; double, so that it cannot
/// overflow.
double weights_of(const LayerSpec& layer, std::span<const FeatureShape> inputs);

/// Number of weights that training changes by their gradients: not running statistics, and none of
/// a frozen layer.
double trained_weights_of(const LayerSpec& layer, std::span<const FeatureShape> inputs);

/// Number of multiplications, each with an addition, of one example's products in the forward pass:
/// of dense layers and convolutions, and 0 for others.
double multiply_adds_of(const LayerSpec& layer, std::span<const FeatureShape> inputs);

/// True if the layer sums over the global batch in training, so that rows depend on each other. A
/// frozen one does not.
bool sums_over_batch(const LayerSpec& layer);

/// The description of a shape: "28x28x1", or "784 values".
std::string text_of(const FeatureShape& shape);

/// The description of a layer's function: "conv 6@5x5".
std::string text_of(const LayerSpec& layer);

/// The keys and values of a layer: "kind", then "name" and "from" if it has them, then those of its
/// function, and "freeze" if it is frozen.
Fields fields_of(const LayerSpec& layer);

/// True if a built-in layer has this "kind".
bool is_built_in(const std::string& kind);

/// The custom layer kinds in checkpoints, each with the function that reads its fields.
///
/// Pass it to functions that read checkpoints; there is no global registry.
class LayerKinds {
 public:
  /// Creates a layer from `fields`, which include "kind". Throws ConfigError, with the reason only.
  /// A std::bad_variant_access (a value of another type) or null is handled as a ConfigError.
  using Read = std::function<std::shared_ptr<const LayerKind>(const Fields& fields)>;

  /// Errors   throws std::invalid_argument: the name exists, or is that of a built-in kind.
  void add(const std::string& name, Read read);

  /// Returns the function for kind `name`; null: no such kind.
  const Read* find(const std::string& name) const noexcept;

  std::vector<std::string> names() const;

 private:
  std::vector<std::pair<std::string, Read>> kinds_;
};

/// The inverse of fields_of(); keys may be in any order.
/// Errors   throws ConfigError, with the reason only: unknown kind or key (with the nearest valid
///          one), a missing key, a bad value.
LayerSpec layer_of(const Fields& fields, const LayerKinds& kinds = {});

/// A value as a literal that is valid in TOML and in JSON.
std::string literal_of(const FieldValue& value);

/// Inputs, output and number of weights of one layer of a network.
struct LayerSize {
  /// The value that each input is: 0 for the network's input, j + 1 for the output of layer j.
  /// Flatten is passed over: its output is the value before it.
  std::vector<std::size_t> from;
  std::vector<FeatureShape> inputs;  ///< one for each of `from`
  FeatureShape output;
  double weights = 0;
};

/// A directed acyclic graph of layers, in an order in which each comes after its inputs. A layer
/// takes the output of the layer before, or of the layers that LayerSpec::from names. Every output
/// is taken by a later layer, but for that of the last layer, which is dense and computes the
/// logits of the classes.
struct NetworkShape {
  FeatureShape input;
  std::vector<LayerSpec> layers;
  std::size_t features = 0;  ///< input.size()
  std::size_t classes = 0;

  NetworkShape() = default;

  /// features -> hidden widths, each followed by ReLU -> classes. No hidden widths: a linear
  /// classifier. Throws ConfigError for widths, or a number of classes, that no layer has.
  NetworkShape(std::size_t features, const std::vector<std::size_t>& hidden, std::size_t classes);

  /// `hidden` layers, then a dense one from the last of them to the classes.
  /// Errors   throws ConfigError, with the number and name of the layer and its place: it does not
  ///          accept its inputs; `from` names no earlier layer; two layers have one name; no layer
  ///          takes an output.
  NetworkShape(const FeatureShape& input, std::vector<LayerSpec> hidden, std::size_t classes);

  /// True if the constructor with hidden widths can create this shape.
  bool is_mlp() const;

  /// Features, hidden widths and classes of an mlp.
  std::vector<std::size_t> widths() const;

  /// The size of each of `layers`. Throws ConfigError: see the constructor.
  std::vector<LayerSize> sizes() const;

  /// Number of weights; double, because it may exceed the memory size.
  double weights() const;
  std::size_t parameters() const { return static_cast<std::size_t>(weights()); }

  /// The most window elements that a convolution has in memory at a time, for `rows` rows on
  /// `threads` threads: in forward and dX and, if it is trained, in dW by leaves of `leaf` rows.
  /// `leaf` of 0: nothing is trained. Returns 0 for a network without convolutions.
  double window_values(std::size_t rows, std::size_t leaf, std::size_t threads) const;

  /// Number of weights that training changes by their gradients: see trained_weights_of().
  double trained_weights() const;

  /// Number of values in a row of a network's buffers; and the number of those that ranks exchange
  /// if each computes its slice of the gradient (Network::for_each_exchanged).
  double row_values() const;
  double exchanged_values() const;

  /// True if training sums over the global batch, so that rows depend on each other.
  bool sums_over_batch() const;

  /// The description: "784-700-500-10", or "28x28x1, conv 6@5x5, ..., dense 10". Layers with a
  /// name or `from`, and frozen ones: "conv 8@3x3 as a frozen", "add of a, b".
  std::string text() const;

  /// The description of a layer in messages: "layer 3 (conv 6@5x5) 'stem'".
  std::string layer_text(std::size_t number) const;
};

/// How often each value (LayerSize::from) is an input.
std::vector<std::size_t> uses_of_values(const NetworkShape& shape,
                                        std::span<const LayerSize> sizes);

/// The layers of LeNet without the last, with Caffe's widths and ReLU after the convolutions; for
/// images of about 28 x 28.
/// Source   Caffe, examples/mnist/lenet.prototxt; after LeCun et al. 1998, "Gradient-based learning
///          applied to document recognition", II.B.
std::vector<LayerSpec> lenet_layers();

}  // namespace lockstep::nn

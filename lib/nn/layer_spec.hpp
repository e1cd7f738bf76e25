// Descriptions of layers and networks without weights, as run files and checkpoints write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lib/numerics/products.hpp"

namespace lockstep::nn {
/// The layout of one example's values between two layers: row by row, a pixel's channels adjacent.
/// Values that are no image are the channels of one pixel.
struct FeatureShape {
  std::size_t rows = 1;
  std::size_t columns = 1;
  std::size_t channels = 0;
  bool image = false;

  std::size_t positions() const noexcept { return rows * columns; }
  std::size_t size() const noexcept { return positions() * channels; }
};

/// `size` values without an order of rows and columns.
inline FeatureShape flat(std::size_t size) { return {1, 1, size, false}; }

/// A layer's keys and values: what run files and checkpoints hold.
using FieldValue = std::variant<std::uint64_t, double, std::string>;
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

  /// Its "kind" in checkpoints; unlike those of built-in layers, which a NetworkShape refuses.
  virtual std::string name() const = 0;

  /// Its other keys and values, from which LayerKinds::Read makes it again.
  virtual Fields fields() const { return {}; }

  /// Its text in the banner: "scale 3".
  virtual std::string text() const { return name(); }

  /// What comes out where `input` comes in.
  /// Errors   throws ConfigError, with the reason alone, where it cannot take that.
  virtual FeatureShape output_of(const FeatureShape& input) const = 0;

  /// The logical size of all tensors of the layer that make() gives; none unless overridden. A
  /// Network refuses a layer with another number.
  virtual double weights(const FeatureShape& /*input*/) const { return 0; }

  /// Layer::sums_over_batch() of that layer.
  virtual bool sums_over_batch() const { return false; }

  /// The layer in the precision that trains, and in that of gradient checks.
  virtual std::unique_ptr<Layer<float>> make(const FeatureShape& input) const = 0;
  virtual std::unique_ptr<Layer<double>> make_double(const FeatureShape& input) const = 0;
};

/// Every input to every output. Takes values that are no image.
struct Dense {
  std::size_t width = 0;
  Activation activation = Activation::relu;
};

/// same: zeros around the image keep its size; with an even kernel one more behind than before.
/// valid: the kernel stays inside.
enum class Padding { same, valid };

/// A kernel x kernel window over all channels, at every pixel.
struct Convolution {
  std::size_t filters = 0;
  std::size_t kernel = 0;
  Padding padding = Padding::valid;
  Activation activation = Activation::relu;
};

enum class Pooling { max, average };

/// Windows of size x size side by side; rows and columns that fill none are left out.
struct Pool {
  Pooling pooling = Pooling::max;
  std::size_t size = 0;
};

/// The same values, no longer an image.
struct Flatten {};

/// In training, a value is zero with the probability `rate`, else divided by 1 - rate.
struct Dropout {
  double rate = 0;
};

/// Channels of each pixel (of values that are no image: all of them) to mean 0 and variance 1,
/// then a gain and a bias a channel.
struct LayerNorm {};

/// Each channel to mean 0 and variance 1 over all examples and pixels of the global batch, then a
/// gain and a bias a channel. Evaluation takes running statistics instead; after each step
/// running = running * momentum + (the batch's) * (1 - momentum).
struct BatchNorm {
  double momentum = 0.9;
};

/// A custom layer.
struct Custom {
  std::shared_ptr<const LayerKind> kind;  ///< never null
};

using LayerSpec =
    std::variant<Dense, Convolution, Pool, Flatten, Dropout, LayerNorm, BatchNorm, Custom>;

/// What comes out of a layer.
/// Errors   throws ConfigError, with the reason alone: it cannot take this input, or gives more
///          than 2^40 values.
FeatureShape output_of(const LayerSpec& layer, const FeatureShape& input);

/// Weights of the layer, running statistics among them; in double, so that no width overflows it.
double weights_of(const LayerSpec& layer, const FeatureShape& input);

/// Whether its training sums over the global batch, so that rows depend on each other.
bool sums_over_batch(const LayerSpec& layer);

/// "conv 6@5x5".
std::string text_of(const LayerSpec& layer);

/// "kind" first.
Fields fields_of(const LayerSpec& layer);

/// Whether a built-in layer has this "kind".
bool is_built_in(const std::string& kind);

/// The custom kinds that checkpoints may name, each with the function that reads its fields.
///
/// A plain value, passed to functions that read checkpoints; there is no global registry.
class LayerKinds {
 public:
  /// Makes a layer of `fields`, "kind" among them; throws ConfigError, with the reason alone. A
  /// std::bad_variant_access, of a value of another type, is taken as one; so is null.
  using Read = std::function<std::shared_ptr<const LayerKind>(const Fields& fields)>;

  /// Errors   throws std::invalid_argument: a name that is taken, by a built-in kind too.
  void add(const std::string& name, Read read);

  /// Null: no such kind.
  const Read* find(const std::string& name) const noexcept;

  std::vector<std::string> names() const;

 private:
  std::vector<std::pair<std::string, Read>> kinds_;
};

/// The inverse of fields_of(); keys may be in any order.
/// Errors   throws ConfigError, with the reason alone: unknown kind or key (with the nearest valid
///          one), a key that is missing, a bad value.
LayerSpec layer_of(const Fields& fields, const LayerKinds& kinds = {});

/// A value as a literal of TOML, which is also one of JSON.
std::string literal_of(const FieldValue& value);

/// One layer between its neighbours.
struct LayerSize {
  FeatureShape input;
  FeatureShape output;
  double weights = 0;
};

/// Layers one after the other; the last is dense and gives the logits of the classes.
struct NetworkShape {
  FeatureShape input;
  std::vector<LayerSpec> layers;
  std::size_t features = 0;  ///< input.size()
  std::size_t classes = 0;

  NetworkShape() = default;

  /// features -> hidden widths, each followed by ReLU -> classes. No hidden widths: a linear
  /// classifier.
  NetworkShape(std::size_t features, const std::vector<std::size_t>& hidden, std::size_t classes);

  /// `hidden` layers, then a dense one to the classes.
  /// Errors   throws ConfigError: a layer cannot take what comes from the one before it.
  NetworkShape(const FeatureShape& input, std::vector<LayerSpec> hidden, std::size_t classes);

  /// Whether the first constructor can make it.
  bool is_mlp() const;

  /// Of such a network: features, hidden widths, classes.
  std::vector<std::size_t> widths() const;

  /// One for each of `layers`.
  std::vector<LayerSize> sizes() const;

  /// Number of weights; in double for sizes that may be beyond all memory.
  double weights() const;
  std::size_t parameters() const { return static_cast<std::size_t>(weights()); }

  /// Values that a row of a network's buffers holds, and of them those that ranks exchange
  /// where each computes its slice of the gradient (Network::for_each_exchanged).
  double row_values() const;
  double exchanged_values() const;

  /// Whether training sums over the global batch, so that no row can be computed alone.
  bool sums_over_batch() const;

  /// "784-700-500-10", or "28x28x1, conv 6@5x5, ..., dense 10".
  std::string text() const;
};

/// LeNet with Caffe's widths and ReLU after its convolutions, but for its last layer: for images of
/// about 28 x 28.
/// Source   Caffe, examples/mnist/lenet.prototxt; after LeCun et al. 1998, "Gradient-based learning
///          applied to document recognition", II.B.
std::vector<LayerSpec> lenet_layers();

}  // namespace lockstep::nn

// A layer and a loss of one's own in a network that the library trains: one hash for any number of
// replicas, a checkpoint, and the gradient check that both must pass.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <lockstep/lockstep.hpp>
#include <lockstep/nn/gradient_check.hpp>
#include <lockstep/nn/layer.hpp>
#include <lockstep/nn/loss.hpp>
#include <lockstep/train/checkpoint.hpp>
#include <stdexcept>

using namespace lockstep;

namespace {

/// y = x where x is positive, else slope * x: a slope for each channel is learned.
template <class Real>
class Prelu final : public nn::Layer<Real> {
 public:
  explicit Prelu(const nn::FeatureShape& input)
      : nn::Layer<Real>(input.size(), input.size()), channels_(input.channels) {}

  std::vector<nn::ParameterSpec> tensors(const std::string& prefix,
                                         const Products<Real>& products) const override {
    return {{prefix + ".slope", 1, channels_, true, products.bias_size(channels_)}};
  }

  void forward(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const auto slope = pass.block.value(pass.tensor);
    for (std::size_t i = 0; i < x.flat().size(); ++i) {
      const Real value = x.flat()[i];
      y.flat()[i] = value > 0 ? value : slope[i % channels_] * value;
    }
  }

  void backward_input(const nn::Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto slope = pass.block.value(pass.tensor);
    for (std::size_t i = 0; i < x.flat().size(); ++i) {
      dx.flat()[i] = x.flat()[i] > 0 ? dz.flat()[i] : slope[i % channels_] * dz.flat()[i];
    }
    nn::apply_relu_gradient(below, x, dx);
  }

  /// What each row adds, summed over leaves as biases are: so the sum is canonical.
  void weight_gradients(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const nn::GradientSlice<Real>& out) override {
    const auto terms = pass.scratch.get(nn::Scratch<Real>::columns, x.flat().size());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = x.flat()[i] > 0 ? Real{0} : x.flat()[i] * dz.flat()[i];
    }
    const Matrix<const Real> rows(terms.data(), terms.size() / channels_, channels_);
    const std::size_t positions = this->inputs() / channels_;
    out.with(pass.tensor, [&](Range slice, std::span<Real> sums) {
      pass.products.backward_bias(rows, leaf * positions, slice, sums);
    });
  }

 private:
  std::size_t channels_;
};

class PreluKind final : public nn::LayerKind {
 public:
  std::string name() const override { return "prelu"; }
  nn::FeatureShape output_of(const nn::FeatureShape& input) const override { return input; }
  double weights(const nn::FeatureShape& input) const override {
    return static_cast<double>(input.channels);
  }
  std::unique_ptr<nn::Layer<float>> make(const nn::FeatureShape& input) const override {
    return std::make_unique<Prelu<float>>(input);
  }
  std::unique_ptr<nn::Layer<double>> make_double(const nn::FeatureShape& input) const override {
    return std::make_unique<Prelu<double>>(input);
  }
};

/// sum(max(0, 1 - t z)^2) over the classes, t = 1 for the label and -1 for the others.
template <class Real>
class SquaredHinge final : public nn::Loss<Real> {
 public:
  const char* name() const noexcept override { return "squared hinge"; }
  void run(Matrix<const Real> z, std::span<const std::int32_t> labels,
           std::span<nn::ExampleResult> results, Matrix<Real> dz) const override {
    for (std::size_t i = 0; i < z.rows; ++i) {
      const auto label = static_cast<std::size_t>(labels[i]);
      Real sum = 0;
      for (std::size_t j = 0; j < z.cols; ++j) {
        const Real sign = j == label ? Real{1} : Real{-1};
        const Real margin = std::max(Real{0}, 1 - sign * z(i, j));
        sum = sum + margin * margin;
        if (dz.rows > 0) dz(i, j) = -2 * sign * margin;
      }
      const bool right = nn::predicted_class<Real>(z.row(i)) == label;
      results[i] = {static_cast<double>(sum), right ? 1.0 : 0.0};
    }
  }
};

nn::NetworkShape network_for(const nn::FeatureShape& input) {
  const nn::Custom prelu = {std::make_shared<PreluKind>()};
  return {input,
          {nn::Convolution{6, 5, nn::Padding::valid, Activation::identity}, prelu,
           nn::Pool{nn::Pooling::max, 2}, nn::Flatten{}, nn::Dense{32, Activation::identity},
           nn::BatchNorm{}, prelu},
          10};
}

/// The weights of a checkpoint, read by who knows the kind, and taken back by the replica.
std::uint64_t saved_and_read(train::Replica& replica, comm::Communicator& comm) {
  auto process = static_cast<std::uint64_t>(::getpid());
  comm.broadcast(std::span(&process, 1), 0);
  const auto folder =
      std::filesystem::temp_directory_path() / ("custom_layer-" + std::to_string(process));
  const auto path = replica.save(folder, {.divide_by = 255, .data = "synthetic digits"});
  nn::LayerKinds kinds;
  kinds.add("prelu", [](const nn::Fields&) { return std::make_shared<PreluKind>(); });
  const auto saved = train::read_description(path, kinds);
  train::read_weights(saved, replica.network());
  const std::uint64_t hash = replica.weights_hash();  // all ranks have read
  if (comm.rank() == 0) std::filesystem::remove_all(folder);
  return saved.loss == replica.network().loss_function().name() ? hash : 0;
}

void custom_layer(comm::Communicator& comm) {
  const auto check = nn::check_gradients(network_for({12, 12, 1, true}), SquaredHinge<double>());
  if (!(check.worst < 1e-5)) throw std::logic_error("wrong gradient: " + check.place);

  Strategy strategy(comm);
  auto digits = data::open_data_set("synthetic", {.train_limit = 1500, .test_limit = 300});
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(22).batch(128),
                                             {.policy = data::ShardPolicy::data, .leaf = 0});
  const nn::NetworkShape shape = network_for({28, 28, 1, true});
  const SquaredHinge<float> loss;
  train::Replica replica(shape, *batches.plan(), comm, {.loss = &loss});

  const bool speaks = strategy.replica_id() == 0;
  if (speaks) std::printf("%s\n", shape.text().c_str());
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (const auto& batch : batches) {
      strategy.run(
          [&](const Tensor<float>& images, const Tensor<std::int32_t>& labels) {
            replica.train(images.values(), labels.values());
          },
          batch);
    }
    const auto tested = replica.evaluate(*digits.test);
    if (!speaks) continue;
    std::printf("epoch %d: %s %.6f, accuracy %.3f\n", epoch, loss.name(), tested.loss(),
                tested.accuracy());
  }
  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  const std::uint64_t again = saved_and_read(replica, comm);
  if (speaks)
    std::printf("weights %s, saved and read %s\n", to_hex(hash).c_str(), to_hex(again).c_str());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, custom_layer); }

// A custom layer: its forward and backward pass, a gradient check, and training. The weights are
// the same for any number of ranks.
//
//   06_custom_layer --ranks 2, or mpirun -n 2 06_custom_layer
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <lockstep/nn/gradient_check.hpp>
#include <lockstep/nn/layer.hpp>
#include <stdexcept>

using namespace lockstep;

namespace {

/// y = x where x is positive, else slope * x: with one learned slope per feature.
template <class Real>
class Prelu final : public nn::Layer<Real> {
 public:
  explicit Prelu(const nn::FeatureShape& input) : nn::Layer<Real>(input.size(), input.size()) {}

  std::vector<nn::ParameterSpec> tensors(const std::string& prefix,
                                         const Products<Real>& products) const override {
    return {{prefix + ".slope", 1, this->inputs(), true, products.bias_size(this->inputs())}};
  }

  void forward(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    const auto slope = pass.block.value(pass.tensor);
    for (std::size_t i = 0; i < x.flat().size(); ++i) {
      const Real value = x.flat()[i];
      y.flat()[i] = value > 0 ? value : slope[i % x.cols] * value;
    }
  }

  void backward_input(const nn::Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    const auto slope = pass.block.value(pass.tensor);
    for (std::size_t i = 0; i < x.flat().size(); ++i) {
      dx.flat()[i] = x.flat()[i] > 0 ? dz.flat()[i] : slope[i % x.cols] * dz.flat()[i];
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
    out.with(pass.tensor, [&](Range slice, std::span<Real> sums) {
      pass.products.backward_bias({terms.data(), x.rows, x.cols}, leaf, slice, sums);
    });
  }
};

class PreluKind final : public nn::LayerKind {
 public:
  std::string name() const override { return "prelu"; }
  nn::FeatureShape output_of(const nn::FeatureShape& input) const override { return input; }
  double weights(const nn::FeatureShape& input) const override {
    return static_cast<double>(input.size());
  }
  std::unique_ptr<nn::Layer<float>> make(const nn::FeatureShape& input) const override {
    return std::make_unique<Prelu<float>>(input);
  }
  std::unique_ptr<nn::Layer<double>> make_double(const nn::FeatureShape& input) const override {
    return std::make_unique<Prelu<double>>(input);
  }
};

void program(comm::Communicator& comm) {
  const nn::Custom prelu = {std::make_shared<PreluKind>()};
  const nn::NetworkShape shape(nn::flat(784), {nn::Dense{64, Activation::identity}, prelu}, 10);
  const auto check = nn::check_gradients(shape);
  if (!(check.worst < 1e-5)) throw std::logic_error("wrong gradient: " + check.place);

  Strategy strategy(comm);
  auto digits = data::open_data_set("synthetic", {.train_limit = 1000, .test_limit = 300});
  const std::shared_ptr<data::Source> training = std::move(digits.train);
  auto batches = strategy.distribute_dataset(from_source(training).shuffle(22).batch(64),
                                             {.policy = data::ShardPolicy::data});
  train::Replica replica(shape, batches);
  for (const auto& batch : batches) replica.train(batch);
  const double accuracy = replica.evaluate(*digits.test).accuracy();
  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  if (strategy.replica_id() > 0) return;
  std::printf("%s: accuracy %.3f, weights %s\n", shape.text().c_str(), accuracy,
              to_hex(hash).c_str());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

// A custom layer: a class with a name and three functions, a gradient check, and training. The
// weights are the same for any number of ranks.
//
//   06_custom_layer --ranks 2, or mpirun -n 2 06_custom_layer
//   06_custom_layer FOLDER      saves a checkpoint in FOLDER; evaluates it when called again
#include <cstdio>
#include <filesystem>
#include <lockstep/lockstep.hpp>
#include <lockstep/nn/custom_layer.hpp>
#include <lockstep/train/checkpoint.hpp>
#include <stdexcept>

using namespace lockstep;

namespace {

/// y = x where x is positive, else slope * x, with one learned slope per feature.
struct Prelu {
  std::string name() const { return "prelu"; }

  nn::CustomSizes sizes(const nn::FeatureShape& input) const {
    return {.output = input, .weights = {{"slope", input.size()}}};
  }

  template <class Real>
  void forward(std::span<const Real> x, nn::Weights<const Real> weights, std::span<Real> y) const {
    const auto slope = weights[0];
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] > 0 ? x[i] : slope[i] * x[i];
  }

  /// `dweights` gets what this one example adds; lockstep sums over the global batch.
  template <class Real>
  void backward(std::span<const Real> x, nn::Weights<const Real> weights, std::span<const Real> dy,
                std::span<Real> dx, nn::Weights<Real> dweights) const {
    const auto slope = weights[0];
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = x[i] > 0 ? dy[i] : slope[i] * dy[i];
      dweights[0][i] = x[i] > 0 ? Real{0} : x[i] * dy[i];
    }
  }
};

data::DataSet open_digits() {
  return data::open_data_set("synthetic", {.train_limit = 1000, .test_limit = 300});
}

/// Evaluates a checkpoint, which the command cannot do: it does not have the layer.
void evaluate(comm::Communicator& comm, const std::filesystem::path& folder) {
  nn::LayerKinds kinds;
  nn::add_custom<Prelu>(kinds, "prelu");
  train::SavedNetwork saved;
  comm::together(comm, [&] {  // one message, if ranks cannot read it
    saved = train::read_description(train::find_checkpoint(folder), kinds);
  });
  train::Replica replica(saved, comm);
  const double accuracy = replica.evaluate(*open_digits().test).accuracy();
  if (comm.rank() == 0) std::printf("%s: accuracy %.3f\n", saved.shape.text().c_str(), accuracy);
}

void train_and_save(comm::Communicator& comm, const std::filesystem::path& folder) {
  const nn::NetworkShape shape(nn::flat(784),
                               {nn::Dense{64, Activation::identity}, nn::custom(Prelu())}, 10);
  const auto check = nn::check_gradients(shape);
  if (!(check.worst < 1e-5)) throw std::logic_error("wrong gradient: " + check.place);

  Strategy strategy(comm);
  auto digits = open_digits();
  auto batches =
      strategy.distribute_dataset(from_source(std::move(digits.train)).shuffle(22).batch(64),
                                  {.policy = data::ShardPolicy::data});
  train::Replica replica(shape, batches);
  for (const auto& batch : batches) replica.train(batch);
  const double accuracy = replica.evaluate(*digits.test).accuracy();
  const std::uint64_t hash = replica.weights_hash();  // compared between ranks
  if (!folder.empty()) replica.save(folder);
  if (comm.rank() > 0) return;
  std::printf("%s: accuracy %.3f, weights %s\n", shape.text().c_str(), accuracy,
              to_hex(hash).c_str());
}

void program(comm::Communicator& comm, const std::vector<std::string>& arguments) {
  const std::filesystem::path folder = arguments.empty() ? "" : arguments.front();
  if (std::filesystem::exists(folder)) {
    evaluate(comm, folder);
  } else {
    train_and_save(comm, folder);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

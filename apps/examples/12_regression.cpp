// Regression: examples drawn by a function, two numbers to predict for each, and a metric.
//
//   12_regression --ranks 3, or mpirun -n 3 12_regression
#include <cmath>
#include <cstdio>
#include <lockstep/base/philox.hpp>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

constexpr std::int64_t points = 2000;

/// A point (x, y), and what is to be predicted: x y and x + y / 2.
using Point = std::pair<Tensor<float>, Tensor<float>>;

Point point(std::int64_t index) {
  const auto words = Philox::at({static_cast<std::uint32_t>(index), 0, 0, 0}, {22, 23});
  const float x = 2 * unit_float(words[0]) - 1;
  const float y = 2 * unit_float(words[1]) - 1;
  return {Tensor<float>{x, y}, Tensor<float>{x * y, x + y / 2}};
}

double absolute_error(std::span<const float> outputs, const nn::Targets& target) {
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    sum += std::abs(static_cast<double>(outputs[i]) - static_cast<double>(target.values[i]));
  }
  return sum / static_cast<double>(outputs.size());
}

void fit(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto batches = strategy.distribute_dataset(range_dataset(points).map(point).batch(64),
                                             {.policy = data::ShardPolicy::data});

  const auto* const loss = nn::built_in_loss<float>(nn::regression_loss);
  train::Replica replica({2, {32, 32}, 2}, batches,
                         {.optimizer = {.learning_rate = 0.01}, .loss = loss});
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (const auto& batch : batches) replica.train(batch);
  }
  const auto result = replica.evaluate(batches, {{"absolute error", absolute_error}});

  const std::vector<float> one = {0.5F, -0.5F};
  const auto outputs = replica.outputs(one);
  if (comm.rank() > 0) return;
  std::printf("%llu examples: loss %.4f, absolute error %.3f\n",
              static_cast<unsigned long long>(result.examples), result.loss(), result.metrics[0]);
  std::printf("(0.5, -0.5): %.2f %.2f\n", static_cast<double>(outputs[0]),
              static_cast<double>(outputs[1]));
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, fit); }

// A custom data set and a custom training loop: each worker draws its own points, and gradient
// descent on a mirrored variable fits a plane to them.
//
//   04_dataset_from_function --ranks 3, or mpirun -n 3 04_dataset_from_function
//
// The number of ranks must divide the global batch of 60: each worker makes its own batches.
#include <array>
#include <cstdio>
#include <lockstep/base/philox.hpp>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

constexpr std::int64_t points = 600;
constexpr std::uint64_t batch_size = 60;
constexpr int epochs = 20;
constexpr float rate = 0.5F;

/// A point (x, y) and the height z = 2x - 3y + 1.
using Point = std::pair<Tensor<float>, float>;

/// Point `index`: a function of its index only, so ranks draw independently.
Point point(std::int64_t index) {
  const auto words = Philox::at({static_cast<std::uint32_t>(index), 0, 0, 0}, {22, 23});
  const float x = unit_float(words[0]);
  const float y = unit_float(words[1]);
  return {Tensor<float>{x, y}, 2 * x - 3 * y + 1};
}

/// This worker's points, in batches of its share of the global batch.
Dataset<Batched<Point>> make_dataset(const InputContext& context) {
  return range_dataset(points)
      .shard(context.num_input_pipelines, context.input_pipeline_id)
      .map(point)
      .batch(context.per_replica_batch_size(batch_size));
}

/// Summed over this replica's examples: the gradient of half the squared error by the two slopes
/// and the intercept, and half the squared error itself.
Tensor<float> sums(const Tensor<float>& plane, const Tensor<float>& xy, const Tensor<float>& z) {
  std::array<float, 4> total{};
  const auto w = plane.values();
  for (std::size_t i = 0; i < xy.rows(); ++i) {
    const float x = xy.values()[2 * i];
    const float y = xy.values()[2 * i + 1];
    const float error = w[0] * x + w[1] * y + w[2] - z.values()[i];
    total[0] += error * x;
    total[1] += error * y;
    total[2] += error;
    total[3] += error * error / 2;
  }
  return {total[0], total[1], total[2], total[3]};
}

void fit(comm::Communicator& comm) {
  Strategy strategy(comm);
  auto plane = strategy.create_variable(Tensor<float>{0, 0, 0});
  auto data = strategy.distribute_datasets_from_function(make_dataset);

  float loss = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    loss = 0;
    for (const auto& batch : data) {
      const auto mine =
          strategy.run([&](const Tensor<float>& xy,
                           const Tensor<float>& z) { return sums(plane.read(), xy, z); },
                       batch);
      const Tensor<float> all = strategy.reduce(ReduceOp::sum, mine);
      Tensor<float> next = plane.read();
      for (std::size_t i = 0; i < 3; ++i) {
        next.values()[i] -= rate * all.values()[i] / static_cast<float>(batch_size);
      }
      plane.assign(next);  // the same on every replica: `all` is
      loss += all.values()[3];
    }
  }
  plane.verify();
  if (strategy.replica_id() > 0) return;
  const auto w = plane.read().values();
  std::printf("z = %.2f x %+.2f y %+.2f, loss %.4f\n", static_cast<double>(w[0]),
              static_cast<double>(w[1]), static_cast<double>(w[2]),
              static_cast<double>(loss) / static_cast<double>(points));
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, fit); }

// TFRecord files with a specification of features: read, mapped to elements, and fitted.
//
// Reads readings-*.tfrecord in the working folder, which TensorFlow writes as:
//
//   with tf.io.TFRecordWriter("readings-0.tfrecord") as file:
//     file.write(tf.train.Example(features=tf.train.Features(feature={
//         "position": tf.train.Feature(float_list=tf.train.FloatList(value=[x, y])),
//         "height": tf.train.Feature(int64_list=tf.train.Int64List(value=[z])),
//         "station": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"north"])),
//     })).SerializeToString())
//
//   10_tfrecord_features --ranks 2, or mpirun -n 2 10_tfrecord_features
#include <array>
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

/// Names, types and shapes; examples without a weight have 1.
const FeatureSpecs specification = {{"position", {FeatureType::float32, {2}}},
                                    {"height", {FeatureType::int64}},
                                    {"station", {FeatureType::bytes}},
                                    {"weight", {FeatureType::float32, {}, std::vector<float>{1}}}};

/// (position, height, weight) of an example.
auto reading(const Features& features) {
  return std::tuple(std::get<Tensor<float>>(features.at("position")),
                    std::get<Tensor<std::int64_t>>(features.at("height")).item(),
                    std::get<Tensor<float>>(features.at("weight")).item());
}

/// The sum over a replica's readings of the gradient of weight * (height - plane)^2 / 2.
Tensor<double> gradient(const std::array<double, 3>& plane, const Tensor<float>& positions,
                        const Tensor<std::int64_t>& heights, const Tensor<float>& weights) {
  std::vector<double> rows;
  for (std::size_t i = 0; i < heights.rows(); ++i) {
    const double x = positions.values()[2 * i];
    const double y = positions.values()[2 * i + 1];
    const double error =
        plane[0] * x + plane[1] * y + plane[2] - static_cast<double>(heights.values()[i]);
    for (const double slope : {x, y, 1.0}) rows.push_back(weights.values()[i] * error * slope);
  }
  return {{heights.rows(), 3}, std::move(rows)};
}

void program(comm::Communicator& comm) {
  Strategy strategy(comm);
  const auto print = [&](const std::string& line) {
    if (strategy.replica_id() == 0) std::printf("%s\n", line.c_str());
  };
  const auto read = [](const std::string& path) { return tfrecord_dataset({path}, specification); };
  const auto examples = list_files("readings-*.tfrecord").flat_map(read);
  for (const auto& example : examples.take(2)) print(to_text(example));

  const auto data = strategy.distribute_dataset(examples.map(reading).batch(8),
                                                {.policy = data::ShardPolicy::data});
  print("element spec: " + to_text(data.element_spec()[0]) + ", " +
        to_text(data.element_spec()[1]) + ", " + to_text(data.element_spec()[2]));
  std::array<double, 3> plane = {};
  for (int epoch = 0; epoch < 200; ++epoch) {
    for (auto& batch : data) {
      const auto rows = strategy.run(gradient, plane, batch);
      const auto mean = strategy.reduce(ReduceOp::mean, rows, 0);
      for (std::size_t i = 0; i < plane.size(); ++i) plane[i] -= 0.2 * mean.values()[i];
    }
  }
  std::array<char, 80> line = {};
  std::snprintf(line.data(), line.size(), "height = %.2f x %+.2f y %+.2f", plane[0], plane[1],
                plane[2]);
  print(line.data());
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

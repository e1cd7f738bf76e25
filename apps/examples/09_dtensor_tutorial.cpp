// The guide "Distributed training with Core APIs and DTensor" under its section titles, on a mesh
// that cuts the batches, one that cuts the weights, and one that cuts both. Saving:
// 16_saved_variables.
//   09_dtensor_tutorial --ranks 8, or mpirun -n 8 09_dtensor_tutorial
#include <cmath>
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <optional>

using namespace lockstep;

namespace {

using Variables = std::vector<DVariable<float>>;

// "The dense layer": the first is cut by columns, the second by rows. Each rank makes its pieces.
Variables make_weights(Mesh& mesh) {
  Variables all;
  const auto add_dense = [&](const std::string& name, const Shape& shape, const Layout& layout) {
    all.emplace_back(name + ".weight", glorot_uniform(mesh, shape, {22, 23}, layout));
    all.emplace_back(name + ".bias", zeros<float>(mesh, {shape[1]}, layout.without_axis(0)));
  };
  add_dense("0", {784, 700}, Layout::inner_sharded(mesh, "model", 2));
  add_dense("1", {700, 500}, Layout::batch_sharded(mesh, "model", 2));
  add_dense("2", {500, 10}, Layout::replicated(mesh, 2));
  return all;
}

// "The MLP sequential model".
DTensor<float> network(const Variables& w, const DTensor<float>& images) {
  const auto first = relu(matmul(images, w[0]) + w[1]);
  const auto second = relu(matmul(first, w[2]) + w[3]);
  return matmul(second, w[4]) + w[5];
}

// "Optimizer": Adam, whose moments have the layouts of the weights.
struct Adam {
  std::vector<DTensor<float>> m, v;
  int step = 0;
  void update(Variables& weights, const std::vector<DTensor<float>>& gradients) {
    const auto rate = static_cast<float>(1e-3 / (1 - std::pow(0.9, ++step)));
    const auto rest = static_cast<float>(1 - std::pow(0.999, step));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto& g = gradients[i];
      if (step == 1) m.push_back(0 * g), v.push_back(0 * g);
      m[i] = 0.9F * m[i] + 0.1F * g;
      v[i] = 0.999F * v[i] + 0.001F * g * g;
      weights[i].assign_sub(rate * m[i] / (elementwise(v[i] / rest, sqrtf) + 1e-7F));
    }
  }
};

// "Training metrics": mean loss and accuracy; with a training step for each batch if given Adam.
std::string run(Mesh& mesh, const auto& data, Variables& weights, Adam* adam = nullptr) {
  double loss = 0, correct = 0, examples = 0;  // each example counts once
  for (const auto& [images, labels] : data.epoch(0)) {
    // "Data packing".
    const auto x = copy_to_mesh(mesh, images, Layout::batch_sharded(mesh, "batch", 2));
    const auto y = copy_to_mesh(mesh, labels, Layout::batch_sharded(mesh, "batch", 1));
    std::optional<Tape> tape;
    if (adam != nullptr) tape.emplace();
    const auto logits = network(weights, x), losses = softmax_cross_entropy(logits, y);
    if (adam != nullptr) adam->update(weights, tape->gradient(reduce_mean(losses), weights));
    const auto equal = [](int a, int b) { return a == b ? 1 : 0; };
    correct += reduce_sum(elementwise(argmax(logits), y, equal)).unpack().item();
    loss += reduce_sum(losses).unpack().item();
    examples += static_cast<double>(images.rows());
  }
  char text[64];
  std::snprintf(text, sizeof text, "loss %.3f, accuracy %.3f", loss / examples, correct / examples);
  return text;
}

// "Training", on batch x model devices.
void tutorial(comm::Communicator& comm, int batch, int model, int epochs) {
  auto digits = data::open_data_set("synthetic", {.train_limit = 5000, .test_limit = 5000});
  const auto training = from_source(std::move(digits.train)).batch(128);
  const auto test = from_source(std::move(digits.test)).batch(1000);
  Mesh mesh(comm, {{"batch", batch}, {"model", model}});
  Variables weights = make_weights(mesh);
  Adam adam;
  std::string text = "mesh " + to_text(mesh.shape()) + "\n";
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    text += "epoch " + std::to_string(epoch) + ": training " + run(mesh, training, weights, &adam);
    text += "   testing " + run(mesh, test, weights) + "\n";
  }
  if (comm.rank() == 0) std::printf("%s", text.c_str());
}

void program(comm::Communicator& comm) {
  const int ranks = comm.size(), both = ranks % 2 == 0 ? 2 : 1;
  tutorial(comm, ranks, 1, 1);
  tutorial(comm, 1, ranks, 1);
  tutorial(comm, both, ranks / both, 3);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

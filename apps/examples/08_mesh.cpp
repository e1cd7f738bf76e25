// Distributed tensors: a mesh of ranks, layouts, matrix products under several layouts, and a
// gradient that is summed in slices. Prints the same on any number of ranks.
//
//   08_mesh --ranks 6, or mpirun -n 6 08_mesh
#include <cstdio>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

constexpr auto unsharded = Layout::unsharded;

/// Prints on rank 0; the other ranks compute the same text.
void print(const Mesh& mesh, const std::string& text) {
  if (mesh.rank() == 0) std::printf("%s\n", text.c_str());
}

std::string yes(bool right) { return right ? "yes" : "no"; }

/// The most square factorization of `ranks` into "batch" times "model".
std::vector<MeshDimension> dimensions(int ranks) {
  int batch = 1;
  for (int i = 1; i * i <= ranks; ++i) batch = ranks % i == 0 ? i : batch;
  return {{"batch", batch}, {"model", ranks / batch}};
}

/// pack, unpack and relayout.
void pieces(Mesh& mesh) {
  const Tensor<float> mine({1, 2}, {1.0F * static_cast<float>(mesh.coordinate("batch")), 1});
  const auto packed = pack_to_mesh(mesh, mine, Layout(mesh, {"batch", unsharded}));
  packed.verify();  // over "model" it is replicated
  print(mesh, "unpack gives what was packed: " + yes(packed.unpack() == mine));
  const auto columns = packed.relayout(Layout(mesh, {unsharded, "model"}));
  print(mesh, "relayout keeps the tensor: " + yes(columns.to_global() == packed.to_global()));
}

/// The same product under three layouts.
void product(Mesh& mesh) {
  const Tensor<float> a({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor<float> b({3, 2}, {6, 5, 4, 3, 2, 1});
  const auto multiply = [&](const char* name, const Layout& left, const Layout& right) {
    const auto c = matmul(copy_to_mesh(mesh, a, left), copy_to_mesh(mesh, b, right));
    print(mesh, std::string("product, ") + name + ": " + to_text(c.to_global()));
  };
  multiply("replicated", Layout::replicated(mesh, 2), Layout::replicated(mesh, 2));
  multiply("contraction sharded", Layout(mesh, {unsharded, "model"}),
           Layout(mesh, {"model", unsharded}));
  multiply("rows also sharded", Layout(mesh, {"batch", "model"}),
           Layout(mesh, {"model", unsharded}));
}

/// Two dense layers, the first cut by columns and the second by rows: a single all-reduce.
void two_layers(Mesh& mesh) {
  const auto ones = [](const Shape& shape) {
    return Tensor<float>(shape, std::vector<float>(elements_of(shape), 1));
  };
  const Layout activations(mesh, {"batch", "model"});
  const auto x = copy_to_mesh(mesh, ones({4, 3}), Layout::batch_sharded(mesh, "batch", 2));
  const auto w1 = copy_to_mesh(mesh, ones({3, 6}), Layout(mesh, {unsharded, "model"}));
  const auto b1 = copy_to_mesh(mesh, ones({6}), activations.without_axis(0));
  const auto w2 = copy_to_mesh(mesh, ones({6, 2}), Layout(mesh, {"model", unsharded}));
  const auto hidden = elementwise(add(matmul(x, w1), b1), [](float v) { return v > 0 ? v : 0; });
  const auto y = matmul(hidden, w2);
  const auto mean = reduce_mean(y);
  print(mesh, "two layers: " + to_text(y.to_global()) + ", mean " + to_text(mean.unpack()));
}

/// The mean of the replicas' gradients: each rank along "batch" sums and keeps one slice.
void gradient(Mesh& mesh) {
  const Tensor<float> mine = {8, 16, 24};
  const auto addends = pack_to_mesh(mesh, mine, Layout::replicated(mesh, 1).partial_over("batch"));
  mesh.reset_traffic();
  const auto slice = addends.relayout(Layout(mesh, {"batch"}));
  const bool least = mesh.traffic().all_reduces == 0 && mesh.traffic().reduce_scatters <= 1;
  const auto replicas = static_cast<float>(mesh.size("batch"));
  const auto mean = elementwise(slice, [&](float v) { return v / replicas; });
  print(mesh, "gradient: " + to_text(mean.to_global()) + ", by one reduce-scatter: " + yes(least));
}

void program(comm::Communicator& comm) {
  Mesh mesh(comm, dimensions(comm.size()));
  pieces(mesh);
  product(mesh);
  two_layers(mesh);
  gradient(mesh);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

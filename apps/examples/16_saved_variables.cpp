// The guide "Distributed training with Core APIs and DTensor", its section on saving: weights that
// are cut over one mesh are saved as whole tensors, and read as pieces of another mesh.
//
//   16_saved_variables --ranks 8, or mpirun -n 8 16_saved_variables
//
// All ranks must run on one host: the file is saved in the folder for temporary files, which hosts
// do not share.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <lockstep/lockstep.hpp>

using namespace lockstep;

namespace {

using Variables = std::vector<DVariable<float>>;

/// A dense layer whose columns are cut over "model". Each rank makes its own pieces only.
Variables make_weights(Mesh& mesh, std::uint32_t seed) {
  const auto by_columns = Layout::inner_sharded(mesh, "model", 2);
  Variables all;
  all.emplace_back("dense.weight", glorot_uniform(mesh, {784, 700}, {seed, seed}, by_columns));
  all.emplace_back("dense.bias", zeros<float>(mesh, {700}, by_columns.without_axis(0)));
  return all;
}

// "Saving your model", on a mesh of 1 x N devices, and restoring it on N x 1.
void program(comm::Communicator& comm) {
  Mesh mesh(comm, {{"batch", 1}, {"model", comm.size()}});
  const Variables weights = make_weights(mesh, 22);
  const auto process = comm::broadcast_text(comm, std::to_string(::getpid()));
  const auto file = std::filesystem::temp_directory_path() / ("weights-" + process);
  train::save_variables(file, weights);

  Mesh other(comm, {{"batch", comm.size()}, {"model", 1}});
  Variables restored = make_weights(other, 23);
  const auto same = [&](std::size_t i) {
    return weights[i].to_global() == restored[i].to_global();
  };
  const bool before = same(0);
  train::restore_variables(file, restored);
  const bool after = same(0) && same(1);
  if (comm.rank() > 0) return;
  std::printf("equal before: %s, after: %s\n", before ? "yes" : "no", after ? "yes" : "no");
  std::filesystem::remove(file);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, program); }

#include "lockstep/train/saved_variables.hpp"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/tape.hpp"
#include "lockstep/distribute/values.hpp"
#include "lockstep/train/safetensors.hpp"

namespace lockstep::train {
namespace {

// Names and shapes. Throws the same AgreedError on all ranks for no variables or a name used twice.
std::vector<TensorSpec> specs_of(std::span<const DVariable<float>> variables) {
  if (variables.empty()) collective::refuse("a file of no variables", "give at least one");
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (const auto& variable : variables) {
    if (!names.insert(variable.name()).second) {
      collective::refuse("two variables are called \"" + variable.name() + "\"",
                         "give the variables of a file different names");
    }
    specs.push_back({variable.name(), {variable.shape().begin(), variable.shape().end()}});
  }
  return specs;
}

}  // namespace

void save_variables(const std::filesystem::path& path,
                    std::span<const DVariable<float>> variables) {
  const auto specs = specs_of(variables);
  const sharding::RecordingPause pause;
  auto& comm = variables.front().mesh().communicator();
  std::optional<SafetensorsWriter> file;
  const auto on_rank_0 = [&](const std::function<void()>& work) {
    comm::together(comm, [&] {
      if (comm.rank() == 0) work();
    });
  };
  on_rank_0([&] { file.emplace(path, specs); });
  for (const auto& variable : variables) {
    const auto whole = variable.to_global();
    on_rank_0([&] { file->add(whole.values()); });
  }
  on_rank_0([&] { file->finish(); });
}

void restore_variables(const std::filesystem::path& path, std::span<DVariable<float>> variables) {
  const auto specs = specs_of(variables);
  auto& comm = variables.front().mesh().communicator();
  std::optional<SafetensorsReader> file;
  comm::together(comm, [&] {
    file.emplace(path, specs, "give a file that save_variables wrote for variables like these");
  });
  std::vector<DTensor<float>> values;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    Tensor<float> whole;
    comm::together(comm, [&] { whole = {variables[i].shape(), file->read(i)}; });
    values.push_back(copy_to_mesh(variables[i].mesh(), whole, variables[i].layout()));
  }
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(values[i]);
}

}  // namespace lockstep::train

#include "lockstep/train/saved_variables.hpp"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/dtensor.hpp"
#include "lockstep/distribute/values.hpp"
#include "lockstep/train/json_fields.hpp"
#include "lockstep/train/safetensors.hpp"

namespace lockstep::train {
namespace {

// The name of a variable's checksum in the file's header.
std::string checksum_name(const std::string& variable) { return "xxh3 of " + variable; }

// Throws unless a safetensors file can have a tensor of this name, and JSON the name.
void require_name(const std::string& name) {
  const std::size_t max_bytes = max_key_bytes - checksum_name("").size();
  const bool is_plain = is_utf8(name) && name.find('\0') == std::string::npos;
  if (!name.empty() && name.size() <= max_bytes && is_plain && name != "__metadata__") return;
  collective::refuse(
      "a file cannot have a variable called " + in_quotes(name),
      "give it another name, of 1 to " + std::to_string(max_bytes) + " bytes of UTF-8");
}

// Names and shapes. Throws the same AgreedError on all ranks for no variables, names that a file
// cannot have, a name used twice, and ranks with different variables. Collective.
std::vector<TensorSpec> specs_of(std::span<const DVariable<float>> variables) {
  if (variables.empty()) collective::refuse("a file of no variables", "give at least one");
  if (variables.size() >= max_keys) {  // the header has a key besides
    collective::refuse("a file of " + std::to_string(variables.size()) + " variables",
                       "give fewer than " + std::to_string(max_keys));
  }
  const std::string listed = joined(variables, ", ", [](const auto& variable) {
    return variable.name() + " " + to_text(variable.shape());
  });
  comm::require_equal(variables.front().mesh().communicator(), "the variables of a file",
                      {{"list", listed}},
                      "give the same variables in the same order on every rank");
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (const auto& variable : variables) {
    require_name(variable.name());
    if (!names.insert(variable.name()).second) {
      collective::refuse("two variables are called \"" + variable.name() + "\"",
                         "give the variables of a file different names");
    }
    specs.push_back({variable.name(), {variable.shape().begin(), variable.shape().end()}});
  }
  return specs;
}

std::string checksum_of(std::span<const float> values) {
  return to_hex(hash_of(std::as_bytes(values)));
}

}  // namespace

void save_variables(const std::string& path, std::span<const DVariable<float>> variables) {
  const auto specs = specs_of(variables);
  const sharding::RecordingPause pause;
  auto& comm = variables.front().mesh().communicator();
  Metadata checksums;
  for (const auto& variable : variables) {
    const auto whole = variable.to_global();
    checksums.emplace(checksum_name(variable.name()), checksum_of(whole.values()));
  }
  std::optional<SafetensorsWriter> file;
  const auto on_rank_0 = [&](const std::function<void()>& work) {
    comm::together(comm, [&] {
      if (comm.rank() == 0) work();
    });
  };
  on_rank_0([&] { file.emplace(replaceable(path), specs, checksums); });
  for (const auto& variable : variables) {
    const auto whole = variable.to_global();
    on_rank_0([&] { file->add(whole.values()); });
  }
  on_rank_0([&] { file->finish(); });
}

void restore_variables(const std::string& path, std::span<DVariable<float>> variables) {
  const auto specs = specs_of(variables);
  auto& comm = variables.front().mesh().communicator();
  std::optional<SafetensorsReader> file;
  comm::together(comm, [&] {
    file.emplace(path, specs, "give a file that save_variables wrote for variables like these");
  });
  std::vector<DTensor<float>> values;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    Tensor<float> whole;
    comm::together(comm, [&] {
      whole = {variables[i].shape(), file->read(i)};
      const auto checksum = file->metadata().find(checksum_name(variables[i].name()));
      if (checksum == file->metadata().end()) return;  // written by another library
      if (checksum->second == checksum_of(whole.values())) return;
      throw DataError(path + ": the checksum of " + in_quotes(variables[i].name()) + " differs",
                      data::fetch_again);
    });
    values.push_back(copy_to_mesh(variables[i].mesh(), whole, variables[i].layout()));
  }
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(values[i]);
}

}  // namespace lockstep::train

#include "lib/train/mesh.hpp"

#include <algorithm>
#include <optional>

#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/train/config.hpp"

namespace lockstep::train {
namespace {

constexpr const char* remedy = "use batch=N, or batch=N,model=M";

/// Dimensions as they are written: those that are not are left open.
struct Dimensions {
  std::optional<std::uint64_t> batch;
  std::optional<std::uint64_t> model;
};

Dimensions dimensions_of(const std::string& text) {
  constexpr std::uint64_t most = 1 << 20;
  Dimensions dimensions;
  if (text == "auto") return dimensions;
  const auto words = split_list(text);
  if (words.empty()) throw ConfigError("mesh: no dimension", remedy);
  for (const auto& word : words) {
    const auto sign = word.find('=');
    const std::string name = word.substr(0, sign);
    if (name != "batch" && name != "model") {
      throw ConfigError("mesh " + text + ": '" + name + "' is no dimension", remedy);
    }
    auto& size = name == "batch" ? dimensions.batch : dimensions.model;
    if (size) throw ConfigError("mesh " + text + ": " + name + " stands there twice", remedy);
    try {
      size = parse_count(sign == std::string::npos ? "" : word.substr(sign + 1), 1, most);
    } catch (const ConfigError& error) {
      throw ConfigError("mesh " + text + ": " + name + ": " + error.what(), remedy);
    }
  }
  return dimensions;
}

}  // namespace

void require_mesh(const std::string& text) { dimensions_of(text); }

MeshSizes mesh_of(const RunConfig& config, std::uint64_t ranks) {
  const Dimensions given = dimensions_of(config.mesh);
  MeshSizes sizes;
  sizes.model = given.model.value_or(1);
  sizes.batch = given.batch.value_or(ranks / sizes.model);
  if (sizes.batch * sizes.model == ranks) return sizes;
  const std::string there = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  throw ConfigError(
      "mesh " + config.mesh + ": " +
          (given.batch ? "its " + std::to_string(sizes.batch * sizes.model) +
                             " places are not the " + there + " that there are"
                       : there + " cannot be cut into groups of " + std::to_string(sizes.model)),
      "start as many ranks as the mesh has places, or use another mesh");
}

std::unique_ptr<Mesh> make_mesh(comm::Communicator& ranks, const MeshSizes& sizes) {
  return std::make_unique<Mesh>(
      ranks, std::vector<MeshDimension>{{"batch", static_cast<int>(sizes.batch)},
                                        {"model", static_cast<int>(sizes.model)}});
}

Groups::Groups(Mesh& mesh)
    : all(mesh.communicator()),
      batch(mesh.communicator("batch")),
      model(mesh.size("model") > 1 ? &mesh.communicator("model") : nullptr) {}

void Groups::fail_together(const std::function<void()>& work) const {
  if (model == nullptr) return work();
  std::string mine;
  try {
    work();
  } catch (const comm::AgreedError& error) {
    mine = std::to_string(static_cast<int>(error.code())) + ' ' + error.what();
  }
  if (model->all_agree(mine.empty())) return;
  const auto texts = comm::gather_text(*model, mine);
  const auto first =
      std::find_if(texts.begin(), texts.end(), [](auto& text) { return !text.empty(); });
  throw comm::AgreedError(static_cast<ExitCode>(std::stoi(*first)),
                          first->substr(first->find(' ') + 1));
}

}  // namespace lockstep::train

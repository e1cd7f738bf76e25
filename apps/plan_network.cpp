#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/console.hpp"
#include "apps/library_options.hpp"
#include "apps/plan.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/cost.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

struct Row {
  std::string layer;
  std::string name;
  std::vector<std::string> from;
  std::string output;
  double parameters = 0;
  double trained = 0;  ///< parameters that training changes by their gradients
  bool frozen = false;
  double flops = 0;  ///< of an example: two for each multiplication with an addition
  double bytes = 0;  ///< of rank 0
};

struct NetworkTable {
  std::string input;  ///< its shape
  std::vector<Row> rows;
  Row total;
  double snapshots = 0;  ///< bytes on rank 0
  std::uint64_t ranks = 1;
};

NetworkTable table_of(const RunConfig& config) {
  const data::DataSet data = data::open_data_set(config.data, data_options(config));
  const data::Source& train = *data.train;
  require_used(config, train);
  const nn::NetworkShape shape =
      network_of(config, train.shape(), outputs_of(config, data, data::label_counts(train)));
  const auto mesh = mesh_of(config, config.ranks);
  const TrainingPlan chosen =
      training_plan(config, train.records(), train.file_records(), mesh.batch);
  comm::Place place;  // this machine, with all ranks
  place.local_ranks = static_cast<int>(config.ranks);
  const int threads = threads_of(config, comm::own_cores(place));
  train::ReplicaOptions options = replica_options(config, threads);
  options.optimizer = optimizer_options(config, chosen.plan);
  train::require_trainable(chosen.plan, options, mesh.model);
  const auto buffers = train::training_buffers(shape, chosen.plan, options);
  const auto snapshots = train::snapshot_blocks(options);
  NetworkTable table;
  table.ranks = config.ranks;
  table.input = nn::text_of(shape.input);
  const auto sizes = shape.sizes();
  const auto bytes = buffers.bytes_of_layers(shape, mesh.model);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const nn::LayerSpec& layer = shape.layers[i];
    table.rows.push_back({nn::text_of(layer), layer.name, layer.from, nn::text_of(sizes[i].output),
                          sizes[i].weights, nn::trained_weights_of(layer, sizes[i].inputs),
                          layer.frozen, 2 * nn::multiply_adds_of(layer, sizes[i].inputs),
                          bytes[i]});
    table.total.parameters += sizes[i].weights;
    table.total.trained += table.rows.back().trained;
    table.total.flops += table.rows.back().flops;
  }
  table.snapshots = sizeof(float) * (snapshots.on_rank_0 + snapshots.on_a_host) * shape.weights();
  table.total.bytes = buffers.bytes(shape, mesh.model, threads) + table.snapshots;
  return table;
}

std::vector<std::string> cells_of(const std::string& label, const Row& row) {
  return {label, row.output, count_text(row.parameters), count_text(row.flops),
          bytes_text(row.bytes)};
}

/// A whole number if it is below 2^63.
nlohmann::ordered_json whole(double count) {
  if (count < 0x1p63) return static_cast<std::uint64_t>(count);
  return count;
}

nlohmann::ordered_json json_of(const Row& row) {
  return {{"parameters", whole(row.parameters)},
          {"trainable_parameters", whole(row.trained)},
          {"flops", whole(row.flops)},
          {"bytes", whole(row.bytes)}};
}

nlohmann::ordered_json json_of(const NetworkTable& table) {
  nlohmann::ordered_json json = {{"ranks", table.ranks}, {"input", table.input}};
  json["layers"] = nlohmann::ordered_json::array();
  for (const Row& row : table.rows) {
    nlohmann::ordered_json layer = {{"layer", row.layer},
                                    {"name", row.name},
                                    {"from", row.from},
                                    {"frozen", row.frozen},
                                    {"output", row.output}};
    layer.update(json_of(row));
    json["layers"].push_back(std::move(layer));
  }
  json.update(json_of(table.total));
  json["snapshot_bytes"] = whole(table.snapshots);
  return json;
}

}  // namespace

void print_network(const RunConfig& config, bool json) {
  const NetworkTable table = table_of(config);
  if (json) {
    fmt::print("{}\n", json_of(table).dump());
    return;
  }
  fmt::print("lockstep {}: the network of {}\n\n", version, config.data);
  std::vector<std::vector<std::string>> lines = {
      {"layer", "output", "parameters", "FLOPs", "memory"}, {"   input", table.input, "", "", ""}};
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const Row& row = table.rows[i];
    std::string label = fmt::format("{:>2} {}", i + 1, row.layer);
    if (!row.name.empty()) label += fmt::format(" '{}'", row.name);
    if (!row.from.empty()) label += fmt::format(" of {}", fmt::join(row.from, ", "));
    if (row.frozen) label += " frozen";
    lines.push_back(cells_of(label, row));
  }
  lines.push_back({"   snapshots", "", "", "", bytes_text(table.snapshots)});
  lines.push_back(cells_of("total", table.total));
  print_table(lines);
  fmt::print(
      "\nTrainable parameters: {}; others, of frozen layers and running statistics: {}.\n"
      "FLOPs: forward, of an example; 2 for each multiply-add of dense layers and convolutions.\n"
      "Memory: of rank 0 of {}; the total has the features that are read ahead, too. Snapshots of\n"
      "weights and optimizer state are on rank 0, for checkpoints, and with --survive on each "
      "host.\n",
      count_text(table.total.trained), count_text(table.total.parameters - table.total.trained),
      counted(table.ranks, "rank"));
}

}  // namespace lockstep::apps

#include "apps/training_banner.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

/// "60,000 training and 10,000 test records of 784 features".
std::string records_text(const data::DataSet& sets) {
  const auto validation =
      sets.validation ? fmt::format(", {} validation", grouped(sets.validation->records())) : "";
  return fmt::format("{} training{} and {} test records of {} features",
                     grouped(sets.train->records()), validation, grouped(sets.test->records()),
                     grouped(sets.train->features()));
}

/// "4 columns of numbers, standardized; 'x' left out (as asked); missing numbers: mean".
std::string table_text(const data::TableSchema& table) {
  const auto numbers = static_cast<std::uint64_t>(
      std::count_if(table.columns.begin(), table.columns.end(),
                    [](const auto& column) { return column.categories.empty(); }));
  std::string text = counted(numbers, "column") + " of numbers" +
                     (table.standardized ? ", standardized" : ", as they are");
  if (const auto words = table.columns.size() - numbers; words > 0) {
    text += fmt::format("; {} of words as {} features", words, table.features() - numbers);
  }
  constexpr std::size_t max_named = 3;
  const auto& left_out = table.left_out;
  for (std::size_t i = 0; i < std::min(left_out.size(), max_named); ++i) {
    text += fmt::format("; {} left out ({})", in_quotes(left_out[i].first), left_out[i].second);
  }
  if (left_out.size() > max_named) {
    text += fmt::format("; {} more left out", left_out.size() - max_named);
  }
  text += fmt::format("; missing numbers: {}", data::name_of(table.missing));
  return table.weight.empty() ? text : text + "; weights in " + in_quotes(table.weight);
}

/// "'price' (mean 12.3, deviation 4.5), 'size' (mean ...)"; of several labels: "2 labels, each 0 or
/// 1: 'rain', 'wind'". Only of a table with targets.
std::string targets_text(const data::TableSchema& table) {
  if (table.is_multi_label()) {
    return fmt::format("{}, each 0 or 1: {}", counted(table.targets.size(), "label"),
                       listed(table.label_names()));
  }
  return joined(table.targets, ", ", [](const data::TableColumn& target) {
    return fmt::format("{} (mean {:.5g}, deviation {:.5g})", in_quotes(target.name), target.mean,
                       target.deviation);
  });
}

/// "3 classes of column 'species': 'Adelie', 'Chinstrap', 'Gentoo'; 44.2 % are 'Adelie'". `where`:
/// " of column 'species'", or empty. `counts`: training records of each label.
std::string labels_text(const std::string& where, const std::vector<std::string>& classes,
                        const std::vector<std::uint64_t>& counts) {
  const auto largest = std::max_element(counts.begin(), counts.end());
  const auto records = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  return fmt::format("{} {}{}: {}; {:.1f} % are {}", classes.size(),
                     classes.size() == 1 ? "class" : "classes", where, listed(classes),
                     100.0 * static_cast<double>(*largest) / static_cast<double>(records),
                     in_quotes(classes[static_cast<std::size_t>(largest - counts.begin())]));
}

/// "1,234 parameters, 120 of them trained".
std::string parameters_text(const nn::NetworkShape& shape) {
  const bool has_frozen = std::any_of(shape.layers.begin(), shape.layers.end(),
                                      [](const nn::LayerSpec& layer) { return layer.frozen; });
  const std::string all = fmt::format("{} parameters", grouped(shape.parameters()));
  if (!has_frozen) return all;
  const auto trained = static_cast<std::uint64_t>(shape.trained_weights());
  return fmt::format("{}, {} of them trained", all, grouped(trained));
}

std::string batch_text(const TrainJob& job) {
  const auto& plan = *job.plan;
  const bool data = plan.options().policy == data::ShardPolicy::data;
  return fmt::format("{} global, at most {} a rank in leaves of {}; {} an epoch",
                     grouped(data ? plan.examples(0) : plan.options().batch_size),
                     grouped(plan.largest_piece()), plan.leaf(0), counted(plan.steps(), "step"));
}

std::string device_text(const TrainJob& job) {
  const auto* device = job.replica->device();
  if (device == nullptr) {
    return fmt::format("cpu, {} a rank",
                       counted(static_cast<std::uint64_t>(job.threads), "thread"));
  }
  const auto& exchange = device->exchange();
  return fmt::format("cuda, {} on rank 0{}", device->device(),
                     exchange.empty() ? "" : "; exchange " + exchange);
}

/// Options that differ from none, in a line: "adamw at 0.001, weight decay 0.01".
std::string optimizer_text(const optim::OptimizerOptions& options) {
  std::string text = fmt::format("{} at {:g}", optim::name_of(options.kind), options.learning_rate);
  if (options.momentum != 0) {
    text += fmt::format(", {}momentum {:g}", options.nesterov ? "Nesterov " : "", options.momentum);
  }
  if (options.weight_decay != 0) text += fmt::format(", weight decay {:g}", options.weight_decay);
  if (options.clip_norm) text += fmt::format(", norm clipped to {:g}", *options.clip_norm);
  if (options.clip_value) text += fmt::format(", values clipped to {:g}", *options.clip_value);
  const optim::Schedule& schedule = options.schedule;
  if (schedule.kind != optim::ScheduleKind::constant) {
    text += fmt::format("; {} schedule", optim::name_of(schedule.kind));
  }
  if (schedule.warmup > 0) text += fmt::format("; warm-up of {}", counted(schedule.warmup, "step"));
  return text;
}

}  // namespace

Banner training_banner(const RunConfig& config, const TrainData& data, const TrainJob& job,
                       comm::Communicator& comm) {
  Banner banner;
  banner.headline =
      fmt::format("lockstep {}: {}, backend {}", version, ranks_text(comm), comm.backend());
  const auto add = [&](const char* label, std::string text) {
    banner.rows.emplace_back(label, std::move(text));
  };
  add("device", device_text(job));
  add("data", config.data + ": " + records_text(data.sets));
  if (const auto table = data.sets.train->table()) {
    add("table", table_text(*table));
    if (!table->targets.empty()) {
      add(table->is_regression() ? "targets" : "labels", targets_text(*table));
    } else {
      add("labels",
          labels_text(" of column " + in_quotes(table->label), table->classes, data.label_counts));
    }
  }
  if (const auto pictures = data.sets.train->pictures()) {
    add("pictures", pictures->text());
    add("labels", labels_text("", pictures->classes, data.label_counts));
  }
  add("policy", fmt::format("{}: {}; {}shuffle {}", data::name_of(job.plan->options().policy),
                            job.policy_reason,
                            config.rebatch == "ceil" ? "" : "rebatch " + config.rebatch + "; ",
                            config.shuffle));
  if (job.transform) add("augment", config.augment + ", a function of seed, epoch and record");
  const nn::NetworkShape& shape = job.replica->shape();
  add("network", shape.text() + ", " + parameters_text(shape));
  const train::Groups& groups = job.replica->groups();
  const auto model = groups.model_ranks();
  if (model > 1) add("mesh", mesh_text(groups));
  add("batch", batch_text(job));
  if (const auto idle = job.plan->idle_ranks(); idle > 0) {
    const bool by_data = job.plan->options().policy == data::ShardPolicy::data;
    add("idle", fmt::format("{} of {} ranks: {}", idle * model, comm.size(),
                            by_data ? "a full batch has fewer leaves than ranks need; a smaller "
                                      "--leaf or a larger --batch-size would use them"
                                    : "their files leave them no record"));
  }
  add("optimizer", optimizer_text(job.replica->optimizer()));
  add("reduction", reduction_text(job, config));
  return banner;
}

std::string schedule_picture(const optim::OptimizerOptions& options, std::uint64_t steps) {
  constexpr std::uint64_t columns = 60;
  constexpr int rows = 8;
  constexpr int eighths = 8;
  static constexpr std::array blocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const optim::Schedule& schedule = options.schedule;
  if (schedule.kind == optim::ScheduleKind::constant && schedule.warmup == 0) return "";
  std::string text;
  for (int row = rows - 1; row >= 0; --row) {
    const double top = options.learning_rate * (row + 1) / rows;
    text += row == rows - 1 || row == 0 ? fmt::format("{:>10.3g} ", row == 0 ? 0 : top)
                                        : std::string(11, ' ');
    for (std::uint64_t column = 0; column < columns; ++column) {
      const std::uint64_t step = share_begin(steps, 2 * column + 1, 2 * columns);
      const double height = schedule.factor(step) * rows - row;
      const auto part = static_cast<std::size_t>(std::clamp(height * eighths, 0.0, 8.0));
      text += blocks[part];
    }
    text += "\n";
  }
  return text + fmt::format("{:>10}  0{:>{}}\n", "step", grouped(steps), columns - 1);
}

}  // namespace lockstep::apps

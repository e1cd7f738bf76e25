#include "apps/init.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "apps/console.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/launch/launch.hpp"

namespace lockstep::apps {
namespace {

std::vector<std::string> names_in(const std::string& text) {
  if (text == "none") return {};
  return split_list(text);
}

std::pair<std::string, std::string> names_around_sign(const std::string& text) {
  const auto sign = text.find('=');
  if (sign != std::string::npos && sign > 0 && sign + 1 < text.size()) {
    return {text.substr(0, sign), text.substr(sign + 1)};
  }
  throw ConfigError("`init_map`: " + in_quotes(text) + " is not OURS=THEIRS",
                    "write the name of a layer, =, and its name in the file: 0=backbone.conv1");
}

/// The first column of numbers or words that is not the same; nullopt if there is none.
std::optional<std::string> other_column(const data::TableSchema& before,
                                        const data::TableSchema& now) {
  for (std::size_t i = 0; i < std::max(before.columns.size(), now.columns.size()); ++i) {
    const auto text = [i](const data::TableSchema& table) {
      if (i >= table.columns.size()) return std::string("missing");
      const data::TableColumn& column = table.columns[i];
      return in_quotes(column.name) +
             (column.categories.empty()
                  ? ""
                  : fmt::format(" of the words {}", fmt::join(column.categories, ", ")));
    };
    if (text(before) == text(now)) continue;
    return fmt::format("column {} is {}, but was {}", i + 1, text(now), text(before));
  }
  return std::nullopt;
}

/// Throws ConfigError if features do not mean what they did.
void require_same_columns(const train::SavedNetwork& saved, const data::Source& train) {
  const auto now = train.table();
  const auto& before = saved.info.table;
  if (now == nullptr || before == nullptr) return;
  const auto other = other_column(*before, *now);
  if (!other) return;
  throw ConfigError(
      "`init`: the table is not of the columns of " + saved.folder.string() + ": " + *other,
      "give the same columns in the same order, or `init_fresh=0` for a first layer of its own");
}

/// How features are scaled otherwise than the checkpoint's; empty: they are not.
std::string other_scale(const train::SavedNetwork& saved, const data::Source& train) {
  if (saved.info.divide_by != train.divisor()) {
    return fmt::format("features are divided by {}, those of the checkpoint were by {}",
                       shortest(train.divisor()), shortest(saved.info.divide_by));
  }
  const auto now = train.table();
  const auto& before = saved.info.table;
  if (now == nullptr || before == nullptr) return "";
  if (now->standardized != before->standardized) {
    return now->standardized ? "columns are standardized, those of the checkpoint were not"
                             : "columns are not standardized, those of the checkpoint were";
  }
  const auto differs = [](const data::TableColumn& a, const data::TableColumn& b) {
    return a.mean != b.mean || a.deviation != b.deviation;
  };
  if (!now->standardized ||
      std::equal(now->columns.begin(), now->columns.end(), before->columns.begin(),
                 before->columns.end(), std::not_fn(differs))) {
    return "";
  }
  return "columns are standardized by the means and deviations of this training set, not by the "
         "checkpoint's";
}

}  // namespace

std::optional<train::InitialWeights> initial_weights(const RunConfig& config) {
  const RunConfig defaults;
  if (config.init == "none") {
    for (const auto& [name, is_default] :
         {std::pair("init_map", config.init_map == defaults.init_map),
          std::pair("init_fresh", config.init_fresh == defaults.init_fresh),
          std::pair("init_ignore", config.init_ignore == defaults.init_ignore),
          std::pair("init_layout", config.init_layout == defaults.init_layout)}) {
      if (is_default) continue;
      throw ConfigError(fmt::format("`{}` without `init`", name),
                        "give `init=PATH`, or leave it out");
    }
    return std::nullopt;
  }
  train::InitialWeights initial = {.from = config.init};
  if (config.init_layout == "pytorch") initial.layout = train::TensorLayout::pytorch;
  for (const auto& text : names_in(config.init_map)) {
    initial.map.push_back(names_around_sign(text));
  }
  initial.fresh = names_in(config.init_fresh);
  initial.ignored = names_in(config.init_ignore);
  return initial;
}

std::string start_from(const RunConfig& config, const data::Source& train,
                       train::Replica& replica) {
  comm::Communicator& comm = replica.groups().all;
  std::optional<train::InitialWeights> initial;
  comm::together(comm, [&] { initial = initial_weights(config); });
  if (!initial) return "";
  const train::TakenWeights taken = replica.start_from(*initial);
  if (taken.saved && taken.takes_first) {
    comm::together(comm, [&] { require_same_columns(*taken.saved, train); });
    const std::string scale = other_scale(*taken.saved, train);
    if (!scale.empty() && comm.rank() == 0) {
      launching::print_warning("--init: " + scale +
                               ": the first layer's weights are for the other");
    }
  }
  std::string text = taken.saved ? fmt::format("{}, after {}", taken.saved->folder.string(),
                                               counted(taken.saved->info.step, "step"))
                                 : taken.file.string();
  text += fmt::format(": {} taken", counted(taken.taken.size(), "tensor"));
  if (!taken.fresh.empty()) text += fmt::format("; at random: {}", fmt::join(taken.fresh, ", "));
  return text;
}

std::string parameters_text(const nn::NetworkShape& shape) {
  const bool has_frozen = std::any_of(shape.layers.begin(), shape.layers.end(),
                                      [](const nn::LayerSpec& layer) { return layer.frozen; });
  const std::string all = fmt::format("{} parameters", grouped(shape.parameters()));
  if (!has_frozen) return all;
  const auto trained = static_cast<std::uint64_t>(shape.trained_weights());
  return fmt::format("{}, {} of them trained", all, grouped(trained));
}

}  // namespace lockstep::apps

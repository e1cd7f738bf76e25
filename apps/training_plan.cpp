#include "apps/training_plan.hpp"

#include <utility>

#include "lib/base/errors.hpp"

namespace lockstep::apps {

TrainingPlan training_plan(const train::RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks) {
  auto choice =
      data::choose_policy(data::policy_named(config.shard_policy), file_records.size(), ranks);
  data::Plan plan(
      {.records = records,
       .batch_size = config.batch_size,
       .ranks = ranks,
       .leaf = config.leaf.value_or(0),
       .drop_remainder = config.drop_remainder,
       .shuffle = config.shuffle == "global" ? data::Shuffle::global : data::Shuffle::none,
       .seed = config.seed,
       .policy = choice.policy,
       .rebatch = data::rebatch_named(config.rebatch),
       .file_records = std::move(file_records)});
  if (plan.steps() == 0) {
    const bool by_rank = choice.policy == data::ShardPolicy::file;
    throw ConfigError("drop-remainder: batch-size " + std::to_string(config.batch_size) +
                          " leaves no step of " + std::to_string(records) + " records" +
                          (by_rank ? " in " + std::to_string(ranks) + " streams" : ""),
                      "use a smaller --batch-size, or keep the remainder");
  }
  return {std::move(plan), std::move(choice.reason), std::move(choice.warning)};
}

}  // namespace lockstep::apps

#include "data/policy.hpp"

#include <array>
#include <vector>

#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::data {
namespace {

constexpr std::array policy_names = {"auto", "file", "data", "off"};
constexpr std::array rebatch_names = {"ceil", "balanced"};

template <class Choice, std::size_t N>
Choice named(std::string_view name, const std::array<const char*, N>& names, const char* what) {
  std::vector<std::string> words;
  std::string all;
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Choice>(i);
    words.emplace_back(names[i]);
    all += (i == 0 ? "" : "|") + words.back();
  }
  const auto guess = nearest(name, words);
  throw ConfigError(std::string(what) + ": '" + std::string(name) + "' is none of " + all,
                    guess ? "did you mean '" + *guess + "'?" : "");
}

[[noreturn]] void refuse_few_files(ShardPolicy asked, std::uint64_t files, std::uint64_t workers) {
  throw ConfigError("shard-policy " + std::string(name_of(asked)) + ": " + counted(files, "file") +
                        " with records in use for " + counted(workers, "worker") +
                        ", and each needs one of its own",
                    "use --shard-policy data (every worker reads its share of all files), or "
                    "--shard-policy off (every worker sees everything), or split the files: "
                    "`lockstep convert --files " +
                        std::to_string(workers) + "`");
}

std::string file_reason(std::uint64_t files, std::uint64_t workers) {
  return counted(files, "file") + " dealt round-robin to " + counted(workers, "rank") +
         ", so each reads whole files of its own";
}

const char* const data_reason =
    "each rank reads its piece of every global batch, so the number of ranks changes no batch";

PolicyChoice alone(ShardPolicy asked, std::uint64_t files) {
  const auto automatic = files > 0 ? ShardPolicy::file : ShardPolicy::data;
  return {asked == ShardPolicy::automatic ? automatic : asked,
          asked == ShardPolicy::data ? data_reason : "one rank reads everything", ""};
}

}  // namespace

const char* name_of(ShardPolicy policy) noexcept {
  return policy_names[static_cast<std::size_t>(policy)];
}

const char* name_of(Rebatch rule) noexcept { return rebatch_names[static_cast<std::size_t>(rule)]; }

ShardPolicy policy_named(std::string_view name) {
  return named<ShardPolicy>(name, policy_names, "shard-policy");
}

Rebatch rebatch_named(std::string_view name) {
  return named<Rebatch>(name, rebatch_names, "rebatch");
}

PolicyChoice choose_policy(ShardPolicy asked, std::uint64_t files, std::uint64_t workers) {
  if (workers == 0) throw ConfigError("a plan for 0 workers", "give at least 1");
  if (workers == 1) return alone(asked, files);
  if (asked == ShardPolicy::data) return {asked, data_reason, ""};
  if (asked == ShardPolicy::off) {
    return {asked, "every rank reads all records",
            "shard-policy off: every rank reads all records, so each record counts " +
                std::to_string(workers) + " times an epoch"};
  }
  if (files >= workers) return {ShardPolicy::file, file_reason(files, workers), ""};
  if (files > 0) refuse_few_files(asked, files, workers);
  if (asked == ShardPolicy::file) {
    throw ConfigError("shard-policy file: the data does not come from files",
                      "use --shard-policy data, or data in at least " + counted(workers, "file"));
  }
  return {ShardPolicy::data,
          std::string(data_reason) + " (auto: the data does not come from files)",
          "shard-policy auto: the data does not come from files, so it is sharded as by data"};
}

void require_worker(std::uint64_t worker, std::uint64_t workers) {
  if (workers == 0) throw ConfigError("a plan for 0 workers", "give at least 1");
  if (worker < workers) return;
  throw ConfigError("worker " + std::to_string(worker) + " of " + std::to_string(workers),
                    "workers are counted from 0");
}

}  // namespace lockstep::data

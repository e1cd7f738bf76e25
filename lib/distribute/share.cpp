#include "lockstep/distribute/share.hpp"

#include "lockstep/base/hash.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/readers.hpp"

namespace lockstep::pieces {
namespace {

using data::Rebatch;
using data::ShardPolicy;

/// Under DATA and OFF the plan of one stream; under FILE each worker's stream is a file of the
/// plan.
std::optional<data::PlanOptions> plan_options(const Share& share,
                                              const readers::Pipeline& dataset) {
  data::PlanOptions options = {.batch_size = share.batch_size,
                               .ranks = share.ranks,
                               .leaf = share.leaf,
                               .max_leaf = share.max_leaf,
                               .policy = share.choice.policy,
                               .rebatch = share.rebatch};
  const bool by_files = share.choice.policy == ShardPolicy::file;
  for (std::uint64_t worker = 0; worker < (by_files ? share.ranks : 1); ++worker) {
    const auto examples = dataset.open_plain({0, worker, by_files ? share.ranks : 1})->examples();
    if (!examples || *examples == endless) return std::nullopt;
    options.records += *examples;
    if (by_files) options.file_records.push_back(*examples);
  }
  return options;
}

void require_cuttable(const Share& share) {
  if (share.rebatch != Rebatch::balanced) return;
  if (share.choice.policy == ShardPolicy::data) {
    throw ConfigError("`rebatch=balanced` with `policy=data`, whose pieces are whole leaves",
                      "use `rebatch=ceil`, or `policy=file` or `policy=off`");
  }
  if (share.batch_size == 0) {
    throw ConfigError("rebatch balanced needs the size of the batches, which is not known",
                      "batch the data set last, or use `rebatch=ceil`");
  }
  if (share.batch_size < share.ranks) {
    throw ConfigError("rebatch balanced cuts batches of " + std::to_string(share.batch_size) +
                          " for " + std::to_string(share.ranks) + " replicas",
                      "give a batch for all of them, or use `rebatch=ceil`");
  }
}

/// Batches that are not read by position are cut as those of a plan are if they have its numbers
/// of examples.
void add_training_plan(Share& share, const readers::Pipeline& dataset) {
  if (share.plan) {
    share.training_plan = share.plan;
    return;
  }
  if (share.batch_size == 0) {
    share.why_no_plan = {"the size of its batches is not known", "batch the data set last"};
    return;
  }
  if (share.choice.policy != ShardPolicy::data) {
    share.why_no_plan = {
        "with `policy=" + std::string(data::name_of(share.choice.policy)) +
            "` only finite data sets with random access that end in batch() have a plan",
        "batch last, or use `policy=data`"};
    return;
  }
  const auto reader = dataset.open_plain({});
  const auto examples = reader->examples_before_map();
  const bool finite = examples && *examples != endless;
  if (!examples && !share.drop_remainder) {
    share.why_no_plan = {
        "the number of its examples is not known, so its last batch may be smaller",
        "give the number of its elements by assert_cardinality(n), before batch, or use "
        "batch(size, true), which leaves a smaller batch out"};
    return;
  }
  // Of batch(n, true).repeat() only the number of batches is known, which is `endless`.
  share.has_end = finite || (!examples && reader->count() != endless);
  share.training_plan.emplace(data::PlanOptions{.records = finite ? *examples : share.batch_size,
                                                .batch_size = share.batch_size,
                                                .ranks = share.ranks,
                                                .leaf = share.leaf,
                                                .max_leaf = share.max_leaf,
                                                .drop_remainder = finite && share.drop_remainder});
}

Share decide(comm::Communicator& comm, const readers::Pipeline& dataset,
             const DistributeOptions& options) {
  const DatasetFacts& facts = dataset.facts();
  Share share{.rebatch = options.rebatch,
              .leaf = options.leaf,
              .max_leaf = options.max_leaf,
              .rank = static_cast<std::uint64_t>(comm.rank()),
              .ranks = static_cast<std::uint64_t>(comm.size()),
              .batch_size = facts.batch_size,
              .drop_remainder = facts.drop_remainder};
  readers::require_depth(options.prefetch.value_or(0), "DistributeOptions::prefetch");
  share.choice = data::choose_policy(options.policy, facts.files, share.ranks);
  require_cuttable(share);
  if (const auto plan = plan_options(share, dataset)) {
    share.plan.emplace(*plan);
  } else {
    share.endless_batches = share.choice.policy == ShardPolicy::data &&
                            dataset.open_plain({})->examples().value_or(0) == endless;
  }
  add_training_plan(share, dataset);
  return share;
}

}  // namespace

Pass Share::pass(std::uint64_t epoch) const noexcept {
  const bool by_files = choice.policy == ShardPolicy::file;
  return {epoch, by_files ? rank : 0, by_files ? ranks : 1};
}

Range Share::piece_of(std::uint64_t examples, std::uint64_t worker) const noexcept {
  const std::uint64_t in_leaf = leaf > 0 ? leaf : data::automatic_leaf(examples, max_leaf);
  return data::piece_of(examples, in_leaf, worker, ranks);
}

bool Share::ends_differ() const noexcept {
  if (plan || ranks == 1) return false;
  return choice.policy == ShardPolicy::file || rebatch == Rebatch::balanced;
}

std::optional<std::size_t> Share::fixed_rows() const {
  if (batch_size == 0 || batch_size % ranks != 0) return std::nullopt;
  const std::uint64_t each = batch_size / ranks;
  if (!plan) {
    const bool full = drop_remainder || endless_batches;
    const bool regular =
        choice.policy == ShardPolicy::off ||
        (choice.policy == ShardPolicy::data && piece_of(batch_size, ranks - 1).size() == each);
    return full && regular ? std::optional<std::size_t>(each) : std::nullopt;
  }
  if (plan->steps() == 0) return std::nullopt;
  const bool by_streams = choice.policy != ShardPolicy::data;
  for (std::uint64_t worker = 0; worker < ranks; ++worker) {
    const std::uint64_t length =
        by_streams ? plan->examples_of(worker) : plan->examples_per_epoch();
    if (length % batch_size != 0 || length != (by_streams ? plan->examples_of(0) : length) ||
        plan->piece_size(0, worker) != each) {
      return std::nullopt;
    }
  }
  return each;
}

Share agree_on_share(comm::Communicator& comm, const readers::Pipeline& dataset,
                     const DistributeOptions& options) {
  const DatasetFacts& facts = dataset.facts();
  Share share;
  std::string identity = facts.identity;
  comm::together(comm, [&] {
    share = decide(comm, dataset, options);
    if (facts.samples) identity += ", " + facts.samples();
  });
  comm::require_equal(
      comm, "the data set that is shared out",
      {{"data", identity},
       {"batch size", std::to_string(facts.batch_size)},
       {"drop remainder", facts.drop_remainder ? "yes" : "no"},
       {"shard policy", data::name_of(share.choice.policy)},
       {"rebatch", data::name_of(options.rebatch)},
       {"leaf", std::to_string(options.leaf)},
       {"max leaf", std::to_string(options.max_leaf)},
       {"plan", share.training_plan ? to_hex(share.training_plan->digest()) : "none"}},
      "make the same data set with the same options on every rank");
  return share;
}

bool Share::some_empty() const {
  if (!plan || choice.policy != ShardPolicy::file) return false;
  for (std::uint64_t worker = 0; worker < ranks; ++worker) {
    if (plan->examples_of(worker) == 0) return plan->steps() > 0;
  }
  return false;
}

}  // namespace lockstep::pieces

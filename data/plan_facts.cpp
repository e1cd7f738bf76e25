#include "data/plan_facts.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/base/text.hpp"

namespace lockstep::data {
namespace {

/// DATA deals every record of the order once, FILE every record of a file to the one rank that has
/// the file, and OFF every record to each rank; a dropped remainder is not dealt. Orders are
/// permutations, so positions that are dealt once are records that are read once.
Multiplicity multiplicity_of(const Plan& plan) {
  const auto& options = plan.options();
  const bool off = options.policy == ShardPolicy::off;
  const std::uint64_t times = off ? options.ranks : 1;
  const std::uint64_t read = plan.examples_per_epoch() / times;
  return {read == options.records ? times : 0, read > 0 ? times : 0, options.records - read};
}

/// How often each record is read, by listing all steps of all ranks.
Multiplicity counted_multiplicity(const Plan& plan, const PlanFacts& facts, std::uint64_t epoch) {
  std::vector<std::uint32_t> times(plan.options().records);
  std::vector<std::uint64_t> reads(plan.options().ranks);
  std::vector<std::uint64_t> ids;
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    for (std::uint64_t rank = 0; rank < reads.size(); ++rank) {
      plan.records(epoch, step, rank, ids);
      for (const std::uint64_t id : ids) ++times.at(id);
      reads[rank] += ids.size();
    }
  }
  if (reads != facts.records_per_rank) {
    throw std::logic_error("plan: a rank's records do not add up to the closed form");
  }
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  if (times.empty()) return {};
  return {*least, *most, static_cast<std::uint64_t>(std::count(times.begin(), times.end(), 0U))};
}

std::string times_text(const Multiplicity& m) {
  const std::string left =
      m.complete() ? "complete" : "all but " + counted(m.omitted, "dropped record");
  if (m.most <= 1) return "disjoint, " + left;
  return "each record " + grouped(m.most) + " times (once a rank), " + left;
}

}  // namespace

PlanFacts facts_of(const Plan& plan) {
  const std::uint64_t ranks = plan.options().ranks;
  PlanFacts facts;
  facts.steps = plan.steps();
  facts.examples = plan.examples_per_epoch();
  facts.records_per_rank.resize(ranks);
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    facts.records_per_rank[rank] = plan.examples_of(rank);
    facts.empty_batches += plan.steps() - plan.filled_steps(rank);
  }
  const double room = static_cast<double>(plan.steps()) * static_cast<double>(ranks) *
                      static_cast<double>(plan.largest_piece());
  if (room > 0) facts.idle_share = 1 - static_cast<double>(facts.examples) / room;
  facts.multiplicity = multiplicity_of(plan);
  return facts;
}

PlanProof prove(const Plan& plan, const PlanFacts& facts, std::uint64_t epoch) {
  PlanProof proof;
  proof.reads = facts.examples;
  const auto& options = plan.options();
  proof.enumerated = options.records <= most_enumerated && facts.examples <= most_enumerated &&
                     plan.steps() <= most_enumerated / options.ranks;
  if (proof.enumerated && counted_multiplicity(plan, facts, epoch) != facts.multiplicity) {
    throw std::logic_error("plan: the ids that were listed do not bear the closed form out");
  }
  proof.text = grouped(proof.reads) + " reads of " + counted(options.records, "record") + ": " +
               times_text(facts.multiplicity) +
               (proof.enumerated ? "; verified by listing every one of them"
                                 : "; by the closed form, too many to list");
  return proof;
}

}  // namespace lockstep::data

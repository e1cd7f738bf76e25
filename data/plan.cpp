#include "lockstep/data/plan.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint64_t max_examples = std::uint64_t{1} << 63;

void require_whole_files(const PlanOptions& options) {
  const auto& files = options.file_records;
  const auto sum = std::accumulate(files.begin(), files.end(), std::uint64_t{0});
  if (files.empty() || sum == options.records) return;
  throw std::invalid_argument("Plan: files of " + std::to_string(sum) + " records, and " +
                              std::to_string(options.records) + " in all");
}

}  // namespace

Plan::Plan(const Plan& other) = default;
Plan::Plan(Plan&& other) noexcept = default;
Plan& Plan::operator=(const Plan& other) = default;
Plan& Plan::operator=(Plan&& other) noexcept = default;
Plan::~Plan() = default;

Plan::Plan(const PlanOptions& options) : options_(options) {
  if (options.batch_size == 0) throw ConfigError("`batch_size` is 0", "give at least 1");
  require_whole_files(options);
  options_.policy =
      choose_policy(options.policy, options.file_records.size(), options.ranks).policy;
  if (options.records > max_examples / options.ranks) {
    throw ConfigError("a plan of more than 2^63 examples", "use fewer ranks");
  }
  if (options_.policy != ShardPolicy::data) {
    if (options.balance) {
      throw ConfigError("`balance` with `policy=" + std::string(name_of(options_.policy)) +
                            "`, where each rank reads its own records",
                        "use `policy=data`, or leave `balance` out");
    }
    make_streams();
    return;
  }
  if (options.rebatch == Rebatch::balanced) {
    throw ConfigError("`rebatch=balanced` with `policy=data`, whose pieces are whole leaves",
                      "use `rebatch=ceil`, or `policy=file` or `policy=off`");
  }
  steps_ = ceil_divide(whole_batches(options.records), options.batch_size);
  if (options.balance && steps_ > 0) make_shares();
}

std::uint64_t Plan::leaves(std::uint64_t step) const noexcept {
  return ceil_divide(examples(step), leaf(step));
}

void Plan::make_shares() {
  std::vector<std::uint64_t> shares(options_.ranks, leaves(0) / options_.ranks);
  for (std::uint64_t rank = 0; rank < leaves(0) % options_.ranks; ++rank) ++shares[rank];
  set_shares(std::move(shares));
}

std::uint64_t Plan::largest_share() const noexcept {
  return std::min(leaves(0), 2 * ceil_divide(leaves(0), options_.ranks));
}

void Plan::set_shares(std::vector<std::uint64_t> shares) {
  const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  const bool fits = std::all_of(shares.begin(), shares.end(),
                                [&](std::uint64_t share) { return share <= largest_share(); });
  if (!options_.balance || shares.size() != options_.ranks || sum != leaves(0) || !fits) {
    throw std::invalid_argument("Plan::set_shares: shares that this plan cannot have");
  }
  shares_ = std::move(shares);
  before_.resize(shares_.size());
  std::exclusive_scan(shares_.begin(), shares_.end(), before_.begin(), std::uint64_t{0});
}

void Plan::make_streams() {
  std::vector<std::uint64_t> lengths(options_.ranks, options_.records);
  if (options_.policy == ShardPolicy::file) {
    if (options_.file_records.empty()) options_.file_records = {options_.records};  // one rank
    files_.emplace(options_.file_records, options_.ranks);
    lengths = files_->lengths();
  }
  for (std::uint64_t& length : lengths) length = whole_batches(length);
  streams_.emplace(std::move(lengths), options_.batch_size, options_.rebatch);
  steps_ = streams_->steps();
}

/// The records that remain of `records` after drop_remainder.
std::uint64_t Plan::whole_batches(std::uint64_t records) const noexcept {
  return options_.drop_remainder ? records - records % options_.batch_size : records;
}

std::uint64_t Plan::examples(std::uint64_t step) const noexcept {
  if (by_streams()) return streams_->examples(step);
  return std::min(options_.batch_size, options_.records - step * options_.batch_size);
}

std::uint64_t Plan::examples_per_epoch() const noexcept {
  if (!by_streams()) return whole_batches(options_.records);
  const auto& lengths = streams_->lengths();
  return std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
}

std::uint64_t Plan::examples_of(std::uint64_t rank) const noexcept {
  if (by_streams()) return streams_->lengths()[rank];
  if (steps_ == 0) return 0;  // only the last step may differ
  return (steps_ - 1) * piece_size(0, rank) + piece_size(steps_ - 1, rank);
}

std::uint64_t Plan::filled_steps(std::uint64_t rank) const noexcept {
  if (by_streams()) return streams_->filled_steps(rank);
  if (steps_ == 0) return 0;
  return (steps_ - 1) * (piece_size(0, rank) > 0 ? 1 : 0) +
         (piece_size(steps_ - 1, rank) > 0 ? 1 : 0);
}

std::uint64_t Plan::leaf(std::uint64_t step) const noexcept {
  const std::uint64_t leaf =
      options_.leaf > 0 ? options_.leaf : automatic_leaf(examples(step), options_.max_leaf);
  return std::min(leaf, by_streams() ? streams_->largest_piece(step)
                                     : std::max<std::uint64_t>(examples(step), 1));
}

std::uint64_t Plan::largest_leaf() const noexcept {
  const std::uint64_t most = options_.leaf > 0 ? options_.leaf : options_.max_leaf;
  std::uint64_t largest = leaf(0);
  if (options_.rebatch != Rebatch::balanced) return largest;
  // Under `balanced` step 0 may have smaller pieces than another one, if streams are empty. The
  // sizes of a rank's pieces repeat after as many steps as there are ranks, until its stream ends.
  for (std::uint64_t step = 1; largest < most && step < std::min(steps_, options_.ranks); ++step) {
    largest = std::max(largest, leaf(step));
  }
  return largest;
}

Range Plan::positions(std::uint64_t step, std::uint64_t rank) const noexcept {
  if (by_streams()) return streams_->piece(step, rank);
  const Range piece = rows(step, rank);
  const std::uint64_t first = step * options_.batch_size;
  return {first + piece.begin, first + piece.end};
}

void Plan::records(std::uint64_t epoch, std::uint64_t step, std::uint64_t rank,
                   std::vector<std::uint64_t>& ids) const {
  require_worker(rank, options_.ranks);
  if (step >= steps()) {
    throw ConfigError(
        "step " + std::to_string(step) + " of an epoch of " + counted(steps(), "step"),
        "count steps from 0 in every epoch");
  }
  const Range mine = positions(step, rank);
  ids.resize(mine.size());
  const Permutation shuffled = order(epoch, rank);
  for (std::uint64_t i = 0; i < mine.size(); ++i) {
    ids[i] = record_in(shuffled, rank, mine.begin + i);
  }
}

std::uint64_t Plan::record(std::uint64_t epoch, std::uint64_t rank,
                           std::uint64_t position) const noexcept {
  return record_in(order(epoch, rank), rank, position);
}

/// A permutation of all records of `rank`, including a dropped remainder, so that each epoch drops
/// different records.
Permutation Plan::order(std::uint64_t epoch, std::uint64_t rank) const noexcept {
  if (!files_) return {options_.records, options_.seed, epoch};
  return {files_->lengths()[rank], worker_seed(options_.seed, rank), epoch};
}

std::uint64_t Plan::record_in(const Permutation& order, std::uint64_t rank,
                              std::uint64_t position) const noexcept {
  const std::uint64_t at = options_.shuffle == Shuffle::global ? order(position) : position;
  return files_ ? files_->record(rank, at) : at;
}

std::uint64_t Plan::block(std::uint64_t step) const noexcept {
  if (by_streams()) return round_up(streams_->largest_piece(step), leaf(step));
  return options_.balance ? largest_piece() : rows(step, 0).size();
}

Range Plan::rows(std::uint64_t step, std::uint64_t rank) const noexcept {
  if (by_streams()) {
    const std::uint64_t first = rank * block(step);
    return {first, first + streams_->piece(step, rank).size()};
  }
  if (!options_.balance) return piece_of(examples(step), leaf(step), rank, options_.ranks);
  return part_of(examples(step), leaf(step), {before_[rank], before_[rank] + shares_[rank]},
                 leaves(0));
}

std::uint64_t Plan::summed_rows(std::uint64_t step) const noexcept {
  return by_streams() ? block(step) * options_.ranks : examples(step);
}

std::uint64_t Plan::largest_piece() const noexcept {
  if (steps_ == 0) return 0;
  if (by_streams()) return streams_->largest_piece();
  if (options_.balance) return std::min(examples(0), largest_share() * leaf(0));
  return std::max(piece_size(0, 0), piece_size(steps_ - 1, 0));  // the last leaf may differ
}

std::uint64_t Plan::largest_gathered() const noexcept {
  if (!by_streams()) return largest_piece() * options_.ranks;
  if (steps_ == 0) return 0;
  // A step's automatic leaf is its largest piece, or a power of two that grows with the examples.
  const std::uint64_t piece = largest_piece();
  const std::uint64_t leaf =
      options_.leaf > 0 ? std::min(options_.leaf, piece)
                        : std::min(automatic_leaf(piece * options_.ranks, options_.max_leaf),
                                   std::bit_floor(piece));
  return round_up(piece, leaf) * options_.ranks;
}

std::uint64_t Plan::idle_ranks() const noexcept {
  if (steps_ == 0) return options_.ranks;
  if (options_.balance) {
    return static_cast<std::uint64_t>(std::count(shares_.begin(), shares_.end(), 0U));
  }
  if (!by_streams()) return options_.ranks - filled_pieces(examples(0), leaf(0), options_.ranks);
  const auto& lengths = streams_->lengths();
  return static_cast<std::uint64_t>(std::count(lengths.begin(), lengths.end(), 0U));
}

std::uint64_t Plan::digest() const {
  Hash hash;
  hash.add(name_of(options_.policy));
  hash.add(name_of(options_.rebatch));
  for (const std::uint64_t number :
       {options_.records, options_.batch_size, options_.ranks, options_.leaf,
        std::uint64_t{options_.drop_remainder}, static_cast<std::uint64_t>(options_.shuffle),
        options_.shuffle == Shuffle::global ? options_.seed : 0}) {
    hash.add(number);
  }
  if (files_) {
    for (const std::uint64_t records : options_.file_records) hash.add(records);
  }
  if (options_.leaf == 0 && steps_ > 0) {
    const std::uint64_t max = options_.max_leaf;
    if (automatic_leaf(examples(0), max) != automatic_leaf(examples(0), float32_leaf)) {
      hash.add(max);
    }
  }
  return hash.value();
}

namespace {

/// DATA assigns each position of the order to one rank, FILE each record to the rank of its file,
/// and OFF each record to all ranks; a dropped remainder is not assigned. Orders are permutations,
/// so a record is read as often as its position is assigned.
Multiplicity multiplicity_of(const Plan& plan) {
  const auto& options = plan.options();
  if (options.records == 0) return {};
  const bool off = options.policy == ShardPolicy::off;
  const std::uint64_t times = off ? options.ranks : 1;
  const std::uint64_t read = plan.examples_per_epoch() / times;
  return {read == options.records ? times : 0, read > 0 ? times : 0, options.records - read};
}

/// The multiplicity, by listing all steps of all ranks.
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
    throw std::logic_error("plan: the number of a rank's records disagrees with the formula");
  }
  const auto [min, max] = std::minmax_element(times.begin(), times.end());
  if (times.empty()) return {};
  return {*min, *max, static_cast<std::uint64_t>(std::count(times.begin(), times.end(), 0U))};
}

std::string times_text(const Multiplicity& m) {
  const std::string left =
      m.complete() ? "complete" : "all but " + counted(m.omitted, "dropped record");
  if (m.max <= 1) return "disjoint, " + left;
  return "each record " + grouped(m.max) + " times (once a rank), " + left;
}

}  // namespace

PlanFacts facts_of(const Plan& plan) {
  const std::uint64_t ranks = plan.options().ranks;
  PlanFacts facts;
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
  const auto& options = plan.options();
  proof.enumerated = options.records <= max_enumerated && facts.examples <= max_enumerated &&
                     plan.steps() <= max_enumerated / options.ranks;
  if (proof.enumerated && counted_multiplicity(plan, facts, epoch) != facts.multiplicity) {
    throw std::logic_error("plan: enumeration disagrees with the formula");
  }
  proof.text = grouped(facts.examples) + " reads of " + counted(options.records, "record") + ": " +
               times_text(facts.multiplicity) +
               (proof.enumerated ? "; verified by listing every one of them"
                                 : "; by the closed form, too many to list");
  return proof;
}

// The order of a shuffled epoch.

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept
    : n_(n), seed_(seed), epoch_(epoch) {
  if (n > 2) half_bits_ = static_cast<int>(std::bit_width(n - 1) + 1) / 2;
}

std::uint64_t Permutation::operator()(std::uint64_t position) const noexcept {
  assert(position < n_);
  std::uint64_t value = once(position);
  while (value >= n_) value = once(value);  // the domain is at most 4 n: mean <= 4 iterations
  return value;
}

std::uint64_t Permutation::once(std::uint64_t value) const noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  const Philox::Key key = philox_key(seed_);
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < 4; ++round) {
    // Half a value has at most 32 bits; the epoch uses two words of the counter.
    const Philox::Block block =
        Philox::at({low_word(right), low_word(epoch_), high_word(epoch_), round}, key);
    const std::uint64_t mixed = left ^ (block[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::uint64_t worker_seed(std::uint64_t seed, std::uint64_t worker) noexcept {
  if (worker == 0) return seed;
  constexpr std::uint32_t tag = 0x46494C45;  // "FILE"; differs from all rounds of Permutation
  const Philox::Block block =
      Philox::at({low_word(worker), high_word(worker), 0, tag}, philox_key(seed));
  return from_words(block[0], block[1]);
}

}  // namespace lockstep::data

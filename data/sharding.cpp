#include "lockstep/data/sharding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

constexpr std::array policy_names = {"auto", "file", "data", "off"};
constexpr std::array rebatch_names = {"ceil", "balanced"};

template <class Choice, std::size_t N>
Choice required(std::string_view name, const std::array<const char*, N>& names, const char* what) {
  if (const auto choice = named<Choice>(names, name)) return *choice;
  const std::vector<std::string> words(names.begin(), names.end());
  throw ConfigError(
      std::string(what) + ": '" + std::string(name) + "' is none of " + joined(words, "|"),
      did_you_mean(nearest(name, words)));
}

[[noreturn]] void refuse_few_files(ShardPolicy asked, std::uint64_t files, std::uint64_t workers) {
  throw ConfigError("`policy=" + std::string(name_of(asked)) + "`: " + counted(files, "file") +
                        " with records in use for " + counted(workers, "worker") +
                        ", and each needs one of its own",
                    "use `policy=data` (every worker reads its share of all files), or "
                    "`policy=off` (every worker sees everything), or split the files: "
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
  return required<ShardPolicy>(name, policy_names, "policy");
}

Rebatch rebatch_named(std::string_view name) {
  return required<Rebatch>(name, rebatch_names, "rebatch");
}

PolicyChoice choose_policy(ShardPolicy asked, std::uint64_t files, std::uint64_t workers) {
  if (workers == 0) throw ConfigError("a plan for 0 workers", "give at least 1");
  if (workers == 1) return alone(asked, files);
  if (asked == ShardPolicy::data) return {asked, data_reason, ""};
  if (asked == ShardPolicy::off) {
    return {asked, "every rank reads all records",
            "`policy=off`: every rank reads all records, so each record counts " +
                std::to_string(workers) + " times an epoch"};
  }
  if (files >= workers) return {ShardPolicy::file, file_reason(files, workers), ""};
  if (files > 0) refuse_few_files(asked, files, workers);
  if (asked == ShardPolicy::file) {
    throw ConfigError("`policy=file`: the data does not come from files",
                      "use `policy=data`, or data in at least " + counted(workers, "file"));
  }
  return {
      ShardPolicy::data, std::string(data_reason) + " (auto: the data does not come from files)",
      "`policy=auto`: the data does not come from files, so it is sharded as by data; to choose "
      "that, use `policy=data`"};
}

void require_worker(std::uint64_t worker, std::uint64_t workers) {
  if (workers == 0) throw ConfigError("a plan for 0 workers", "give at least 1");
  if (worker < workers) return;
  throw ConfigError("worker " + std::to_string(worker) + " of " + std::to_string(workers),
                    "workers are counted from 0");
}

namespace {

constexpr std::uint64_t max_steps = std::uint64_t{1} << 63;

}  // namespace

StreamSteps::StreamSteps(std::vector<std::uint64_t> lengths, std::uint64_t batch_size, Rebatch rule)
    : lengths_(std::move(lengths)),
      batch_size_(batch_size),
      rule_(rule),
      balanced_(batch_size, lengths_.size()),
      full_steps_(filled_pieces(batch_size, 1, lengths_.size())) {
  make_groups();
  if (ceil_divide(groups_.back().length, batch_size) > max_steps / ranks()) {
    throw ConfigError("a plan of more steps than can be counted", "use a larger `batch_size`");
  }
  if (rule == Rebatch::ceil) {
    find_odd_rounds();
    return;
  }
  if (batch_size < ranks()) {
    throw ConfigError(
        "`rebatch=balanced`: `batch_size` " + std::to_string(batch_size) + " for " +
            std::to_string(ranks()) + " ranks would leave pieces empty in every step",
        "use `rebatch=ceil`, or a `batch_size` of at least " + std::to_string(ranks()));
  }
  for (std::uint64_t rank = 0; rank < ranks(); ++rank) {
    steps_ = std::max(steps_, filled_steps(rank));
  }
}

void StreamSteps::make_groups() {
  std::vector<std::uint64_t> sorted = lengths_;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (groups_.empty() || groups_.back().length != sorted[i]) {
      groups_.push_back({sorted[i], 0, sorted.size() - i});
    }
    ++groups_.back().ranks;
  }
}

void StreamSteps::find_odd_rounds() {
  const std::uint64_t full_rounds = groups_.back().length / batch_size_;  // of the longest stream
  std::map<std::uint64_t, std::uint64_t> steps_of_last;  // rounds in which a stream ends
  for (const Group& group : groups_) {
    const std::uint64_t round = group.length / batch_size_;
    const std::uint64_t min = round < full_rounds ? full_steps_ : 0;
    const std::uint64_t filled = filled_pieces(group.length % batch_size_, 1, ranks());
    std::uint64_t& steps = steps_of_last[round];
    steps = std::max({steps, min, filled});
  }
  steps_ = full_rounds * full_steps_;
  std::uint64_t more = 0;  // extra steps of odd rounds compared with full ones
  for (const auto& [round, steps] : steps_of_last) {
    const std::uint64_t usual = round < full_rounds ? full_steps_ : 0;
    if (steps == usual) continue;
    odd_rounds_.push_back({round, round * full_steps_ + more, steps});
    more += steps - usual;
  }
  steps_ += more;
}

StreamSteps::Place StreamSteps::place(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced) return {step / ranks(), step % ranks()};
  const auto after =
      std::upper_bound(odd_rounds_.begin(), odd_rounds_.end(), step,
                       [](std::uint64_t s, const OddRound& odd) { return s < odd.first_step; });
  if (after == odd_rounds_.begin()) return {step / full_steps_, step % full_steps_};
  const OddRound& odd = *(after - 1);
  const std::uint64_t since = step - odd.first_step;
  if (since < odd.steps) return {odd.round, since};
  const std::uint64_t behind = since - odd.steps;
  return {odd.round + 1 + behind / full_steps_, behind % full_steps_};
}

Range StreamSteps::piece(std::uint64_t step, std::uint64_t rank) const noexcept {
  const std::uint64_t length = lengths_[rank];
  if (rule_ == Rebatch::balanced) {
    const Range whole = balanced_.piece(rank, step);
    return {std::min(whole.begin, length), std::min(whole.end, length)};
  }
  const auto [round, index] = place(step);
  const std::uint64_t first = std::min(round * batch_size_, length);
  const Range piece = piece_of(std::min(batch_size_, length - first), 1, index, ranks());
  return {first + piece.begin, first + piece.end};
}

template <class Visit>
void StreamSteps::for_each_size(std::uint64_t step, Visit visit) const {
  if (rule_ == Rebatch::balanced) {
    for (std::uint64_t rank = 0; rank < ranks(); ++rank) visit(piece(step, rank).size(), 1);
    return;
  }
  const auto [round, index] = place(step);
  const std::uint64_t first = round * batch_size_;
  auto group = std::upper_bound(groups_.begin(), groups_.end(), first,
                                [](std::uint64_t at, const Group& g) { return at < g.length; });
  for (; group != groups_.end() && group->length - first < batch_size_; ++group) {
    visit(piece_of(group->length - first, 1, index, ranks()).size(), group->ranks);
  }
  if (group == groups_.end()) return;
  visit(piece_of(batch_size_, 1, index, ranks()).size(), group->not_shorter);
}

std::uint64_t StreamSteps::examples(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced && full_everywhere(step)) return batch_size_;
  std::uint64_t sum = 0;
  for_each_size(step, [&](std::uint64_t size, std::uint64_t ranks) { sum += size * ranks; });
  return sum;
}

std::uint64_t StreamSteps::largest_piece(std::uint64_t step) const noexcept {
  if (rule_ == Rebatch::balanced && full_everywhere(step)) return largest_piece();
  std::uint64_t largest = 0;
  for_each_size(step,
                [&](std::uint64_t size, std::uint64_t) { largest = std::max(largest, size); });
  return largest;
}

bool StreamSteps::full_everywhere(std::uint64_t step) const noexcept {
  return groups_.front().length / batch_size_ > step / ranks();
}

std::uint64_t StreamSteps::largest_piece() const noexcept {
  const std::uint64_t longest = groups_.back().length;
  const std::uint64_t of_batch = ceil_divide(batch_size_, ranks());
  if (rule_ == Rebatch::balanced) return std::min(of_batch, longest);
  return ceil_divide(std::min(batch_size_, longest), ranks());
}

std::uint64_t StreamSteps::filled_steps(std::uint64_t rank) const noexcept {
  const std::uint64_t length = lengths_[rank];
  if (rule_ == Rebatch::balanced) return balanced_.filled(rank, length);
  return length / batch_size_ * full_steps_ + filled_pieces(length % batch_size_, 1, ranks());
}

std::uint64_t automatic_leaf(std::uint64_t examples, std::uint64_t most) noexcept {
  return std::bit_floor(std::max<std::uint64_t>(1, std::min(examples / 8, most)));
}

Range piece_of(std::uint64_t examples, std::uint64_t leaf, std::uint64_t index,
               std::uint64_t pieces) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  const std::uint64_t each = ceil_divide(leaves, pieces);
  const std::uint64_t first = index < filled_pieces(examples, leaf, pieces)
                                  ? index * each
                                  : leaves;  // avoids overflow of the product
  const std::uint64_t last = std::min(leaves, first + each);
  const auto position = [&](std::uint64_t at) { return at == leaves ? examples : at * leaf; };
  return {position(first), position(last)};
}

Range part_of(std::uint64_t examples, std::uint64_t leaf, Range shares,
              std::uint64_t all) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  const auto position = [&](std::uint64_t share) {
    const std::uint64_t at = share_begin(leaves, share, all);
    return at == leaves ? examples : at * leaf;
  };
  return {position(shares.begin), position(shares.end)};
}

std::uint64_t filled_pieces(std::uint64_t examples, std::uint64_t leaf,
                            std::uint64_t pieces) noexcept {
  const std::uint64_t leaves = ceil_divide(examples, leaf);
  return leaves == 0 ? 0 : ceil_divide(leaves, ceil_divide(leaves, pieces));
}

BalancedPieces::BalancedPieces(std::uint64_t batch, std::uint64_t workers,
                               std::uint64_t replicas_per_worker)
    : batch_(batch),
      workers_(workers),
      replicas_(replicas_per_worker),
      pieces_(workers * replicas_per_worker) {
  if (batch == 0) throw ConfigError("`batch_size` is 0", "give at least 1");
  if (pieces_ == 0) throw ConfigError("a batch for 0 workers or replicas", "give at least 1");
}

/// Examples of worker 0 before its piece `index`.
std::uint64_t BalancedPieces::before(std::uint64_t index) const noexcept {
  const std::uint64_t within = index % pieces_;
  return index / pieces_ * batch_ + within * (batch_ / pieces_) +
         std::min(within, batch_ % pieces_);
}

Range BalancedPieces::piece(std::uint64_t worker, std::uint64_t index) const noexcept {
  const std::uint64_t offset = worker * replicas_;
  const std::uint64_t skipped = before(offset);
  return {before(offset + index) - skipped, before(offset + index + 1) - skipped};
}

std::vector<std::uint64_t> BalancedPieces::sizes(std::uint64_t worker) const {
  require_worker(worker, workers_);
  std::vector<std::uint64_t> all(pieces_);
  for (std::uint64_t i = 0; i < pieces_; ++i) all[i] = piece(worker, i).size();
  return all;
}

std::uint64_t BalancedPieces::filled(std::uint64_t worker, std::uint64_t examples) const noexcept {
  const std::uint64_t rest = examples % batch_;
  std::uint64_t low = 0;  // bisection for the first piece with begin >= rest
  std::uint64_t high = pieces_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (piece(worker, middle).begin < rest) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return examples / batch_ * pieces_ + low;
}

FileStreams::FileStreams(std::span<const std::uint64_t> file_records, std::uint64_t workers)
    : workers_(workers), lengths_(workers) {
  if (workers == 0) throw ConfigError("files for 0 workers", "give at least 1");
  first_.reserve(file_records.size());
  before_.reserve(file_records.size());
  std::uint64_t records = 0;
  for (std::size_t file = 0; file < file_records.size(); ++file) {
    std::uint64_t& stream = lengths_[file % workers];
    first_.push_back(records);
    before_.push_back(stream);
    records += file_records[file];
    stream += file_records[file];
  }
}

std::uint64_t FileStreams::record(std::uint64_t worker, std::uint64_t position) const noexcept {
  // Finds the worker's last file that begins at or before `position` (an empty file begins at the
  // same position as the next one, so the last of them holds the record).
  std::uint64_t low = 0;
  std::uint64_t high = (first_.size() - worker - 1) / workers_ + 1;  // files of this worker
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (before_[worker + middle * workers_] <= position) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::uint64_t file = worker + low * workers_;
  return first_[file] + (position - before_[file]);
}

}  // namespace lockstep::data

#include "lockstep/distribute/distributed_dataset.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/readers.hpp"
#include "lockstep/distribute/share.hpp"

namespace lockstep {
namespace {

using data::Rebatch;
using data::ShardPolicy;
using pieces::AnyDataset;
using pieces::BatchType;
using pieces::Share;
using pieces::WhyNoPlan;
using readers::Any;
using readers::Next;

/// The numbers of elements of all ranks' streams.
struct StreamLengths {
  std::uint64_t longest = 0;  ///< possibly `endless`
  bool some_empty = false;    ///< a rank has no element, another has
  bool equal = true;
};

/// nullopt if any rank's count is unknown. Collective.
std::optional<StreamLengths> agree_on_lengths(comm::Communicator& comm,
                                              std::optional<std::uint64_t> mine) {
  const auto known = comm::gather_number(comm, mine ? 1 : 0);
  const auto lengths = comm::gather_number(comm, mine.value_or(0));
  if (contains(known, 0U)) return std::nullopt;
  const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  return StreamLengths{.longest = *longest,
                       .some_empty = *shortest == 0 && *longest > 0,
                       .equal = *shortest == *longest};
}

/// The message that ranks exchange each step if their streams may end at different steps.
struct StepNews {
  bool has_examples = false;
  bool has_more = false;
  bool failed = false;
  bool lacks_shape = false;  ///< has not had an example yet
};

/// The logical OR over all ranks, field by field. Collective.
StepNews any_rank(comm::Communicator& comm, const StepNews& mine) {
  std::array<std::uint8_t, 4> flags = {mine.has_examples, mine.has_more, mine.failed,
                                       mine.lacks_shape};
  comm.all_reduce(std::span<std::uint8_t>(flags), comm::Op::max);
  return {flags[0] != 0, flags[1] != 0, flags[2] != 0, flags[3] != 0};
}

// Readers of one rank's pieces, one per step.

// Each returns this rank's piece of each step, in order; null at the end of its stream. Local.
using SharedReader = std::shared_ptr<readers::Reader>;

/// With a plan: reads only this rank's examples.
Next planned(SharedReader reader, const Share& share) {
  return [reader = std::move(reader), plan = *share.plan, rank = share.rank,
          step = std::uint64_t{0}]() mutable -> Any {
    if (step == plan.steps()) return nullptr;
    const Range mine = plan.positions(step++, rank);
    return reader->rows(mine.size() > 0 ? mine : Range{0, 0});
  };
}

/// Under DATA, endless data: reads only this rank's examples.
Next endless_batches(SharedReader reader, const Share& share) {
  const Range mine = share.piece_of(share.batch_size, share.rank);
  return [reader = std::move(reader), mine, size = share.batch_size,
          first = std::uint64_t{0}]() mutable {
    const std::uint64_t at = std::exchange(first, first + size);
    return reader->rows({at + mine.begin, at + mine.end});
  };
}

/// Rows `mine` of `batch`, which nothing else may hold: all of them are moved out, which leaves
/// `batch` null; fewer are copied.
Any part_of(const BatchType& type, Any& batch, const Range& mine) {
  if (mine.size() == type.rows(batch)) return std::exchange(batch, nullptr);
  return type.cut(batch, mine.begin, mine.end);
}

/// Under DATA, sequential data: every rank reads all batches and keeps its pieces. Batches without
/// an example are skipped, but where a plan counts them.
Next kept(const BatchType& type, Next next_batch, const Share& share) {
  return [&type, next_batch = std::move(next_batch), share]() -> Any {
    while (auto batch = next_batch()) {
      const std::uint64_t rows = type.rows(batch);
      if (rows == 0 && !share.training_plan) continue;
      return part_of(type, batch, share.piece_of(rows, share.rank));
    }
    return nullptr;
  };
}

/// Under FILE and OFF, rule `ceil`: cuts each batch of this rank's stream into as many pieces as
/// there are replicas. Trailing pieces may be empty; with `all_alike` they are empty on all ranks
/// and are skipped.
Next own(const BatchType& type, Next next_batch, const Share& share, bool all_alike) {
  return [&type, next_batch = std::move(next_batch), all_alike, ranks = share.ranks, batch = Any(),
          piece = share.ranks]() mutable -> Any {
    while (true) {
      if (piece == ranks) {
        batch = next_batch();
        if (!batch) return nullptr;
        piece = 0;
      }
      const Range mine = data::piece_of(type.rows(batch), 1, piece++, ranks);
      if (mine.empty() && all_alike) continue;
      if (piece == ranks) return part_of(type, batch, mine);  // the last one of this batch
      return type.cut(batch, mine.begin, mine.end);
    }
  };
}

/// Under FILE and OFF, rule `balanced`: pieces span batch boundaries.
class Balanced {
 public:
  Balanced(const BatchType& type, Next next_batch, const Share& share)
      : type_(&type),
        next_batch_(std::move(next_batch)),
        sizes_(data::BalancedPieces(share.batch_size, share.ranks).sizes(share.rank)) {}

  Any operator()() {
    const std::uint64_t wanted = sizes_[turn_++ % sizes_.size()];
    std::vector<Any> parts;
    for (std::uint64_t have = 0; have < wanted; have += type_->rows(parts.back())) {
      if (at_ == end_ && !read()) break;
      const std::uint64_t some = std::min(wanted - have, end_ - at_);
      parts.push_back(part_of(*type_, batch_, {at_, at_ + some}));
      at_ += some;
    }
    if (parts.size() < 2) return parts.empty() ? nullptr : parts.front();
    return type_->join(parts);
  }

 private:
  bool read() {
    do {
      batch_ = next_batch_();
      if (!batch_) return false;
      at_ = 0;
      end_ = type_->rows(batch_);
    } while (end_ == 0);
    return true;
  }

  const BatchType* type_;
  Next next_batch_;
  std::vector<std::uint64_t> sizes_;
  std::size_t turn_ = 0;
  Any batch_;
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
};

/// The pieces of `epoch` for this share.
Next pieces_of(const AnyDataset& dataset, const Share& share, std::uint64_t epoch) {
  const BatchType& type = *dataset.type;
  auto reader = dataset.pipeline.open_plain(share.pass(epoch));
  if (share.plan) return planned(std::move(reader), share);
  if (share.endless_batches) return endless_batches(std::move(reader), share);
  auto batches = readers::values_of(std::move(reader));
  if (share.choice.policy == ShardPolicy::data) return kept(type, std::move(batches), share);
  if (share.rebatch == Rebatch::balanced) return Balanced(type, std::move(batches), share);
  const bool all_alike = share.choice.policy == ShardPolicy::off || share.ranks == 1;
  return own(type, std::move(batches), share, all_alike);
}

/// What is known of a data set's batches after the first one, in all epochs.
struct Memory {
  Any empty;                   ///< a batch of 0 examples; set once an example was read
  bool shapes_agreed = false;  ///< all ranks called agree_on_shapes
};

/// This rank's pieces of one epoch, read ahead. The first can be looked at before it is taken.
class Stream {
 public:
  Stream(const BatchType& type, Next pieces, std::size_t prefetch, std::shared_ptr<Memory> memory)
      : type_(&type), ahead_(std::move(pieces), prefetch), memory_(std::move(memory)) {}

  /// The next piece; null at the end.
  Any next() {
    if (!std::exchange(started_, true)) look();
    if (first_) return std::exchange(first_, nullptr);
    return read();
  }

  /// The spec of the pieces; reads the first one if nothing was read.
  ElementSpec spec(std::optional<std::size_t> rows) {
    if (!memory_->empty && !std::exchange(started_, true)) look();
    const auto& known = memory_->empty ? memory_->empty : first_ ? first_ : type_->unknown();
    return type_->spec(known, rows);
  }

  bool has_examples(const Any& piece) const { return piece != nullptr && type_->rows(piece) > 0; }
  bool knows_shape() const noexcept { return memory_->empty != nullptr; }
  bool shapes_agreed() const noexcept { return memory_->shapes_agreed; }

  /// Ranks without an example take shape and names of an empty batch from the first rank with one.
  /// Collective.
  void agree_on_shapes(comm::Communicator& comm) {
    const auto mine = knows_shape() ? type_->pack(memory_->empty) : std::string();
    for (const auto& theirs : comm::gather_text(comm, mine)) {
      if (theirs.empty()) continue;
      std::string_view structure = theirs;
      if (!knows_shape()) memory_->empty = type_->unpack(structure);
      break;
    }
    memory_->shapes_agreed = true;
  }

  /// `piece`, or a batch of 0 examples after the end of this rank's stream.
  Any filled(Any piece) const {
    if (piece && (has_examples(piece) || !memory_->empty)) return piece;
    return memory_->empty ? memory_->empty : type_->unknown();
  }

 private:
  Any read() {
    auto piece = ahead_.next();
    if (!memory_->empty && has_examples(piece)) memory_->empty = type_->cut(piece, 0, 0);
    return piece;
  }
  void look() { first_ = read(); }

  const BatchType* type_;
  Prefetcher ahead_;
  std::shared_ptr<Memory> memory_;
  bool started_ = false;
  Any first_;
};

/// How the end of an epoch is determined.
enum class Ending {
  alone,    ///< from this rank's own stream
  counted,  ///< after StepRule::count steps
  asked,    ///< by a message per step
};

/// What is known of the steps of all epochs.
struct StepRule {
  Ending ending = Ending::alone;
  std::uint64_t count = 0;                         ///< if `counted`
  std::optional<std::size_t> rows = std::nullopt;  ///< Share::fixed_rows
  std::uint64_t in_plan = 0;                       ///< steps of the training plan; 0: none
  bool some_empty = false;  ///< a rank never has an example: shapes are exchanged at step 0
};

}  // namespace

/// A distributed data set, and its epochs.
struct DistributedBatches::State {
  comm::Communicator* comm;
  const BatchType* type;
  std::function<Next(std::uint64_t epoch)> pieces;
  std::size_t prefetch = 0;
  StepRule rule = {};
  std::optional<data::Plan> plan = std::nullopt;  ///< to train by
  bool is_endless = false;                        ///< its steps are
  WhyNoPlan why_no_plan = {};
  data::PolicyChoice choice = {};

  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  std::uint64_t epoch = 0;                    ///< the next one
  std::shared_ptr<Stream> waiting = nullptr;  ///< of `epoch`, opened by element_spec()
  std::weak_ptr<Stream> latest = {};          ///< of the last iterator

  std::shared_ptr<Stream> open(std::uint64_t of_epoch) const {
    return std::make_shared<Stream>(*type, pieces(of_epoch), prefetch, memory);
  }
};

class pieces::Steps {
 public:
  Steps(comm::Communicator& comm, std::shared_ptr<Stream> stream, const StepRule& rule)
      : comm_(&comm), stream_(std::move(stream)), rule_(rule) {}

  Step next() {
    if (ended_) return {};
    auto piece = rule_.ending == Ending::asked ? next_asked() : next_known();
    ended_ = !piece;
    if (ended_ || rule_.in_plan == 0) return {std::move(piece)};
    return {std::move(piece), read_++ % rule_.in_plan};
  }

  ElementSpec spec() const { return stream_->spec(rule_.rows); }

 private:
  Any next_known() {
    if (rule_.ending == Ending::alone && !rule_.some_empty) return stream_->next();
    if (rule_.ending == Ending::counted) {
      if (step_ == rule_.count) return nullptr;
      if (rule_.count != endless) ++step_;
    }
    auto piece = stream_->next();
    if (!piece && rule_.ending == Ending::alone) return nullptr;
    if (rule_.some_empty && !stream_->shapes_agreed()) stream_->agree_on_shapes(*comm_);
    return stream_->filled(std::move(piece));
  }

  /// Skips steps at which no replica has an example.
  Any next_asked() {
    while (true) {
      std::exception_ptr failure;
      Any piece;
      bool has_examples = false;
      try {
        piece = stream_->next();
        has_examples = stream_->has_examples(piece);
      } catch (...) {
        failure = std::current_exception();
      }
      const auto news = any_rank(
          *comm_, {has_examples, piece != nullptr, failure != nullptr, !stream_->knows_shape()});
      if (news.failed) {
        comm::together(*comm_, [&] {
          if (failure) std::rethrow_exception(failure);
        });
      }
      if (news.has_examples && news.lacks_shape) stream_->agree_on_shapes(*comm_);
      if (news.has_examples) return stream_->filled(std::move(piece));
      if (!news.has_more) return nullptr;
    }
  }

  comm::Communicator* comm_;
  std::shared_ptr<Stream> stream_;
  StepRule rule_;
  std::uint64_t step_ = 0;
  std::uint64_t read_ = 0;
  bool ended_ = false;
};

namespace pieces {
LOCKSTEP_USUAL_BATCHES()
}

pieces::Step pieces::next_step(Steps& steps) { return steps.next(); }
ElementSpec pieces::element_spec(const Steps& steps) { return steps.spec(); }

OutOfRange::OutOfRange()
    : Error(ExitCode::internal, "no replica has data for another step",
            "catch it and go on with the next epoch, or use next_as_optional()") {}

std::shared_ptr<pieces::Steps> DistributedBatches::steps(std::optional<std::uint64_t> epoch) const {
  const std::uint64_t wanted = epoch.value_or(state_->epoch);
  auto stream = std::exchange(state_->waiting, nullptr);
  if (!stream || state_->epoch != wanted) stream = state_->open(wanted);
  state_->latest = stream;
  state_->epoch = wanted + 1;
  return std::make_shared<pieces::Steps>(*state_->comm, std::move(stream), state_->rule);
}

ElementSpec DistributedBatches::element_spec() const {
  const auto& rows = state_->rule.rows;
  if (auto latest = state_->latest.lock()) return latest->spec(rows);
  if (!state_->waiting && !state_->memory->empty) state_->waiting = state_->open(state_->epoch);
  if (state_->waiting) return state_->waiting->spec(rows);
  return state_->type->spec(state_->memory->empty, rows);
}

const data::Plan& DistributedBatches::plan() const {
  if (has_plan()) return *state_->plan;
  throw ConfigError("the distributed data set has no plan: " + state_->why_no_plan.problem,
                    state_->why_no_plan.remedy);
}

bool DistributedBatches::has_plan() const noexcept { return state_->plan.has_value(); }
bool DistributedBatches::is_endless() const noexcept { return state_->is_endless; }
comm::Communicator& DistributedBatches::communicator() const noexcept { return *state_->comm; }
data::ShardPolicy DistributedBatches::policy() const noexcept { return state_->choice.policy; }
const std::string& DistributedBatches::reason() const noexcept { return state_->choice.reason; }
const std::string& DistributedBatches::warning() const noexcept { return state_->choice.warning; }

std::shared_ptr<DistributedBatches::State> pieces::distribute(comm::Communicator& comm,
                                                              const AnyDataset& dataset,
                                                              const DistributeOptions& options) {
  const DatasetFacts& facts = dataset.pipeline.facts();
  const auto share = pieces::agree_on_share(comm, dataset.pipeline, options);
  if (!share.choice.warning.empty() && comm.rank() == 0) report_warning(share.choice.warning);
  return std::make_shared<DistributedBatches::State>(DistributedBatches::State{
      .comm = &comm,
      .type = dataset.type,
      .pieces = [dataset, share](std::uint64_t epoch) { return pieces_of(dataset, share, epoch); },
      .prefetch = options.prefetch.value_or(facts.reads_ahead ? facts.prefetch : 1),
      .rule = {.ending = share.ends_differ() ? Ending::asked : Ending::alone,
               .rows = share.fixed_rows(),
               .in_plan = share.training_plan ? share.training_plan->steps() : 0,
               .some_empty = share.some_empty()},
      .plan = share.training_plan,
      .is_endless = !share.has_end,
      .why_no_plan = share.why_no_plan,
      .choice = share.choice});
}

namespace {

/// The examples of every batch of a worker's own data set, if they are equal.
std::optional<std::size_t> own_rows(const DatasetFacts& facts,
                                    std::optional<std::uint64_t> examples) {
  if (facts.batch_size == 0) return std::nullopt;
  const bool full = examples && (*examples == endless || *examples % facts.batch_size == 0);
  if (!full && !facts.drop_remainder) return std::nullopt;
  return static_cast<std::size_t>(facts.batch_size);
}

bool are_equal(const std::vector<std::uint64_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to()) == numbers.end();
}

/// `rows` if it is the same on all ranks. Collective.
std::optional<std::size_t> if_equal(comm::Communicator& comm, std::optional<std::size_t> rows) {
  return are_equal(comm::gather_number(comm, rows.value_or(0))) ? rows : std::nullopt;
}

/// The plan of workers that batch data sets of their own: each reads its stream in pieces of
/// `batch_size` examples, as under FILE with rule `balanced`. nullopt unless all have the same
/// batch size and a known number of examples, within the limits of a plan. Collective.
std::optional<data::Plan> plan_of_workers(comm::Communicator& comm, std::uint64_t batch_size,
                                          std::optional<std::uint64_t> examples) {
  const bool known = examples && *examples != endless && batch_size > 0;
  const auto sizes = comm::gather_number(comm, known ? batch_size : 0);
  const auto counts = comm::gather_number(comm, known ? *examples : 0);
  if (sizes.front() == 0 || !are_equal(sizes)) return std::nullopt;
  const std::uint64_t ranks = sizes.size();
  constexpr std::uint64_t most = std::uint64_t{1} << 63;
  std::uint64_t records = 0;
  for (const std::uint64_t examples_of : counts) {
    if (examples_of > most / ranks - records) return std::nullopt;
    records += examples_of;
  }
  if (batch_size > most / ranks) return std::nullopt;
  return data::Plan({.records = records,
                     .batch_size = batch_size * ranks,
                     .ranks = ranks,
                     .policy = ShardPolicy::file,
                     .rebatch = Rebatch::balanced,
                     .file_records = counts});
}

}  // namespace

std::shared_ptr<DistributedBatches::State> pieces::distribute_made(
    comm::Communicator& comm, const std::function<AnyDataset()>& make) {
  std::optional<AnyDataset> made;
  std::optional<std::uint64_t> size;
  std::optional<std::uint64_t> examples;
  comm::together(comm, [&] {
    made = make();
    if (const auto& samples = made->pipeline.facts().samples) samples();  // are the files there?
    const auto reader = made->pipeline.open_plain({});
    size = reader->size();
    examples = reader->examples_before_map();
  });
  const DatasetFacts facts = made->pipeline.facts();
  const auto lengths = agree_on_lengths(comm, size);
  const auto rows = if_equal(comm, own_rows(facts, examples));
  const auto plan = plan_of_workers(comm, facts.batch_size, examples);
  return std::make_shared<DistributedBatches::State>(DistributedBatches::State{
      .comm = &comm,
      .type = made->type,
      .pieces =
          [pipeline = made->pipeline](std::uint64_t epoch) {
            return readers::values_of(pipeline.open({.epoch = epoch}));
          },
      .rule = {.ending = lengths ? Ending::counted : Ending::asked,
               .count = lengths ? lengths->longest : 0,
               .rows = lengths && lengths->equal ? rows : std::nullopt,
               .in_plan = plan ? plan->steps() : 0,
               .some_empty = lengths && lengths->some_empty},
      .plan = plan,
      .why_no_plan =
          {"the numbers of examples of all workers' data sets are not known before they "
           "are read, their batch sizes differ, or they are too large for a plan",
           "end each in batch(size), of one size; give the number of elements of a generator "
           "by assert_cardinality(n), before batch; or use "
           "distribute_dataset"},
      .choice = {ShardPolicy::data, "each worker's data set shards itself", ""}});
}

}  // namespace lockstep

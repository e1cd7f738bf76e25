// What each replica gets of random data sets, iterated, against the slow model of
// support/sharing_model.hpp.
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <random>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/sharing_model.hpp"

using namespace lockstep;
using data::Rebatch;
using data::ShardPolicy;
using support::Dealt;
using support::Ids;
using support::Sharing;

namespace {

using Numbers = Dataset<std::int64_t>;

/// How a data set is read: by its plan, batch by batch because batches are transformed, or in order
/// because nobody knows its length.
enum class Kind { planned, transformed, stream };

/// A random data set and the options of distribute_dataset, all drawn from a seed.
struct Case {
  explicit Case(unsigned seed) : random(seed) {
    sharing.ranks = 1 + below(5);
    sharing.batch = 1 + below(16);
    sharing.policy = std::array{ShardPolicy::automatic, ShardPolicy::file, ShardPolicy::data,
                                ShardPolicy::off}[below(4)];
    sharing.drop_remainder = below(4) == 0;
    from_files = sharing.policy == ShardPolicy::file || below(2) == 0;
    const std::uint64_t files = from_files ? sharing.ranks + below(4) : 1;
    const std::uint64_t longest = below(3) == 0 ? 4 : 30;  // short ones: empty workers
    for (std::uint64_t i = 0; i < files; ++i) sharing.files.push_back(below(longest));
    kind = std::array{Kind::planned, Kind::transformed, Kind::stream}[below(3)];
    shuffled = below(3);
    repeated = below(4) == 0 ? 2 : 1;
    skipped = below(4) == 0 ? below(5) : 0;
    options.policy = sharing.policy;
    if (sharing.policy == ShardPolicy::automatic) {
      sharing.policy = from_files ? ShardPolicy::file : ShardPolicy::data;
    }
    if (below(2) == 0 && sharing.policy != ShardPolicy::data && sharing.batch >= sharing.ranks &&
        kind != Kind::transformed) {
      sharing.rebatch = Rebatch::balanced;
    }
    if (sharing.policy == ShardPolicy::data) sharing.leaf = 1 + below(2) * below(4);
    options.rebatch = sharing.rebatch;
    options.leaf = sharing.leaf;
    if (below(2) == 0) options.prefetch = below(3);
  }

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }

  /// The numbers 0, 1, ... through all files, before anything is shuffled.
  Numbers numbers() const {
    const auto open = [sharing = sharing, stream = kind == Kind::stream](const Pass& pass) {
      Sharing dealt = sharing;  // by the pass, not by the policy
      dealt.ranks = pass.workers;
      dealt.policy = ShardPolicy::file;
      const Ids ids = support::told_stream(dealt, pass.worker);
      const auto all = from_elements(std::vector<std::int64_t>(ids.begin(), ids.end()));
      const auto& sized = all.pipeline();
      const auto unsized = sized.filter([](const readers::Any&) { return true; });
      return (stream ? unsized : sized).open(pass);
    };
    Numbers numbers(readers::Pipeline(
        open, {.files = from_files ? sharing.files.size() : 0, .identity = "numbers"}));
    if (skipped > 0) numbers = numbers.skip(skipped);
    if (shuffled == 1 && kind != Kind::stream) numbers = numbers.shuffle(7);
    if (shuffled == 2) numbers = numbers.shuffle(7, 5);
    return repeated == 1 ? numbers : numbers.repeat(repeated);
  }

  std::string text() const {
    return std::string(data::name_of(options.policy)) + ", " + data::name_of(sharing.rebatch) +
           ", files " + to_text(Tensor<std::uint64_t>(sharing.files)) +
           (from_files ? "" : " (no files)") + ", batch " + std::to_string(sharing.batch) +
           ", ranks " + std::to_string(sharing.ranks) + ", leaf " + std::to_string(sharing.leaf) +
           (sharing.drop_remainder ? ", drop_remainder" : "") + ", kind " +
           std::to_string(static_cast<int>(kind)) + ", shuffle " + std::to_string(shuffled) +
           ", repeat " + std::to_string(repeated) + ", skip " + std::to_string(skipped);
  }

  std::mt19937 random;
  Sharing sharing;
  DistributeOptions options;
  bool from_files = false;
  Kind kind = Kind::planned;
  std::uint64_t shuffled = 0;  // 1: all, 2: among 5
  std::uint64_t repeated = 1;
  std::uint64_t skipped = 0;
};

/// What the pass of each rank has in `epoch`. Shuffling may reorder the elements of a repetition,
/// and nothing else.
std::vector<Ids> streams_of(const Case& test, const Numbers& numbers, std::uint64_t epoch) {
  std::vector<Ids> streams;
  const bool by_files = test.sharing.policy == ShardPolicy::file;
  for (std::uint64_t rank = 0; rank < test.sharing.ranks; ++rank) {
    Ids once = support::told_stream(test.sharing, rank);
    once.erase(once.begin(), once.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(
                                                test.skipped, once.size())));
    Ids plain;
    for (std::uint64_t i = 0; i < test.repeated; ++i) {
      plain.insert(plain.end(), once.begin(), once.end());
    }
    Ids read;
    const auto reader =
        numbers.pipeline().open({epoch, by_files ? rank : 0, by_files ? test.sharing.ranks : 1});
    while (const auto item = reader->next())
      read.push_back(static_cast<std::uint64_t>(readers::value_in<std::int64_t>(item->value)));
    streams.push_back(read);
    if (test.shuffled == 0) REQUIRE(read == plain);
    for (std::uint64_t i = 0; i < test.repeated; ++i) {
      REQUIRE(std::is_permutation(read.begin() + static_cast<std::ptrdiff_t>(i * once.size()),
                                  read.begin() + static_cast<std::ptrdiff_t>((i + 1) * once.size()),
                                  once.begin(), once.end()));
    }
    REQUIRE(read.size() == plain.size());
  }
  return streams;
}

// An element of several parts: (two numbers, {"id": its number}).
using Element = std::pair<Tensor<float>, std::map<std::string, std::int64_t>>;
using Batch = Batched<Element>;

Element element_of(std::int64_t id) {
  const auto number = static_cast<float>(id);
  return {Tensor<float>{number, number + 0.5F}, {{"id", id}}};
}

/// The ids of a replica's batch. Throws unless all parts have the shape and the values of these.
Ids ids_of(const Tensor<float>& numbers, const std::map<std::string, Tensor<std::int64_t>>& named) {
  const auto& ids = named.at("id");
  if (ids.shape().size() != 1 || numbers.shape() != Shape{ids.rows(), 2}) {
    throw std::logic_error("shapes " + to_text(numbers.shape()) + to_text(ids.shape()));
  }
  for (std::size_t i = 0; i < ids.rows(); ++i) {
    if (numbers.rows(i, i + 1) != Tensor<float>({1, 2}, [&] {
          const Element element = element_of(ids.values()[i]);
          return std::vector<float>(element.first.values().begin(), element.first.values().end());
        }())) {
      throw std::logic_error("parts of different elements");
    }
  }
  return {ids.values().begin(), ids.values().end()};
}

/// Step -> this rank's ids, of the next epoch. Throws unless it has ended for good.
std::vector<Ids> own_steps(const Strategy& strategy, const DistributedDataset<Batch>& distributed) {
  std::vector<Ids> steps;
  auto iterator = distributed.make_iterator();
  while (const auto batch = iterator.next_as_optional()) {
    steps.push_back(strategy.local_results(strategy.run(ids_of, *batch)).front());
  }
  try {
    iterator.next();
  } catch (const OutOfRange&) {
    return steps;
  }
  throw std::logic_error("a step after the end");
}

/// Step -> rank -> ids of both epochs.
std::array<Dealt, 2> iterated(const Case& test, const Numbers& numbers) {
  auto batches = numbers.map(element_of).batch(test.sharing.batch, test.sharing.drop_remainder);
  if (test.kind == Kind::transformed) {
    batches =
        batches.map([](const Tensor<float>& x, const auto& named) { return Batch(x, named); });
  }
  const auto ranks = test::per_rank(static_cast<int>(test.sharing.ranks), [&](auto& comm) {
    Strategy strategy(comm);
    const auto distributed = strategy.distribute_dataset(batches, test.options);
    auto first = own_steps(strategy, distributed);
    return std::array{std::move(first), own_steps(strategy, distributed)};
  });
  std::array<Dealt, 2> epochs;
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      REQUIRE(ranks[rank][epoch].size() == ranks[0][epoch].size());  // all end together
      epochs[epoch].resize(ranks[rank][epoch].size(), std::vector<Ids>(ranks.size()));
      for (std::size_t step = 0; step < ranks[rank][epoch].size(); ++step) {
        epochs[epoch][step][rank] = ranks[rank][epoch][step];
      }
    }
  }
  return epochs;
}

}  // namespace

TEST_CASE("replicas get of random data sets what the guide's rules say", "[distribute]") {
  for (unsigned seed = 1; seed <= 1500; ++seed) {
    const Case test(seed);
    INFO("seed " << seed << ": " << test.text());
    const Numbers numbers = test.numbers();
    const auto epochs = iterated(test, numbers);
    for (std::size_t epoch = 0; epoch < 2; ++epoch) {
      REQUIRE(epochs[epoch] == support::told(test.sharing, streams_of(test, numbers, epoch)));
    }
  }
}

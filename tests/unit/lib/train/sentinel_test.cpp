// Faults planted into one rank of three, and whether they are found and named.
#include <bit>
#include <catch2/catch.hpp>
#include <regex>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/numerics/products.hpp"
#include "lockstep/train/integrity.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using Catch::Contains;

namespace {

constexpr std::uint64_t fault_step = 5;

void flip(float& value, int bit) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << bit));
}

struct Outcome {
  int code = 0;
  std::string text;
  std::optional<int> rank = std::nullopt;  ///< at fault
  std::uint64_t good_steps = 0;
};

Outcome outcome_of(int ranks, const ToyRun& run) {
  try {
    comm::run_ranks(ranks, [&](comm::Communicator& comm) { train_toy(comm, run); });
  } catch (const train::FaultFound& error) {
    return {static_cast<int>(error.code()), error.what(), error.rank(), error.good_steps()};
  }
  return {};
}

/// The step that a message names.
std::uint64_t step_in(const std::string& text) {
  std::smatch found;
  return std::regex_search(text, found, std::regex("step ([0-9]+)")) ? std::stoull(found[1]) : 0;
}

/// Passes everything on, and flips a bit of what one call gives, or that and all later ones.
class FaultyProducts final : public ForwardingProducts<float> {
 public:
  enum class Fault { forward, input, weights };

  FaultyProducts(std::unique_ptr<Products<float>> inner, Fault fault, int call, bool lasts = false)
      : ForwardingProducts(std::move(inner)), fault_(fault), call_(call), lasts_(lasts) {}

  void forward(Matrix<const float> x, const LayerWeights<float>& w, Activation activation,
               Matrix<float> y, const Part& part) override {
    ForwardingProducts::forward(x, w, activation, y, part);
    spoil(Fault::forward, y.flat());
  }
  void backward_input(Matrix<const float> dz, const LayerWeights<float>& w, Matrix<const float> x,
                      Activation below, Matrix<float> dx, const Part& part) override {
    ForwardingProducts::backward_input(dz, w, x, below, dx, part);
    spoil(Fault::input, dx.flat());
  }
  void backward_weights(Matrix<const float> x, Matrix<const float> dz, std::size_t leaf,
                        Range slice, std::span<float> dw) override {
    ForwardingProducts::backward_weights(x, dz, leaf, slice, dw);
    spoil(Fault::weights, dw);
  }

 private:
  void spoil(Fault fault, std::span<float> values) {
    if (fault != fault_ || values.empty()) return;
    const int call = calls_++;
    if (call != call_ && !(lasts_ && call > call_)) return;
    flip(values[0], 20);
  }

  Fault fault_;
  int call_;
  bool lasts_;
  int calls_ = 0;
};

ToyRun audited(FaultyProducts::Fault fault, int call, bool lasts = false) {
  return {.audit_every = 1, .wrap = [=](std::unique_ptr<Products<float>> inner, int rank) {
            std::unique_ptr<Products<float>> products = std::move(inner);
            if (rank == 1) {
              products = std::make_unique<FaultyProducts>(std::move(products), fault, call, lasts);
            }
            return products;
          }};
}

}  // namespace

TEST_CASE("without a fault nobody is accused", "[sentinel]") {
  const bool canonical = GENERATE(true, false);
  CHECK(outcome_of(3, {.canonical = canonical}).code == 0);
  CHECK(outcome_of(GENERATE(1, 2, 3, 5), {.audit_every = 1}).code == 0);
  // Logits so far apart that probabilities are 1 and 0: the gradient then shows no label.
  CHECK(outcome_of(3, {.audit_every = 1, .learning_rate = 10.0F}).code == 0);
}

TEST_CASE("allreduce: a bit that flips once in one rank's weights is found", "[sentinel]") {
  const int bit = GENERATE(6, 12, 22, 31);  // the lowest may be lost in the next rounding
  const double where = GENERATE(0.0, 0.3, 0.7);
  const auto found = outcome_of(3, {.batch_size = 4,
                                    .canonical = false,
                                    .disturb = [=](auto& network, int rank, std::uint64_t step) {
                                      if (rank != 1 || step != fault_step) return;
                                      const auto w = network.parameters().value(2);
                                      flip(w[static_cast<std::size_t>(where * 100)], bit);
                                    }});
  CHECK(found.code == 70);
  CHECK_THAT(found.text,
             Contains("1.weight") && Contains("on rank 1 ") && Contains("the other 2 ranks"));
  CHECK(step_in(found.text) >= fault_step);
  CHECK(step_in(found.text) < fault_step + train::ReplicaOptions().sentinel_steps);
}

TEST_CASE("canonical: a bit that is stuck in one rank's weights is found", "[sentinel]") {
  const auto found =
      outcome_of(3, {.batch_size = 4, .disturb = [](auto& network, int rank, std::uint64_t step) {
                       if (rank == 2 && step >= fault_step)
                         flip(network.parameters().value(0)[7], 3);
                     }});
  CHECK(found.code == 70);
  CHECK_THAT(found.text, Contains("0.weight") && Contains("on rank 2 "));
  CHECK(step_in(found.text) < fault_step + train::ReplicaOptions().sentinel_steps);
}

TEST_CASE("canonical: a bit that flips once is found before it is read, where all is compared",
          "[sentinel]") {
  const int bit = GENERATE(0, 12, 31);
  const std::size_t tensor = GENERATE(0, 3, 4);
  ToyRun run = {.batch_size = 4,
                .disturb =
                    [=](auto& network, int rank, std::uint64_t step) {
                      if (rank == 1 && step == fault_step)
                        flip(network.parameters().value(tensor)[1], bit);
                    },
                .sentinel_steps = 1};
  const auto found = outcome_of(3, run);
  CHECK(found.code == 70);
  CHECK_THAT(found.text, Contains("on rank 1 ") && Contains("the other 2 ranks"));
  CHECK(step_in(found.text) <= fault_step + 1);
  run.sentinel_steps = train::ReplicaOptions().sentinel_steps;
  CHECK(outcome_of(3, run).code == 0);  // the next publication heals it, or spreads it
}

TEST_CASE("with two ranks both are named", "[sentinel]") {
  const auto found = outcome_of(2, {.batch_size = 4,
                                    .canonical = false,
                                    .disturb = [](auto& network, int rank, std::uint64_t step) {
                                      if (rank == 1 && step == fault_step) {
                                        flip(network.parameters().value(0)[0], 3);
                                      }
                                    }});
  CHECK(found.code == 70);
  CHECK_THAT(found.text, Contains("rank 0") && Contains("rank 1"));
  CHECK_FALSE(found.rank);
}

TEST_CASE("allreduce: the last weight is compared, whatever part of all a step compares",
          "[sentinel]") {
  const std::uint64_t sentinel_steps = GENERATE(1U, 3U, 7U, 11U, 16U);
  const auto found = outcome_of(3, {.batch_size = 4,
                                    .canonical = false,
                                    .disturb =
                                        [](auto& network, int rank, std::uint64_t step) {
                                          if (rank != 1 || step != fault_step) return;
                                          flip(network.parameters().values().back(), 20);
                                        },
                                    .sentinel_steps = sentinel_steps});
  CHECK(found.code == 70);
  CHECK(step_in(found.text) < fault_step + 16);
}

TEST_CASE("allreduce: an update that one rank skips is found", "[sentinel]") {
  auto kept = std::make_shared<std::vector<float>>();
  const auto found = outcome_of(3, {.batch_size = 4,
                                    .canonical = false,
                                    .disturb = [=](auto& network, int rank, std::uint64_t step) {
                                      if (rank != 0) return;
                                      const auto values = network.parameters().values();
                                      if (step == fault_step) {
                                        kept->assign(values.begin(), values.end());
                                      }
                                      if (step == fault_step + 1) {
                                        std::copy(kept->begin(), kept->end(), values.begin());
                                      }
                                    }});
  CHECK(found.code == 70);
  CHECK_THAT(found.text, Contains("on rank 0 "));
}

TEST_CASE("the audit finds a bit that flips in a gradient or an activation", "[audit]") {
  using Fault = FaultyProducts::Fault;
  // There are 12 leaves of 2 examples; rank 1 owns leaves 4 to 7, and step 4 audits leaf 4. Before
  // that rank 1 audits rank 0, so the first call of step 4 is number 18 of forward (three layers)
  // and number 12 of backward_input (two).
  const auto weights = outcome_of(3, audited(Fault::weights, 4));
  CHECK(weights.code == 70);
  CHECK_THAT(weights.text, Contains("rank 1 computed its slice") && Contains("rank 2"));
  CHECK(weights.rank == 1);

  const auto forward = outcome_of(3, audited(Fault::forward, 18));
  CHECK(forward.code == 70);
  CHECK_THAT(forward.text, Contains("audit of step 4") && Contains("leaf 4") &&
                               Contains("rank 1 computed") && Contains("rank 2 computed") &&
                               Contains("computed by all ranks, rank 1 was wrong"));
  CHECK(forward.rank == 1);
  CHECK(forward.good_steps == 3);  // it does not happen again: step 4 alone is in doubt
  const auto lasting = outcome_of(3, audited(Fault::forward, 18, true));
  CHECK_THAT(lasting.text, Contains("computed by all ranks, rank 1 was wrong"));
  CHECK(lasting.good_steps == 0);  // the round of audits began in step 1
  // In call 17 of forward rank 1 audits rank 0, in step 3.
  const auto auditor = outcome_of(3, audited(Fault::forward, 17));
  CHECK_THAT(auditor.text, Contains("audit of step 3: rank 0 computed"));
  CHECK(auditor.rank == 1);
  CHECK(outcome_of(2, audited(Fault::forward, 30)).rank == 1);  // both agree when they repeat it
  // Step 9, the last of an epoch, has one leaf, which rank 1 audits: the steps before in which
  // others were audited are in doubt, too. Forward has been called 24 times in steps and 9 in
  // audits of leaves 1 to 3.
  auto last = audited(Fault::forward, 33, true);
  last.records = 193;
  const auto short_batch = outcome_of(3, last);
  CHECK_THAT(short_batch.text, Contains("audit of step 9") && Contains("rank 1 was wrong"));
  CHECK(short_batch.good_steps == 0);

  const auto input = outcome_of(3, audited(Fault::input, 12));
  CHECK(input.code == 70);
  CHECK_THAT(input.text, Contains("audit of step 4") && Contains("leaf 4"));
}

TEST_CASE("the audit of one rank finds what does not happen twice", "[audit]") {
  auto run = audited(FaultyProducts::Fault::weights, 4);
  run.wrap = [](std::unique_ptr<Products<float>> inner, int) -> std::unique_ptr<Products<float>> {
    return std::make_unique<FaultyProducts>(std::move(inner), FaultyProducts::Fault::weights, 3);
  };
  const auto found = outcome_of(1, run);
  CHECK(found.code == 70);
  CHECK_FALSE(found.rank);
}

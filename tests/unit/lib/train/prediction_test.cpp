#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/evaluation.hpp"
#include "tests/support/toy_source.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// One rank's network with first weights over a toy set of 2,500 records: three global batches.
struct Setting {
  static constexpr std::size_t features = 12;
  ToySource source{2500, features, 4};
  std::unique_ptr<Products<float>> products = make_strict_products(Simd::automatic);
  data::Plan plan;
  nn::Network<float> network;
  data::BatchReader reader;
  std::unique_ptr<Inference> inference = make_inference(network);

  explicit Setting(comm::Communicator& comm)
      : plan(evaluation_plan(source.records(), comm.size())),
        network({features, {9}, 4}, plan.largest_piece(), *products),
        reader(source, plan, comm.rank()) {
    nn::initialise(network, {22, 23});
  }
};

std::vector<Prediction> predictions_of(int ranks) {
  std::vector<Prediction> all;
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    Setting setting(comm);
    predict(*setting.inference, setting.reader, comm, [&](std::span<const Prediction> batch) {
      if (comm.rank() != 0) throw std::logic_error("predictions on another rank than 0");
      all.insert(all.end(), batch.begin(), batch.end());
    });
  });
  return all;
}

}  // namespace

TEST_CASE("the counts of each class come from the confusion matrix", "[predict]") {
  Evaluation test;
  CHECK(test.classes().empty());
  test.confusion = {3, 1, 0,   // of 4 examples of class 0, one is taken for 1
                    0, 0, 0,   // no example of class 1
                    0, 2, 0};  // class 2 is never predicted
  const auto classes = test.classes();
  REQUIRE(classes.size() == 3);
  CHECK(classes[0].examples == 4);
  CHECK(classes[0].predicted == 3);
  CHECK(classes[0].correct == 3);
  CHECK(classes[0].recall() == 0.75);
  CHECK(classes[0].precision() == 1.0);
  CHECK(classes[0].f1() == 6.0 / 7);
  CHECK(classes[1].recall() == std::nullopt);
  CHECK(classes[1].precision() == 0.0);
  CHECK(classes[2].recall() == 0.0);
  CHECK(classes[2].precision() == std::nullopt);
  CHECK(ClassCounts().f1() == std::nullopt);
}

TEST_CASE("predictions are the same for any number of ranks, in order", "[predict]") {
  const auto alone = predictions_of(1);
  REQUIRE(alone.size() == 2500);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    REQUIRE(alone[i].id == i);
    REQUIRE(alone[i].label >= 0);
    REQUIRE(alone[i].label < 4);
    REQUIRE(alone[i].probability >= 0.25F);
    REQUIRE(alone[i].probability <= 1.0F);
  }
  for (const int ranks : {2, 3, 5, 8}) {
    const auto several = predictions_of(ranks);
    REQUIRE(several.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      REQUIRE(several[i].id == i);
      REQUIRE(several[i].label == alone[i].label);
      REQUIRE(several[i].probability == alone[i].probability);
    }
  }
}

TEST_CASE("predictions agree with the evaluation's count", "[predict]") {
  std::uint64_t correct = 0;
  Evaluation evaluation;
  comm::run_ranks(1, [&](comm::Communicator& comm) {
    Setting setting(comm);
    evaluation =
        evaluate(*setting.inference, setting.network.loss_function(), setting.reader, comm);
    std::vector<float> x(Setting::features);
    predict(*setting.inference, setting.reader, comm, [&](std::span<const Prediction> batch) {
      for (const Prediction& prediction : batch) {
        std::int32_t label = 0;
        setting.source.read({&prediction.id, 1}, x, {&label, 1});
        correct += label == prediction.label ? 1 : 0;
      }
    });
  });
  CHECK(correct == evaluation.correct);
  CHECK(evaluation.ids_digest == data::digest_of_all(2500).value());
}

TEST_CASE("the probability is that of the softmax", "[predict]") {
  const std::vector<float> logits = {1.0F, -2.0F, 3.0F, 0.5F};
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z));
  CHECK(nn::greatest_probability<float>(logits) == Approx(std::exp(3.0) / sum).epsilon(1e-6));
  const std::vector<float> huge = {1e30F, -1e30F};
  CHECK(nn::greatest_probability<float>(huge) == 1.0F);
}

TEST_CASE("outputs that are not finite end every rank with code 76", "[predict]") {
  std::vector<int> codes(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    Setting setting(comm);
    setting.network.parameters().value(0)[0] = std::numeric_limits<float>::quiet_NaN();
    try {
      predict(*setting.inference, setting.reader, comm, [](std::span<const Prediction>) {});
    } catch (const comm::AgreedError& error) {
      codes[static_cast<std::size_t>(comm.rank())] = static_cast<int>(error.code());
    }
  });
  CHECK(codes == std::vector<int>{76, 76, 76});
}

TEST_CASE("a record evaluated twice, or not at all, ends every rank with code 70", "[predict]") {
  std::vector<int> codes(3);
  comm::run_ranks(3, [&](comm::Communicator& comm) {
    data::IdsDigest mine;
    const auto rank = static_cast<std::uint64_t>(comm.rank());
    for (std::uint64_t id = rank; id < 30; id += 3) mine.add(id == 29 ? 28 : id);
    try {
      certify_ids(mine, 30, comm);
    } catch (const comm::AgreedError& error) {
      codes[rank] = static_cast<int>(error.code());
    }
  });
  CHECK(codes == std::vector<int>{70, 70, 70});
}

TEST_CASE("R2 of equal values is 1 without an error, else 0", "[predict]") {
  for (const double value : {12.0, 0.1, 1e6}) {
    ValueSums exact;
    ValueSums wrong;
    for (int i = 0; i < 999; ++i) {
      exact.add(value, value);
      wrong.add(value + 1, value);
    }
    CHECK(exact.r2() == 1);
    CHECK(wrong.r2() == 0);
    CHECK(wrong.rmse() == Approx(1));
  }
  ValueSums sums;
  for (const double value : {1.0, 2.0, 6.0}) sums.add(3, value);  // always the mean
  CHECK(sums.r2() == 0);
}

TEST_CASE("metrics have the figures of scikit-learn", "[predict]") {
  // sklearn.metrics.roc_auc_score of these probabilities; equal ones are counted half
  const ScoredSet two = {.outputs = 2,
                         .scores = {0.9F, 0.1F, 0.6F, 0.4F, 0.65F, 0.35F, 0.2F, 0.8F, 0.6F, 0.4F},
                         .labels = {0, 0, 1, 1, 1}};
  CHECK(area_under_curve().of_set(two) == 0.75);
  const ScoredSet flags = {.outputs = 2,
                           .scores = {0.1F, 0.5F, 0.4F, 0.5F, 0.35F, 0.5F, 0.8F, 0.5F},
                           .values = {0, 1, 0, 0, 1, 1, 1, 0}};
  CHECK(area_under_curve().of_set(flags) == (0.75 + 0.5) / 2);
  CHECK_THROWS_AS(area_under_curve().of_set({.outputs = 1, .scores = {0.5F}, .values = {1}}),
                  DataError);

  const std::vector<float> outputs = {1, 3, 2, 3};
  const auto is_in = [&](std::size_t k, std::int32_t label) {
    return top_k(k).of_example(outputs, nn::Targets(std::span(&label, 1))) == 1;
  };
  CHECK(is_in(1, 1));
  CHECK_FALSE(is_in(1, 3));  // equal to output 1, and after it
  CHECK(is_in(2, 3));
  CHECK_FALSE(is_in(2, 2));
  CHECK(is_in(3, 2));
  CHECK_THROWS_AS(metric_named("top-4", nn::TargetKind::label, 4), ConfigError);
  CHECK_THROWS_AS(metric_named("top-", nn::TargetKind::label, 4), ConfigError);
  CHECK_THROWS_AS(metric_named("top-1x", nn::TargetKind::label, 4), ConfigError);
  CHECK_THROWS_AS(metric_named("top-2", nn::TargetKind::flags, 4), ConfigError);
  CHECK_THROWS_AS(metric_named("auc", nn::TargetKind::values, 4), ConfigError);
  CHECK(metric_named("top-3", nn::TargetKind::label, 4).name == "top-3");
}

#include "lockstep/train/replica.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/step.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/toy_run.hpp"

using namespace lockstep;
using test::refusal_of;

namespace {

template <class Loss>
concept Kept = requires(nn::Network<float>& network) {
  network.set_loss(std::declval<Loss>());
};
static_assert(Kept<const nn::MeanSquaredError<float>&>);
static_assert(!Kept<nn::MeanSquaredError<float>>, "a temporary loss would be gone when it is used");

constexpr std::size_t features = 12;
constexpr int classes = 4;
constexpr std::uint64_t records = 203;
constexpr std::uint64_t epochs = 3;

data::Plan plan_for(int ranks) {
  return data::Plan({.records = records,
                     .batch_size = 24,
                     .ranks = static_cast<std::uint64_t>(ranks),
                     .shuffle = data::Shuffle::global});
}

const train::ReplicaOptions options = {
    .optimizer = {.learning_rate = static_cast<double>(ToyRun{}.learning_rate)}};

struct Result {
  std::uint64_t hash = 0;
  double loss_sum = 0;
  double test_loss = 0;
  std::vector<std::int32_t> predicted;
  bool operator==(const Result&) const = default;
};

/// The loop of train_toy(), written by hand, in micro-batches unless these are 0.
Result train_in_parts(comm::Communicator& comm, std::size_t micro_batch) {
  const data::Plan plan = plan_for(comm.size());
  train::ReplicaOptions own = options;
  own.micro_batch = micro_batch;
  train::Replica replica({features, {19, 8}, classes}, plan, comm, own);
  ToySource source(records, features, classes, 1);
  data::BatchReader reader(source, plan, comm.rank());
  Result result;
  for (std::uint64_t step = 0; step < epochs * plan.steps(); ++step) {
    const std::uint64_t of_epoch = step % plan.steps();
    std::vector<float> x(reader.piece(of_epoch).size() * features);
    const auto batch = reader.read(step / plan.steps(), of_epoch, x);
    result.loss_sum += replica.train(of_epoch, x, batch.labels).loss_sum;
  }
  ToySource test(97, features, classes, 2);
  result.test_loss = replica.evaluate(test).loss();
  std::vector<std::uint64_t> ids(97);
  std::vector<float> x(ids.size() * features);
  std::vector<std::int32_t> labels(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  test.read(ids, x, labels);
  result.predicted = replica.predict(x);
  const auto probabilities = replica.probabilities(x);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = std::span<const float>(probabilities).subspan(i * classes, classes);
    if (std::accumulate(row.begin(), row.end(), 0.0F) != Approx(1).epsilon(1e-5)) {
      throw std::logic_error("probabilities whose sum is not 1");
    }
    if (nn::predicted_class(row) != static_cast<std::size_t>(result.predicted[i])) {
      throw std::logic_error("probabilities of another class");
    }
  }
  result.hash = replica.weights_hash();
  return result;
}

Result train_by_hand(comm::Communicator& comm) { return train_in_parts(comm, 0); }

/// The weights' hash after training on `epochs` epochs of a data set that `make(source)` makes, or
/// on as many steps.
template <class Make>
std::uint64_t trained_on(int ranks, Make make, std::optional<std::uint64_t> steps = {}) {
  return test::on_all(ranks, [&](comm::Communicator& comm) {
    Strategy strategy(comm);
    auto batches = strategy.distribute_dataset(
        make(from_source(std::make_shared<ToySource>(records, features, classes, 1))),
        {.policy = data::ShardPolicy::data});
    train::Replica replica({features, {19, 8}, classes}, batches, options);
    for (std::uint64_t epoch = 0; epoch < (steps ? 1 : epochs); ++epoch) {
      auto iterator = batches.make_iterator();
      while (auto batch = iterator.next_as_optional()) {
        replica.train(*batch);
        if (replica.steps() == steps) break;
      }
    }
    return replica.weights_hash();
  });
}

}  // namespace

TEST_CASE("ranks with a device have the same options of devices", "[train]") {
  const auto refusals = [](auto choose) {
    return test::per_rank(3, [&](comm::Communicator& comm) {
      return refusal_of([&] {
        train::ReplicaOptions mine;
        mine.device = train::Device::cuda;
        choose(comm, mine);
        const data::Plan plan = plan_for(comm.size());
        const train::Replica replica({features, {19}, classes}, plan, comm, mine);
      });
    });
  };
  const auto all = [](const std::string& text) { return std::vector<std::string>(3, text); };
  CHECK(refusals([](comm::Communicator& comm, train::ReplicaOptions& mine) {
          mine.share_device = comm.rank() == 2;
        }) ==
        all("2: the replica has share_device false, device_exchange automatic, devices null on "
            "rank 0, share_device true, device_exchange automatic, devices null on rank 2\n"
            "  remedy: give all ranks with a device the same"));
  for (const auto& text : refusals([](comm::Communicator&comm, train::ReplicaOptions&mine) {
         if (comm.rank() == 1) mine.device = train::Device::cpu;
       })) {
    CHECK_THAT(text, Catch::StartsWith("2: ") &&
                         Catch::Contains("device cuda on 2 ranks, but `devices` has 3"));
  }
}

TEST_CASE("a replica trains on a data set by its plan", "[train]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const auto same_example = [](Tensor<float> x, std::int32_t label) {
    return Example(std::move(x), label);
  };
  const auto same_batch = [](Tensor<float> x, Tensor<std::int32_t> labels) {
    return Batched<Example>(std::move(x), std::move(labels));
  };
  // Elements that can be read in order only.
  const auto streamed = [](const Dataset<Example>& dataset) {
    return dataset.filter([](const Tensor<float>&, std::int32_t) { return true; });
  };
  const std::uint64_t by_hand = test::on_all(1, train_by_hand).hash;
  CHECK(trained_on(ranks, [](auto data) { return data.shuffle(22).batch(24); }) == by_hand);
  CHECK(trained_on(ranks, [&](auto data) {
          return data.shuffle(22).map(same_example).batch(24).prefetch(2);
        }) == by_hand);
  CHECK(trained_on(ranks, [&](auto data) {
          return data.shuffle(22).batch(24).prefetch(2).map(same_batch).map(same_batch);
        }) == by_hand);
  const std::uint64_t full = trained_on(1, [](auto data) { return data.batch(24, true); });
  CHECK(full != by_hand);
  CHECK(trained_on(ranks, [&](auto data) { return streamed(data).batch(24, true); }) == full);
  const std::uint64_t steps = epochs * (records / 24);
  CHECK(trained_on(
            ranks, [](auto data) { return data.take(records / 24 * 24).repeat().batch(24); },
            steps) == full);
  CHECK(trained_on(
            ranks,
            [&](auto data) {
              return streamed(data.take(records / 24 * 24).repeat()).batch(24, true);
            },
            steps) == full);
  CHECK_THROWS_WITH(trained_on(ranks, [&](auto data) { return streamed(data).batch(24); }),
                    Catch::Contains("no plan") && Catch::Contains("last batch may be smaller") &&
                        Catch::Contains("batch(size, true)"));
  CHECK_THROWS_AS(trained_on(ranks,
                             [&](auto data) {
                               return data.batch(24).map([](Tensor<float> x, Tensor<std::int32_t>) {
                                 return Batched<Example>(x, Tensor<std::int32_t>({0}, {}));
                               });
                             }),
                  Error);
}

namespace {

/// -log of the density of a normal distribution (without its constant) with mean and logarithm of
/// variance as outputs; one value an example.
class NormalLikelihood final : public nn::Loss<float> {
 public:
  const char* name() const noexcept override { return "normal likelihood"; }
  nn::TargetKind target() const noexcept override { return nn::TargetKind::values; }
  std::size_t target_width(std::size_t) const noexcept override { return 1; }
  void run(Matrix<const float> z, const nn::Targets& targets, std::span<nn::ExampleResult> results,
           Matrix<float> dz) const override {
    for (std::size_t i = 0; i < z.rows; ++i) {
      const float error = z(i, 0) - targets.values[i];
      const float precision = std::exp(-z(i, 1));
      results[i] = {static_cast<double>((z(i, 1) + error * error * precision) / 2), 0};
      if (dz.rows == 0) continue;
      dz(i, 0) = error * precision;
      dz(i, 1) = (1 - error * error * precision) / 2;
    }
  }
};

}  // namespace

TEST_CASE("a loss takes values of a width of its own, and metrics are means", "[train]") {
  using Point = std::pair<Tensor<float>, Tensor<float>>;
  std::vector<Point> points;
  for (int i = 0; i < 50; ++i) {
    const float x = static_cast<float>(i) / 25 - 1;
    points.push_back({Tensor<float>{x, x * x}, Tensor<float>{1 - 2 * x}});
  }
  struct Fit {
    std::uint64_t hash = 0;
    double loss = 0;
    std::vector<double> metrics;
    double error = 0;  // the first metric, by hand
    std::uint64_t examples = 0;
    std::size_t values = 0;
    bool refuses_large = false;    // batches
    bool refuses_endless = false;  // data
    bool refuses_top_k = false;    // of values
    bool operator==(const Fit&) const = default;
  };
  const NormalLikelihood loss;
  const std::vector<train::Metric> metrics = {
      {"absolute error",
       [](std::span<const float> outputs, const nn::Targets& target) {
         return std::abs(static_cast<double>(outputs[0] - target.values[0]));
       }},
      {"constant", [](std::span<const float>, const nn::Targets&) { return 0.25; }}};
  const auto fit = [&](int ranks) {
    const Fit found = test::on_all(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      auto batches = strategy.distribute_dataset(from_elements(points).shuffle(5).batch(8));
      train::Replica replica({2, {6}, 2}, batches, {.loss = &loss});
      for (int epoch = 0; epoch < 5; ++epoch) {
        for (const auto& batch : batches) replica.train(batch);
      }
      auto in_order = strategy.distribute_dataset(from_elements(points).batch(20));
      const auto result = replica.evaluate(in_order, metrics);
      std::vector<float> x;
      for (const auto& [x_of, value] : points) {
        x.insert(x.end(), x_of.values().begin(), x_of.values().end());
      }
      const auto outputs = replica.outputs(x);
      double sum = 0;
      for (std::size_t i = 0; i < points.size(); ++i) {
        sum += std::abs(static_cast<double>(outputs[2 * i] - points[i].second.values()[0]));
      }
      auto large = strategy.distribute_dataset(from_elements(points).repeat(1000).batch(5000),
                                               {.policy = data::ShardPolicy::off});
      const bool refuses_large = refusal_of([&] { replica.evaluate(large); }) != "nothing";
      auto without_end = strategy.distribute_dataset(from_elements(points).repeat().batch(20));
      auto ahead =
          strategy.distribute_dataset(from_elements(points).repeat().batch(20).prefetch(2));
      auto batches_again =
          strategy.distribute_dataset(from_elements(points).batch(20, true).repeat());
      const bool refuses_endless =
          refusal_of([&] { replica.evaluate(without_end); }) != "nothing" &&
          refusal_of([&] { replica.evaluate(ahead); }) != "nothing" &&
          refusal_of([&] { replica.evaluate(batches_again); }) != "nothing";
      bool refuses_top_k = false;
      try {
        replica.evaluate(in_order, {train::top_k(1)});
      } catch (const ConfigError&) {
        refuses_top_k = true;
      }
      return Fit{.hash = replica.weights_hash(),
                 .loss = result.loss(),
                 .metrics = result.metrics,
                 .error = sum / 50,
                 .examples = result.examples,
                 .values = result.values.size(),
                 .refuses_large = refuses_large,
                 .refuses_endless = refuses_endless,
                 .refuses_top_k = refuses_top_k};
    });
    CHECK(found.examples == 50);
    CHECK(found.values == 0);  // no R2 of one value for two outputs
    CHECK(found.metrics.at(0) == Approx(found.error).epsilon(1e-12));
    CHECK(found.refuses_large);
    CHECK(found.refuses_endless);
    CHECK(found.refuses_top_k);
    return found;
  };
  const Fit one = fit(1);
  CHECK(one.metrics.at(1) == 0.25);
  for (const int ranks : {2, 3, 5}) CHECK(fit(ranks) == one);
}

TEST_CASE("records of a table with values train and are evaluated alike", "[train]") {
  const test::TemporaryFolder folder;
  {
    std::ofstream table(folder.path() / "table.csv");
    table << "a,b,label\n";
    for (int i = 0; i < 60; ++i)
      table << i % 7 << ',' << i % 5 << ',' << i % 7 * 0.5 - i % 5 << '\n';
  }
  const auto open = [&]() -> std::shared_ptr<data::Source> {
    return data::open_data_set(folder.path() / "table.csv",
                               {.classes = {},
                                .table = data::TableOptions{.label_columns = {"label"}},
                                .test_split = 0.2})
        .train;
  };
  CHECK_THROWS_AS(from_source(open()), ConfigError);
  struct Evaluated {
    std::uint64_t hash = 0;
    std::pair<double, double> of_source;  // the sum of the losses, and R2
    std::pair<double, double> of_elements;
    std::string probabilities;  // the error
    std::string predict;
    bool operator==(const Evaluated&) const = default;
  };
  const auto error_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const auto evaluated = [&](int ranks) {
    const Evaluated found = test::on_all(ranks, [&](comm::Communicator& comm) {
      Strategy strategy(comm);
      const auto training = open();
      auto batches = strategy.distribute_dataset(
          from_source_of_values(training).shuffle(3).batch(8), {.policy = data::ShardPolicy::data});
      const nn::RegressionLoss<float> loss;
      train::Replica replica({training->features(), {8}, 1}, batches,
                             {.optimizer = {.learning_rate = 0.02}, .loss = &loss});
      for (int epoch = 0; epoch < 20; ++epoch) {
        for (const auto& batch : batches) replica.train(batch);
      }
      const auto of_source = replica.evaluate(*training);
      auto elements =
          strategy.distribute_dataset(from_source_of_values(training)
                                          .map([](auto x, auto y) { return std::pair(x, y); })
                                          .batch(train::evaluation_batch),
                                      {.policy = data::ShardPolicy::data});
      const auto of_elements = replica.evaluate(elements);
      return Evaluated{replica.weights_hash(),
                       {of_source.loss_sum, of_source.score()},
                       {of_elements.loss_sum, of_elements.score()},
                       error_of([&] { replica.probabilities({}); }),
                       error_of([&] { replica.predict({}); })};
    });
    CHECK(found.of_source == found.of_elements);
    CHECK(found.of_source.second > 0.9);
    CHECK_THAT(found.probabilities, Catch::Contains("use outputs()"));
    CHECK_THAT(found.predict, Catch::Contains("is of values, not of classes"));
    return found;
  };
  const auto one = evaluated(1);
  for (const int ranks : {2, 3}) CHECK(evaluated(ranks) == one);
}

TEST_CASE("a program's own loop trains as the trainer does", "[train]") {
  const auto trainer = test::per_rank(2, [](comm::Communicator& comm) {
                         return train_toy(comm, {.epochs = epochs}).report;
                       }).front();
  const int ranks = GENERATE(1, 2, 3, 5);
  const Result own = test::on_all(ranks, train_by_hand);
  CHECK(own.hash == trainer.weights_hash);
  CHECK(own.test_loss == trainer.epochs.back().test.loss);
  CHECK(own.predicted.size() == 97);
  const auto [min, max] = std::minmax_element(own.predicted.begin(), own.predicted.end());
  CHECK(*min >= 0);
  CHECK(*max < classes);
  CHECK(*min != *max);
}

TEST_CASE("a replica refuses what does not fit its step", "[train]") {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    const data::Plan plan = plan_for(1);
    train::Replica replica({features, {}, classes}, plan, comm, options);
    std::vector<float> x(24 * features);
    std::vector<std::int32_t> labels(24);
    CHECK_THROWS_AS(replica.train(0, x, std::span(labels).first(23)), ConfigError);
    CHECK_THROWS_AS(replica.train(0, std::span(x).first(23), labels), ConfigError);
    CHECK_THROWS_AS(replica.predict(std::span(x).first(13)), ConfigError);
    CHECK(replica.predict({}).empty());
    labels[5] = classes;
    CHECK_THROWS_AS(replica.train(0, x, labels), DataError);
    labels[5] = 0;
    CHECK(replica.steps() == 0);
    CHECK_NOTHROW(replica.train(0, x, labels));
    CHECK(replica.steps() == 1);
    CHECK_THROWS_AS(train::Replica({features, {}, classes}, plan_for(2), comm, options),
                    ConfigError);
    const data::Plan empty({.records = 10, .batch_size = 24, .drop_remainder = true});
    CHECK_THROWS_AS(train::Replica({features, {}, classes}, empty, comm, options),
                    comm::AgreedError);
    CHECK_THROWS_AS(replica.train(plan.steps(), x, labels), ConfigError);
    x[0] = std::numeric_limits<float>::infinity();
    CHECK_THROWS_AS(replica.train(0, x, labels), comm::AgreedError);
  });
}

TEST_CASE("weights that a step cannot be divided by are an error of the data", "[train]") {
  const auto messages = test::per_rank(3, [](comm::Communicator& comm) -> std::string {
    const data::Plan plan = plan_for(3);
    train::Replica replica({features, {}, classes}, plan, comm, options);
    const std::size_t rows = plan.rows(0, static_cast<std::uint64_t>(comm.rank())).size();
    const std::vector<float> x(rows * features);
    const std::vector<std::int32_t> labels(rows);
    std::string problems;
    for (const float weight : {0.0F, 1e-40F, 1e-38F}) {
      const std::vector<float> weights(rows, weight);
      nn::Targets targets = labels;
      targets.weights = weights;
      try {
        replica.train(0, x, targets);
      } catch (const comm::AgreedError& error) {
        problems += error.code() == ExitCode::data ? error.problem() + ". " : "another code";
      }
    }
    return problems;
  });
  for (const auto& message : messages) {
    CHECK_THAT(message,
               Catch::StartsWith(
                   "example 0 of the epoch (counted from 0): the weights "
                   "of the 24 examples of step 1, of which it is the first, sum to zero. ") &&
                   Catch::EndsWith("e-39, by which a float32 cannot be divided. "));
  }
}

TEST_CASE("no examples are bad data, in training as in evaluation", "[train]") {
  const auto refusals = test::per_rank(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    const std::shared_ptr<data::Source> source = std::make_shared<ToySource>(8, features, classes);
    const DistributeOptions by_data = {.policy = data::ShardPolicy::data};
    const nn::NetworkShape shape(features, {}, classes);
    train::Replica replica(
        shape, strategy.distribute_dataset(from_source(source).batch(8), by_data), options);
    auto none = strategy.distribute_dataset(from_source(source).take(0).batch(8), by_data);
    return std::pair(refusal_of([&] { replica.evaluate(none); }),
                     refusal_of([&] { train::Replica(shape, none, options); }));
  });
  for (const auto& [evaluation, training] : refusals) {
    CHECK_THAT(evaluation, Catch::StartsWith("65: an evaluation of no examples"));
    CHECK_THAT(training, Catch::StartsWith("65: a plan without a step: the data set has no"));
  }
}

TEST_CASE("features that are not finite are named by their place in the epoch", "[train]") {
  const auto refusals = test::per_rank(2, [](comm::Communicator& comm) {
    Strategy strategy(comm);
    std::vector<std::pair<Tensor<float>, std::int32_t>> examples;
    for (int i = 0; i < 24; ++i) {
      const float x = i == 17 ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
      examples.emplace_back(Tensor<float>({2}, {x, 1}), i % 2);
    }
    auto data = strategy.distribute_dataset(from_elements(examples).batch(8),
                                            {.policy = data::ShardPolicy::data});
    train::Replica replica({2, {3}, 2}, data);
    auto text = refusal_of([&] {
      for (const auto& batch : data) replica.train(batch);
    });
    return std::tuple(std::move(text), replica.steps(), replica.examples());
  });
  for (const auto& [text, steps, trained] : refusals) {
    CHECK(steps == 3);
    CHECK(trained == 24);
    CHECK_THAT(text, Catch::StartsWith("76: training diverged at step 3 (counted from 1): ") &&
                         Catch::Contains("in the features, for example 17 of the epoch (counted "
                                         "from 0)") &&
                         Catch::Contains("remedy: mend these records") &&
                         !Catch::Contains("learning_rate"));
  }
}

TEST_CASE("a step whose update is not finite is counted, and start_from() refused after it",
          "[train]") {
  comm::SelfCommunicator comm;
  const data::Plan plan({.records = 8, .batch_size = 8});
  train::Replica replica({2, {}, 2}, plan, comm,
                         {.optimizer = {.kind = optim::OptimizerKind::sgd, .learning_rate = 3e38}});
  const std::vector<float> x(16, 1000);
  const std::vector<std::int32_t> labels = {0, 0, 0, 0, 1, 1, 1, 1};
  CHECK_THAT(refusal_of([&] { replica.train(0, x, nn::Targets(labels)); }),
             Catch::StartsWith("76: training diverged at step 1 "));
  CHECK(replica.steps() == 1);
  CHECK(replica.examples() == 8);
  CHECK(replica.skipped_steps() == 0);
  CHECK_THROWS_WITH(replica.start_from({.from = "none"}), Catch::Contains("after 1 step of"));
}

TEST_CASE("weighted records of a data set train as those of a reader", "[train]") {
  const auto trained = [](comm::Communicator& comm, bool by_hand, bool has_values) {
    auto source = std::make_shared<ToySource>(50, features, classes);
    source->set_weights([](std::uint64_t record) { return static_cast<float>(record % 4); });
    if (has_values) {
      source->set_values(classes, [](std::uint64_t record, std::size_t output) {
        return static_cast<float>((record + output) % 3);
      });
    }
    train::ReplicaOptions own = options;
    if (has_values) own.loss = nn::built_in_loss<float>(nn::regression_loss);
    Strategy strategy(comm);
    const DistributeOptions by_data = {.policy = data::ShardPolicy::data};
    const auto train_on = [&](const auto& elements) {
      auto batches = strategy.distribute_dataset(elements.shuffle(3).batch(8), by_data);
      train::Replica replica({features, {8}, classes}, batches, own);
      if (by_hand) {
        const data::Plan plan({.records = 50,
                               .batch_size = 8,
                               .ranks = static_cast<std::uint64_t>(comm.size()),
                               .shuffle = data::Shuffle::global,
                               .seed = 3});
        data::BatchReader reader(*source, plan, comm.rank());
        for (std::uint64_t step = 0; step < plan.steps(); ++step) {
          std::vector<float> x(reader.piece(step).size() * features);
          const auto batch = reader.read(0, step, x);
          replica.train(step, x, train::targets_of(batch));
        }
      } else {
        for (const auto& batch : batches) replica.train(batch);
      }
      auto all = strategy.distribute_dataset(elements.batch(train::evaluation_batch), by_data);
      if (replica.evaluate(all).loss_sum != replica.evaluate(*source).loss_sum) {
        throw std::logic_error("another loss of the same records");
      }
      return replica.weights_hash();
    };
    return has_values ? train_on(from_weighted_source_of_values(source))
                      : train_on(from_weighted_source(source));
  };
  const bool has_values = GENERATE(false, true);
  const auto hash =
      test::on_all(1, [&](comm::Communicator& comm) { return trained(comm, true, has_values); });
  for (const int ranks : {1, 2, 3}) {
    CHECK(test::on_all(ranks, [&](comm::Communicator& comm) {
            return trained(comm, false, has_values);
          }) == hash);
  }
  const auto plain = std::make_shared<ToySource>(5, features, classes);
  CHECK_THROWS_WITH(from_weighted_source(plain), Catch::Contains("use from_source"));
  CHECK_THROWS_WITH(from_weighted_source_of_values(plain),
                    Catch::Contains("its records have labels"));
  plain->set_weights([](std::uint64_t) { return 2.0F; });
  CHECK_THROWS_WITH(from_source(plain), Catch::Contains("use from_weighted_source"));
}

TEST_CASE("a batch is trained as the step that it belongs to, whatever came before", "[train]") {
  // Epochs that end early, a step twice, and the short last step first.
  const data::Plan whole = plan_for(1);
  const std::uint64_t last = whole.steps() - 1;
  const std::vector<std::uint64_t> steps = {last, 0, 1, 0, 0, last, 2};
  const auto train = [&](comm::Communicator& comm) {
    const data::Plan plan = plan_for(comm.size());
    train::Replica replica({features, {19, 8}, classes}, plan, comm, options);
    ToySource source(records, features, classes, 1);
    data::BatchReader reader(source, plan, comm.rank());
    for (const std::uint64_t step : steps) {
      std::vector<float> x(reader.piece(step).size() * features);
      const auto batch = reader.read(0, step, x);
      replica.train(step, x, batch.labels);
    }
    return std::pair(replica.examples(), replica.weights_hash());
  };
  const auto alone = test::on_all(1, train);
  CHECK(alone.first == 2 * whole.examples(last) + std::uint64_t{5} * 24);
  for (const int ranks : {2, 3}) CHECK(test::on_all(ranks, train) == alone);
}

TEST_CASE("a replica trains for the loss that it is given", "[train][custom]") {
  comm::run_ranks(1, [](comm::Communicator& comm) {
    const nn::MeanSquaredError<float> squares;
    const data::Plan plan = plan_for(1);
    train::ReplicaOptions own = options;
    own.loss = &squares;
    train::Replica replica({features, {}, classes}, plan, comm, own);
    CHECK(&replica.network().loss_function() == &squares);
  });
}

TEST_CASE("ranks that have read different checkpoints are told so", "[train][checkpoint]") {
  const test::TemporaryFolder folder;
  const data::Plan plan = plan_for(2);
  const auto problems = test::per_rank(2, [&](comm::Communicator& comm) -> std::string {
    train::Replica replica({features, {}, classes}, plan, comm, options);
    const auto first = replica.save(folder.path());
    auto saved = train::read_description(first);
    const train::TrainingState state = train::read_state(first);
    replica.train(0, std::vector<float>(12 * features, 0.5F), std::vector<std::int32_t>(12));
    const auto second = replica.save(folder.path());
    replica.restore(saved, state);
    const train::Replica same(saved, comm, options);
    if (comm.rank() == 1) saved.weights_hash ^= 1;
    const std::vector<std::function<void()>> takes = {
        [&] { train::Replica(saved, comm, options).shape(); },
        [&] { replica.restore(saved, state); },
        [&] { replica.start_from({.from = comm.rank() == 0 ? first : second}); }};
    for (const auto& take : takes) {
      try {
        take();
        return "no error";
      } catch (const comm::AgreedError& error) {
        const std::string text = error.what();
        if (text.find("RUN/checkpoints/step-N") == std::string::npos) return text;
      }
    }
    return "";
  });
  CHECK(problems == std::vector<std::string>(2));
}

TEST_CASE("a replica saves all of its network, under a mesh too", "[train][checkpoint][mesh]") {
  const test::TemporaryFolder folder;
  const nn::NetworkShape shape(features, {16}, classes);
  const std::uint64_t model = GENERATE(1, 2);
  const data::Plan plan = plan_for(1);
  const auto problems =
      test::per_rank(static_cast<int>(model), [&](comm::Communicator& comm) -> std::string {
        const auto mesh = train::make_mesh(comm, {1, model});
        train::Replica replica(shape, plan, *mesh, options);
        replica.train(0, std::vector<float>(24 * features, 0.5F), std::vector<std::int32_t>(24));
        const auto path = replica.save(folder.path(), {.divide_by = 255, .data = "halves"});
        const auto saved = train::read_description(path);
        if (saved.weights_hash != replica.weights_hash()) return "another hash";
        const bool described = saved.info.step == 1 && saved.info.examples == 24 &&
                               saved.info.divide_by == 255 && saved.info.data == "halves";
        if (!described) return "described otherwise";
        replica.network().parameters().value(0)[0] += 1;
        train::read_weights(saved, replica.network());
        if (saved.weights_hash != replica.weights_hash()) return "read otherwise";
        try {
          replica.save(folder.path());  // it is there already
          return "saved twice";
        } catch (const comm::AgreedError& error) {
          if (error.code() != ExitCode::output) return error.what();
        }
        try {
          replica.save(folder.path() / "other", {.divide_by = 0});  // nothing could read it
          return "saved with a divisor of 0";
        } catch (const comm::AgreedError& error) {
          if (error.code() != ExitCode::usage) return error.what();
        }
        if (model == 1) return "";
        try {
          train::save_checkpoint(folder.path(), replica.network(), {.step = 2});
        } catch (const std::invalid_argument&) {
          return "";
        }
        return "saved a part";
      });
  CHECK(problems == std::vector<std::string>(model));
}

TEST_CASE("every rank has a part of every large tensor", "[train]") {
  const auto products = make_strict_products(Simd::automatic);
  const nn::NetworkShape shape(64, {96, 32}, 10);
  for (const std::size_t ranks : {1, 2, 3}) {
    nn::Network<float> network(shape, 0, *products, ranks);
    const auto& layout = network.parameters().layout();
    const auto segments = train::segments_of(layout, ranks, 400);
    CHECK(segments.size() ==
          (ranks == 1 ? 1 : 2));  // the first and the second layer, with the third
    std::vector<int> owners(layout.length());
    std::vector<std::size_t> parts(layout.tensors().size());
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto slice = train::ranges_in(segments, rank, ranks);
      std::size_t length = 0;
      for (const Range range : slice) {
        CHECK(range.begin % 16 == 0);
        length += range.size();
        for (std::size_t i = range.begin; i < range.end; ++i) ++owners[i];
      }
      CHECK(length == layout.length() / ranks);
      const auto tensors = train::tensors_in(layout, slice);
      std::size_t end = 0;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        CHECK(tensors[i].range.begin == end);
        end = tensors[i].range.end;
        parts[i] += tensors[i].range.size();
        if (i % 2 == 0 && i < 4) CHECK(tensors[i].range.size() > layout.tensors()[i].stored / 8);
      }
    }
    CHECK(owners == std::vector<int>(layout.length(), 1));
    for (std::size_t i = 0; i < parts.size(); ++i) CHECK(parts[i] == layout.tensors()[i].stored);
  }
}

TEST_CASE("ranks save and go on with slices of several ranges", "[train][checkpoint]") {
  const nn::NetworkShape shape(features, {1024, 256, 256}, classes);  // several segments
  const test::TemporaryFolder folder;
  const auto train = [&](comm::Communicator& comm, bool saves) {
    const data::Plan plan = plan_for(comm.size());
    train::ReplicaOptions own = options;
    own.exchange = train::Exchange::activations;
    std::vector<std::filesystem::path> saved;
    auto replica = std::make_unique<train::Replica>(shape, plan, comm, own);
    ToySource source(records, features, classes, 1);
    data::BatchReader reader(source, plan, comm.rank());
    for (std::uint64_t step = 0; step < 4; ++step) {
      std::vector<float> x(reader.piece(step).size() * features);
      const auto batch = reader.read(0, step, x);
      replica->train(step, x, batch.labels);
      if (!saves) continue;
      const std::string name = std::to_string(comm.size()) + "-" + std::to_string(step);
      const auto path = replica->save(folder.path() / name);
      const auto description = train::read_description(path);
      if (description.weights_hash != replica->weights_hash()) {
        throw std::logic_error("another hash was saved");
      }
      replica = std::make_unique<train::Replica>(shape, plan, comm, own);
      replica->restore(description, train::read_state(path));
    }
    return replica->weights_hash();
  };
  const auto expected = test::on_all(1, [&](auto& comm) { return train(comm, false); });
  for (const int ranks : {1, 3, 8}) {
    CHECK(test::on_all(ranks, [&](auto& comm) { return train(comm, true); }) == expected);
  }
}

TEST_CASE("a program trains and evaluates in micro-batches with the same results", "[train]") {
  const auto whole = test::on_all(1, train_by_hand);
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t limit : {2, 5, 8, 1000}) {
      CHECK(test::on_all(ranks, [&](auto& comm) { return train_in_parts(comm, limit); }) == whole);
    }
  }
}

TEST_CASE("ranks with other options than the rest are named before training", "[train]") {
  const auto refused = [](auto change) {
    return test::refusal(3, [&](comm::Communicator& comm) {
      train::ReplicaOptions own = options;
      std::size_t width = 8;
      if (comm.rank() == 1) change(own, width);
      train::Replica({features, {width}, classes}, plan_for(3), comm, own);
    });
  };
  CHECK(refused([](auto&, auto&) {}) == "nothing");
  CHECK_THAT(
      refused([](auto& own, auto&) { own.optimizer.learning_rate = 0.5; }),
      Catch::StartsWith("2: the replica") && Catch::Contains("learning_rate is 0.5 on rank 1"));
  CHECK_THAT(refused([](auto& own, auto&) { own.seed.first = 7; }),
             Catch::Contains("seed is 7, 23 on rank 1"));
  CHECK_THAT(refused([](auto& own, auto&) {
               own.class_weights = {1, 1, 1, 2};
             }),
             Catch::Contains("class_weights is 1.0, 1.0, 1.0, 2.0 on rank 1"));
  CHECK_THAT(refused([](auto&, auto& width) { width = 9; }),
             Catch::Contains("layer 1 is kind = \"dense\", width = 9"));
  CHECK_THAT(test::refusal(2,
                           [&](comm::Communicator& comm) {
                             data::PlanOptions own = plan_for(2).options();
                             own.balance = comm.rank() == 1;
                             const data::Plan plan(own);
                             train::Replica({features, {8}, classes}, plan, comm, options);
                           }),
             Catch::StartsWith("2: the replica") && Catch::Contains("balance is no on rank 0"));
  CHECK_THAT(test::refusal(2,
                           [&](comm::Communicator& comm) {
                             const auto mesh = train::make_mesh(comm, {1, 2});
                             train::ReplicaOptions own = options;
                             own.micro_batch = comm.rank() == 0 ? 8 : 16;
                             train::Replica({features, {8}, classes}, plan_for(1), *mesh, own);
                           }),
             Catch::Contains("micro_batch is 8 on rank 0"));
}

TEST_CASE("options out of range are refused", "[train]") {
  const auto refused = [](train::ReplicaOptions own) {
    return test::refusal(1, [&](comm::Communicator& comm) {
      train::Replica({features, {8}, classes}, plan_for(1), comm, own);
    });
  };
  train::ReplicaOptions own = options;
  own.sentinel_steps = 0;
  CHECK_THAT(refused(own), Catch::StartsWith("2: `sentinel_steps=0`"));
  own = options;
  own.audit_every = 0;
  CHECK_THAT(refused(own), Catch::StartsWith("2: `audit_every=0`"));
  own = options;
  own.threads = -1;
  CHECK_THAT(refused(own), Catch::StartsWith("2: `threads=-1`"));
  for (const auto timeout : {std::chrono::seconds(0), std::chrono::seconds::max()}) {
    own = options;
    own.nccl_timeout = timeout;
    CHECK_THAT(refused(own), Catch::StartsWith("2: `nccl_timeout` of "));
  }
  own = options;
  own.device_exchange = train::DeviceExchange::staged;
  CHECK_THAT(refused(own), Catch::StartsWith("2: device_exchange staged with device cpu"));
  own = options;
  own.class_weights = {1, 1, 1};
  CHECK_THAT(refused(own), Catch::StartsWith("2: `class_weights`: 3 for a network of 4 outputs"));
  own.class_weights = {1, 1, 1, -1};
  CHECK_THAT(refused(own), Catch::StartsWith("2: `class_weights`: that of class 3 is -1.0"));
}

TEST_CASE("a replica that went its own way is named", "[train]") {
  const auto messages = test::per_rank(3, [](comm::Communicator& comm) -> std::string {
    const data::Plan plan = plan_for(3);
    train::Replica replica({features, {}, classes}, plan, comm, options);
    if (comm.rank() == 1) replica.network().parameters().value(0)[0] += 1;
    try {
      replica.weights_hash();
    } catch (const comm::AgreedError& error) {
      return error.code() == ExitCode::invariant ? error.what() : "another code";
    }
    return "no error";
  });
  for (const auto& message : messages) CHECK_THAT(message, Catch::Contains("rank 1"));
}

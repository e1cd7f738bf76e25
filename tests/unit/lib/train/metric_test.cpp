#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/collectives/threads.hpp"
#include "lockstep/train/evaluation.hpp"
#include "tests/support/refusal.hpp"

using namespace lockstep;
using namespace lockstep::train;

namespace {

constexpr std::size_t examples = 60;
constexpr std::size_t width = 4;  // outputs, before some are left out

/// scale * sin(1.3 i + phase), rounded to float, as in scripts/peers/metrics.py.
float wave(std::size_t i, double phase, double scale) {
  return static_cast<float>(scale * std::sin(1.3 * static_cast<double>(i) + phase));
}

std::size_t label_of(std::size_t i) { return (i * i + i / 5) % width; }
bool has_flag(std::size_t j) { return (j * j + j / 7) % 3 == 0; }

/// What scripts/peers/metrics.py computes figures of, of one kind.
struct Case {
  std::string name;
  std::string loss;
  std::size_t outputs = width;
  std::vector<std::string> metrics = {};
  Metric own = {};  // one more, if it has a function
};

const std::vector<Case> cases = {{"classes", "softmax cross-entropy", 4, {"top-2", "auc"}},
                                 {"two classes", "softmax cross-entropy", 2, {"auc"}},
                                 {"flags", "binary cross-entropy", 4, {"auc"}},
                                 {"values", "mean squared error of values", 4, {}}};

/// Gives its inputs as outputs.
class Echo final : public Inference {
 public:
  explicit Echo(std::size_t outputs) : shape_(outputs, {}, outputs), rows_(outputs * examples) {}
  const nn::NetworkShape& shape() const noexcept override { return shape_; }
  Matrix<float> inputs(std::size_t rows) override { return {rows_.data(), rows, shape_.classes}; }
  Matrix<const float> forward(std::size_t rows) override { return inputs(rows); }

 private:
  nn::NetworkShape shape_;
  std::vector<float> rows_;
};

/// Outputs and targets of the examples of `rows`.
struct Rows {
  std::vector<float> outputs, values;
  std::vector<std::int32_t> labels;

  Rows(const Case& one, Range rows) {
    for (std::size_t i = rows.begin; i < rows.end; ++i) {
      const std::size_t label = label_of(i) % one.outputs;
      if (one.outputs == 2 || one.name == "classes") labels.push_back(static_cast<int>(label));
      for (std::size_t j = 0; j < one.outputs; ++j) add(one, i, j, label);
    }
  }

 private:
  void add(const Case& one, std::size_t i, std::size_t j, std::size_t label) {
    const std::size_t at = width * i + j;
    if (one.name == "values") {
      values.push_back(wave(at, 0.5, 1));
      outputs.push_back(static_cast<float>(static_cast<double>(values.back()) +
                                           static_cast<double>(wave(at, 0.1, 0.4))));
      return;
    }
    const bool is_flagged = one.name == "flags" ? has_flag(at) : j == label;
    if (one.name == "flags") values.push_back(is_flagged ? 1.0F : 0.0F);
    outputs.push_back(wave(at, one.name == "flags" ? 0.9 : 0.4, 2) +
                      (is_flagged && i % 3 > 0 ? 1.5F : 0.0F));
  }
};

Evaluation evaluated(const Case& one, comm::Communicator& comm) {
  const nn::Loss<float>& loss = *nn::built_in_loss<float>(one.loss);
  std::vector<Metric> metrics;
  for (const auto& name : one.metrics) {
    metrics.push_back(metric_named(name, loss.target(), one.outputs));
  }
  if (one.own.of_set || one.own.of_example) metrics.push_back(one.own);
  const data::Plan plan = evaluation_plan(examples, comm.size());
  Echo echo(one.outputs);
  std::uint64_t step = 0;
  std::optional<Rows> rows;
  const auto next = [&]() -> std::optional<Piece> {
    if (step == plan.steps()) return std::nullopt;
    const Range piece = plan.rows(step, static_cast<std::uint64_t>(comm.rank()));
    rows.emplace(one, piece);
    return Piece{step++, rows->outputs, {rows->labels, rows->values}};
  };
  return evaluate(echo, loss, plan, next, comm, metrics);
}

void check_classes(const nlohmann::json& figures, const std::vector<ClassCounts>& classes) {
  for (std::size_t j = 0; j < classes.size(); ++j) {
    CHECK(*classes[j].precision() == Approx(figures["precision"][j].get<double>()).epsilon(1e-14));
    CHECK(*classes[j].recall() == Approx(figures["recall"][j].get<double>()).epsilon(1e-14));
    CHECK(*classes[j].f1() == Approx(figures["f1"][j].get<double>()).epsilon(1e-14));
    CHECK(classes[j].examples == figures["examples"][j].get<std::uint64_t>());
  }
}

}  // namespace

TEST_CASE("an output that is no number is none of the first ones", "[predict]") {
  const auto top = train::top_k(1);
  const auto hit = [&](std::vector<float> outputs, std::int32_t label) {
    return top.of_example(outputs, {std::span(&label, 1), {}});
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(hit({0, 1, 0}, 1) == 1);
  CHECK(hit({1, 1, 0}, 1) == 0);
  CHECK(hit({nan, 1, 0}, 1) == 0);
  CHECK(hit({0, nan, 0}, 1) == 0);
}

TEST_CASE("metrics that differ between ranks are refused on all of them", "[predict]") {
  const auto refusal = [](const std::vector<std::string>& of_rank_1) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Case one = cases[0];
      if (comm.rank() == 1) one.metrics = of_rank_1;
      evaluated(one, comm);
    });
  };
  CHECK(refusal({"top-2", "auc"}) == "nothing");
  CHECK_THAT(refusal({"auc"}), Catch::StartsWith("2: the evaluation differs between ranks:") &&
                                   Catch::Contains("'top-2' of examples, 'auc' of the set"));
  CHECK_THAT(refusal({"auc", "top-2"}), Catch::Contains("'auc' of the set, 'top-2' of examples"));
}

TEST_CASE("what a metric of the set throws, all ranks throw", "[predict]") {
  Case one = cases[0];
  one.own = {.name = "own", .of_set = [](const ScoredSet&) -> double {
               throw std::runtime_error("not a set for it");
             }};
  CHECK(test::refusal(2, [&](comm::Communicator& comm) { evaluated(one, comm); }) ==
        "1: not a set for it");
}

TEST_CASE("a metric has one name", "[predict]") {
  CHECK(train::metric_named("top-5", nn::TargetKind::label, 10).name == "top-5");
  for (const char* name : {"top-05", "top-5 ", "top-", "top", "AUC", ""}) {
    CHECK_THROWS_WITH(train::metric_named(name, nn::TargetKind::label, 10),
                      Catch::Contains("there is none of that name"));
  }
}

TEST_CASE("evaluations have the figures of scikit-learn", "[predict]") {
  std::ifstream file(METRIC_FIGURES);
  const auto all = nlohmann::json::parse(file);
  const int ranks = GENERATE(1, 3, 8);
  for (const Case& one : cases) {
    INFO(one.name << " on " << ranks << " ranks");
    const auto& figures = all.at(one.name);
    std::vector<Evaluation> results(static_cast<std::size_t>(ranks));
    comm::run_ranks(ranks, [&](comm::Communicator& comm) {
      results[static_cast<std::size_t>(comm.rank())] = evaluated(one, comm);
    });
    const Evaluation& result = results.back();
    for (std::size_t m = 0; m < one.metrics.size(); ++m) {
      CHECK(result.metrics[m] == Approx(figures[one.metrics[m]].get<double>()).epsilon(1e-14));
    }
    if (figures.contains("loss")) {
      CHECK(result.loss() == Approx(figures["loss"].get<double>()).epsilon(1e-6));
    }
    if (figures.contains("accuracy")) {
      CHECK(result.accuracy() == Approx(figures["accuracy"].get<double>()).epsilon(1e-14));
      check_classes(figures, result.classes());
    }
    if (figures.contains("confusion")) {
      CHECK(result.confusion == figures["confusion"].get<std::vector<std::uint64_t>>());
    }
    for (std::size_t j = 0; j < result.values.size(); ++j) {
      CHECK(result.values[j].r2() == Approx(figures["r2 of each"][j].get<double>()).epsilon(1e-12));
      CHECK(result.values[j].rmse() == Approx(figures["rmse"][j].get<double>()).epsilon(1e-12));
    }
    if (!result.values.empty()) {
      CHECK(result.r2() == Approx(figures["r2"].get<double>()).epsilon(1e-12));
    }
  }
}

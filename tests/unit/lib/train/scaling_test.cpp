// The model of communication, against a simulation of every message.
#include "lockstep/train/scaling.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"

namespace lockstep::train {
namespace {

using Catch::Matchers::Contains;

/// Hosts that send messages: a host sends one at a time, and receives one at a time; a message
/// begins when both are free and its sender has what it sends.
class Simulation {
 public:
  Simulation(std::size_t hosts, const Link& link)
      : link_(link), sends_(hosts, 0), receives_(hosts, 0) {}

  /// Returns when the message has arrived.
  double send(std::size_t from, std::size_t to, double bytes, double ready) {
    const double begin = std::max({ready, sends_[from], receives_[to]});
    const double end = begin + link_.latency + bytes / link_.bandwidth;
    sends_[from] = receives_[to] = end;
    return end;
  }

 private:
  Link link_;
  std::vector<double> sends_;
  std::vector<double> receives_;
};

/// Each host passes on what it received last.
double simulated_ring(std::size_t hosts, double block, const Link& link) {
  Simulation simulation(hosts, link);
  std::vector<double> has(hosts, 0);
  for (std::size_t round = 1; round < hosts; ++round) {
    std::vector<double> next(hosts);
    for (std::size_t h = 0; h < hosts; ++h) {
      const std::size_t to = (h + 1) % hosts;
      next[to] = simulation.send(h, to, block, has[h]);
    }
    for (std::size_t h = 0; h < hosts; ++h) has[h] = std::max(has[h], next[h]);
  }
  return *std::max_element(has.begin(), has.end());
}

/// Bruck et al. 1997: in round i each host sends all blocks that it has, or those that are missing,
/// to the one 2^i before it.
double simulated_doubling(std::size_t hosts, double block, const Link& link) {
  Simulation simulation(hosts, link);
  std::vector<double> has(hosts, 0);
  for (std::size_t blocks = 1; blocks < hosts; blocks *= 2) {
    const std::size_t sent = std::min(blocks, hosts - blocks);
    std::vector<double> next(hosts);
    for (std::size_t h = 0; h < hosts; ++h) {
      const std::size_t to = (h + hosts - blocks) % hosts;
      next[to] = simulation.send(h, to, static_cast<double>(sent) * block, has[h]);
    }
    for (std::size_t h = 0; h < hosts; ++h) has[h] = std::max(has[h], next[h]);
  }
  return *std::max_element(has.begin(), has.end());
}

double simulated_all_to_all(std::size_t hosts, double block, const Link& link) {
  Simulation simulation(hosts, link);
  double last = 0;
  for (std::size_t round = 1; round < hosts; ++round) {
    for (std::size_t h = 0; h < hosts; ++h) {
      last = std::max(last, simulation.send(h, (h + round) % hosts, block, 0));
    }
  }
  return last;
}

TEST_CASE("the model of communication is what a simulation of messages takes", "[scaling]") {
  const Link link = {5e-6, 12e9};
  for (const std::size_t hosts : {1, 2, 3, 4, 5, 7, 8, 13, 64, 500, 512}) {
    for (const double bytes : {1e2, 1e5, 3.6e6, 1e9}) {
      CAPTURE(hosts, bytes);
      const auto h = static_cast<double>(hosts);
      const double ring = simulated_ring(hosts, bytes / h, link);
      const double doubling = simulated_doubling(hosts, bytes / h, link);
      CHECK(all_gather_seconds(h, bytes, link) == Approx(std::min(ring, doubling)).epsilon(1e-9));
      CHECK(all_to_all_seconds(h, bytes, link) ==
            Approx(simulated_all_to_all(hosts, bytes, link)).epsilon(1e-9));
    }
  }
}

MeasuredStep measured_step() {
  return {.ranks = 2,
          .batch = 128,
          .leaf = 16,
          .weights = 1e6,
          .exchanged = 3000,
          .data = 1e-5,
          .rows = 1e-3,
          .slices = 5e-4,
          .update = 2e-4,
          .other = 1e-6,
          .copies = 2e-11,
          .bandwidth = 1e11};
}

TEST_CASE("as measured, the prediction is the measurement", "[scaling]") {
  const MeasuredStep measured = measured_step();
  const PredictedStep step = predicted_step(measured, {2, 8, 128}, {5e-6, 12e9});
  CHECK(step.by_activations);
  CHECK(step.compute == Approx(1e-5 + 1e-3 + 5e-4 + 2e-4 + 1e-6));
  CHECK(step.communication == Approx(2e-11 * 2 * 0.5 * 4 * (128 * 3000 + 1e6)));
}

TEST_CASE("a step that was measured with partial sums goes on with them", "[scaling]") {
  MeasuredStep measured = measured_step();
  measured.only_sums = true;
  const PredictedStep step = predicted_step(measured, {2, 8, 128}, {5e-6, 12e9});
  CHECK_FALSE(step.by_activations);
  CHECK(step.communication == Approx(2e-11 * 2 * 0.5 * 4 * 2e6));
}

TEST_CASE("more ranks compute less, and communicate more", "[scaling]") {
  const MeasuredStep measured = measured_step();
  const Link link = {5e-6, 12e9};
  PredictedStep before = predicted_step(measured, {2, 8, 128}, link);
  for (double ranks = 4; ranks <= 4096; ranks *= 2) {
    CAPTURE(ranks);
    const PredictedStep step = predicted_step(measured, {ranks, 8, 128}, link);
    CHECK(step.compute < before.compute);
    CHECK(step.communication > before.communication);
    before = step;
  }
  CHECK(before.share() > 0.7);
  // 128 examples are 8 leaves of 16: beyond 8 ranks no rank has fewer rows.
  const double floor = measured.rows * 16 / 64;
  CHECK(predicted_step(measured, {4096, 8, 128}, link).compute > floor);
  // Many examples: sums are less than activations.
  CHECK_FALSE(predicted_step(measured, {64, 8, 8192}, link).by_activations);
}

TEST_CASE("a file that is not a measured step is refused", "[scaling]") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "step.json";
  const auto refusal = [&](const std::string& text) -> std::string {
    std::ofstream(file) << text;
    try {
      read_measured_step(file);
      return "";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  CHECK_THROWS_AS(read_measured_step(folder.path() / "none"), DataError);
  CHECK_THAT(refusal("no JSON"), Contains("step.json"));
  CHECK_THAT(refusal("{}"), Contains("phases"));
  const auto refusal_of = [&](const std::string& fields) {
    return refusal(R"({"phases": {}, "peak": {}, "backend": "mpi", )" + fields + "}");
  };
  CHECK_THAT(refusal_of(R"("hosts": 1, "model_ranks": 1, "reduction": "allreduce")"),
             Contains("another reduction"));
  CHECK_THAT(refusal_of(R"("hosts": 2, "reduction": "canonical")"),
             Contains("on 2 hosts") && Contains("remedy: measure it with all ranks on one host"));
  CHECK_THAT(refusal_of(R"("hosts": 1, "model_ranks": 2, "reduction": "canonical")"),
             Contains("ranks that share a network"));
  const std::string one_host =
      R"("hosts": 1, "model_ranks": 1, "reduction": "canonical", "ranks": )";
  for (const char* ranks : {"0", "-1", "2.5", "0.1", "1e300", "1048577", "\"2\""}) {
    CHECK_THAT(refusal_of(one_host + ranks),
               Contains("'ranks' is not a whole number of 1 to 1,048,576"));
  }
  for (const char* batch : {"0", "2.5", "1e300"}) {
    CHECK_THAT(refusal_of(one_host + R"(2, "batch_size": )" + batch),
               Contains("'batch_size' is not a whole number"));
    CHECK_THAT(refusal_of(one_host + R"(2, "batch_size": 8, "leaf": )" + batch),
               Contains("'leaf' is not a whole number"));
  }
}

}  // namespace
}  // namespace lockstep::train

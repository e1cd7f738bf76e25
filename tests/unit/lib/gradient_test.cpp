// Every derivative against central differences in double, and the float replica against the
// double one. The double network runs the same code, so the first check covers both.
#include <Eigen/Dense>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/nn/network.hpp"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

struct Problem {
  NetworkShape shape;
  std::size_t rows;
  std::vector<double> x;
  std::vector<std::int32_t> labels;
};

Problem random_problem(const NetworkShape& shape, std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  Problem problem{shape, rows, std::vector<double>(rows * shape.features), {}};
  for (double& value : problem.x) value = std::normal_distribution<double>()(random);
  for (std::size_t i = 0; i < rows; ++i) {
    problem.labels.push_back(static_cast<std::int32_t>(random() % shape.classes));
  }
  return problem;
}

template <class Real>
Network<Real> random_network(const NetworkShape& shape, std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  Network<Real> network(shape, rows);
  auto& block = network.parameters();
  for (std::size_t t = 0; t < block.tensors().size(); ++t) {
    for (Real& value : block.value(t).flat()) {
      value = static_cast<Real>(std::normal_distribution<float>(0, 0.5F)(random));
    }
  }
  return network;
}

double loss(Network<double>& network, const Problem& p) {
  const auto logits = network.forward({p.x.data(), p.rows, p.shape.features});
  return softmax_cross_entropy<double>(logits, p.labels).loss_sum;
}

}  // namespace

TEST_CASE("gradients agree with central differences in double", "[nn][gradient]") {
  const auto shape =
      GENERATE(NetworkShape{5, {}, 3}, NetworkShape{7, {6}, 4}, NetworkShape{6, {9, 5}, 3},
               NetworkShape{4, {5, 6, 4}, 2}, NetworkShape{3, {1}, 1});
  const std::size_t rows = GENERATE(1, 2, 9);
  const auto problem = random_problem(shape, rows, 3);
  auto network = random_network<double>(shape, rows, 4);
  const auto tally =
      network.forward_backward({problem.x.data(), rows, shape.features}, problem.labels);
  CHECK(tally.loss_sum == Approx(loss(network, problem)).epsilon(1e-14));

  const std::vector<double> gradients(network.parameters().gradients().begin(),
                                      network.parameters().gradients().end());
  constexpr double h = 1e-6;
  double worst = 0;
  for (const Tensor& tensor : network.parameters().tensors()) {
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
      double& weight = network.parameters().values()[i];
      const double kept = weight;
      weight = kept + h;
      const double above = loss(network, problem);
      weight = kept - h;
      const double below = loss(network, problem);
      weight = kept;
      const double difference = (above - below) / (2 * h);
      worst = std::max(worst,
                       std::abs(difference - gradients[i]) / std::max(1.0, std::abs(gradients[i])));
    }
  }
  CHECK(worst < 1e-6);
}

TEST_CASE("the float replica computes the double one's gradients", "[nn][gradient]") {
  const NetworkShape shape{37, {41, 29}, 10};
  const std::size_t rows = GENERATE(1, 16, 33);
  const auto problem = random_problem(shape, rows, 5);
  auto exact = random_network<double>(shape, rows, 6);
  auto single = random_network<float>(shape, rows, 6);
  const std::vector<float> x(problem.x.begin(), problem.x.end());
  const std::vector<double> rounded(x.begin(), x.end());
  const auto tally = single.forward_backward({x.data(), rows, shape.features}, problem.labels);
  const auto reference =
      exact.forward_backward({rounded.data(), rows, shape.features}, problem.labels);
  CHECK(tally.correct == reference.correct);
  CHECK(tally.loss_sum == Approx(reference.loss_sum).epsilon(1e-5));
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < exact.parameters().gradients().size(); ++i) {
    const double g = exact.parameters().gradients()[i];
    error += std::pow(static_cast<double>(single.parameters().gradients()[i]) - g, 2);
    norm += g * g;
  }
  CHECK(std::sqrt(error / norm) < 1e-5);
}

TEST_CASE("the gradient of a whole is the sum of its pieces'", "[nn][gradient]") {
  const NetworkShape shape{11, {13}, 5};
  const auto problem = random_problem(shape, 10, 7);
  auto network = random_network<double>(shape, 10, 8);
  const auto gradients_of = [&](std::size_t begin, std::size_t end) {
    const auto tally = network.forward_backward(
        {problem.x.data() + begin * shape.features, end - begin, shape.features},
        std::span(problem.labels).subspan(begin, end - begin));
    std::vector<double> result(network.parameters().gradients().begin(),
                               network.parameters().gradients().end());
    result.push_back(tally.loss_sum);
    result.push_back(static_cast<double>(tally.correct));
    return result;
  };
  const auto whole = gradients_of(0, 10);
  std::vector<double> sum(whole.size());
  for (const auto& [begin, end] : {std::pair(0, 3), {3, 3}, {3, 4}, {4, 10}}) {
    const auto piece = gradients_of(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += piece[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == Approx(whole[i]).margin(1e-12));
}

TEST_CASE("an empty piece contributes exactly nothing", "[nn]") {
  const NetworkShape shape{11, {13}, 5};
  auto network = random_network<float>(shape, 4, 8);
  std::fill(network.parameters().gradients().begin(), network.parameters().gradients().end(), 9.0F);
  const auto tally = network.forward_backward({nullptr, 0, shape.features}, {});
  CHECK(tally.loss_sum == 0);
  CHECK(tally.correct == 0);
  for (std::size_t t = 0; t < network.parameters().tensors().size(); ++t) {
    for (const float g : network.parameters().gradient(t).flat()) REQUIRE(g == 0);
  }
}

TEST_CASE("the forward product is Eigen's in double", "[numerics]") {
  using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Rows x = Rows::Random(5, 7);
  const Rows w = Rows::Random(7, 4);
  const Eigen::RowVectorXd bias = Eigen::RowVectorXd::Random(4);
  Rows y(5, 4);
  multiply_forward<double>({x.data(), 5, 7}, {w.data(), 7, 4}, {bias.data(), 4}, Activation::relu,
                           {y.data(), 5, 4});
  const Rows expected = ((x * w).rowwise() + bias).cwiseMax(0);
  CHECK((y - expected).cwiseAbs().maxCoeff() < 1e-15);
}

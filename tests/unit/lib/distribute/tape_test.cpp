// Gradients of every operation under every layout, against central differences in double.

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>

#include "lockstep/distribute/dtensor.hpp"
#include "lockstep/distribute/operations.hpp"
#include "tests/support/layouts.hpp"
#include "tests/support/refusal.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using test::counting;
using test::on_all;

namespace {

constexpr auto none = Layout::unsharded;

using Tensors = std::vector<Tensor<double>>;
using DTensors = std::vector<DTensor<double>>;

/// Values of both signs, none of them small.
template <class T = double>
Tensor<T> waves(const Shape& shape, double phase) {
  return counting<T>(shape).map([&](T v) {
    const double wave = std::sin(1.7 * static_cast<double>(v) + phase);
    return static_cast<T>(wave + (wave < 0 ? -0.5 : 0.5));
  });
}

/// An operation on tensors of the given shapes.
struct Case {
  std::string name;
  std::vector<Shape> shapes;
  std::function<DTensor<double>(const DTensors&)> apply;
};

/// The elements of a result, each with a weight of its own, as one sum.
DTensor<double> weighted(const Case& each, const DTensors& inputs) {
  const auto result = each.apply(inputs);
  const auto weights = copy_to_mesh(result.mesh(), waves(result.shape(), 1.1),
                                    Layout::replicated(result.mesh(), result.shape().size()));
  return reduce_sum(result * weights);
}

/// The gradients by central differences, on one rank; the last one is the value itself.
Tensors differences(const Case& each) {
  return on_all(1, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"a", 1}, {"b", 1}});
    Tensors inputs;
    for (std::size_t i = 0; i < each.shapes.size(); ++i) {
      inputs.push_back(waves(each.shapes[i], static_cast<double>(i)));
    }
    const auto value = [&] {
      DTensors placed;
      for (const auto& input : inputs) {
        placed.push_back(copy_to_mesh(mesh, input, Layout::replicated(mesh, input.shape().size())));
      }
      return weighted(each, placed).unpack().item();
    };
    Tensors gradients;
    const double step = 1e-5;
    for (auto& input : inputs) {
      auto gradient = input;
      for (std::size_t at = 0; at < input.values().size(); ++at) {
        const double before = input.values()[at];
        input.values()[at] = before + step;
        const double above = value();
        input.values()[at] = before - step;
        gradient.values()[at] = (above - value()) / (2 * step);
        input.values()[at] = before;
      }
      gradients.push_back(std::move(gradient));
    }
    gradients.emplace_back(value());
    return gradients;
  });
}

bool close(const Tensor<double>& a, const Tensor<double>& b, double tolerance) {
  if (a.shape() != b.shape()) return false;
  for (std::size_t i = 0; i < a.values().size(); ++i) {
    if (!(std::abs(a.values()[i] - b.values()[i]) <= tolerance)) return false;
  }
  return true;
}

/// All ways to choose one layout for each input.
std::vector<std::vector<Layout>> layouts_of(const Mesh& mesh, const std::vector<Shape>& shapes) {
  std::vector<std::vector<Layout>> all = {{}};
  for (const auto& shape : shapes) {
    std::vector<std::vector<Layout>> longer;
    for (const auto& chosen : all) {
      for (const auto& layout : test::layouts_of(mesh, shape.size())) {
        longer.push_back(chosen);
        longer.back().push_back(layout);
      }
    }
    all = std::move(longer);
  }
  return all;
}

/// The first layouts under which the tape's gradients or the value are wrong; empty: none.
std::string wrong_layouts(const Case& each, const std::vector<MeshDimension>& dimensions) {
  const auto expected = differences(each);
  return on_all(4, [&](comm::Communicator& comm) -> std::string {
    Mesh mesh(comm, dimensions);
    for (const auto& layouts : layouts_of(mesh, each.shapes)) {
      DTensors inputs;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        inputs.push_back(
            copy_to_mesh(mesh, waves(each.shapes[i], static_cast<double>(i)), layouts[i]));
      }
      Tape tape;
      const auto value = weighted(each, inputs);
      const auto gradients = tape.gradient(value, inputs);
      std::string text = close(value.unpack(), expected.back(), 1e-12) ? "" : " value";
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        gradients[i].verify();
        const bool right = gradients[i].layout() == layouts[i] &&
                           close(gradients[i].to_global(), expected[i], 1e-8);
        if (!right) text += " gradient " + std::to_string(i);
      }
      if (comm.all_agree(text.empty())) continue;
      for (const auto& layout : layouts) text += ", " + to_text(layout);
      return text;
    }
    return "";
  });
}

std::vector<Case> cases() {
  const auto unary = [](std::string name, Shape shape, auto function) {
    return Case{std::move(name), {shape}, [=](const DTensors& x) { return function(x[0]); }};
  };
  const auto binary = [](std::string name, Shape a, Shape b, auto function) {
    return Case{std::move(name), {a, b}, [=](const DTensors& x) { return function(x[0], x[1]); }};
  };
  const auto labels = [](Mesh& mesh) {
    return copy_to_mesh(mesh, Tensor<std::int32_t>{2, 0, 5, 2, 1}, Layout::replicated(mesh, 1));
  };
  const Shape matrix = {5, 6};
  const Shape box = {4, 3, 5};
  return {
      binary("matmul", {5, 3}, {3, 6}, [](auto& a, auto& b) { return matmul(a, b); }),
      unary("matmul of one tensor", {3, 3}, [](auto& a) { return matmul(a, a); }),
      binary("partial matmul", {5, 3}, {3, 6},
             [](auto& a, auto& b) {
               const auto plan =
                   sharding::matmul_plan(a.layout(), a.shape(), b.layout(), b.shape());
               const auto addends = matmul(a, b, plan.result);
               return reduce_sum(addends, 0) + reduce_sum(relu(addends), 0);
             }),
      binary("add", matrix, {6}, [](auto& a, auto& b) { return a + b; }),
      binary("add columns and rows", {5, 1}, {1, 6}, [](auto& a, auto& b) { return a + b; }),
      binary("subtract", {6}, matrix, [](auto& a, auto& b) { return a - b; }),
      binary("multiply", matrix, {5, 1}, [](auto& a, auto& b) { return a * b; }),
      unary("square", matrix, [](auto& a) { return a * a; }),
      binary("divide", matrix, {}, [](auto& a, auto& b) { return a / b; }),
      binary("divide rows", {1, 6}, {5, 1}, [](auto& a, auto& b) { return a / b; }),
      unary("numbers", matrix, [](auto& a) { return 1 + (5.0 - 2.0 * a / 3.0) - 4.0; }),
      unary("relu", matrix, [](auto& a) { return relu(a); }),
      unary("elementwise", matrix,
            [](auto& a) {
              return elementwise(
                  a, [](double v) { return v * v * v; }, [](double v) { return 3 * v * v; });
            }),
      unary("reduce_sum 0", box, [](auto& a) { return reduce_sum(a, 0); }),
      unary("reduce_sum 2", box, [](auto& a) { return reduce_sum(a, 2); }),
      unary("reduce_sum 0, 2", box,
            [](auto& a) {
              return reduce_sum(a, {0, 2});
            }),
      unary("reduce_sum", box, [](auto& a) { return reduce_sum(a * a); }),
      unary("reduce_mean 1", box, [](auto& a) { return reduce_mean(a, 1); }),
      unary("reduce_mean 1, 0", box,
            [](auto& a) {
              return reduce_mean(a, {1, 0});
            }),
      unary("reduce_mean", box, [](auto& a) { return reduce_mean(a * a); }),
      unary("softmax", box, [](auto& a) { return softmax(a); }),
      unary("log_softmax", box, [](auto& a) { return log_softmax(a); }),
      unary("softmax_cross_entropy", matrix,
            [=](auto& a) { return softmax_cross_entropy(a, labels(a.mesh())); }),
      unary("transpose", matrix, [](auto& a) { return transpose(a); }),
      unary("reshape to fewer", box,
            [](auto& a) {
              return reshape(a, {4, 15});
            }),
      unary("reshape to more", matrix,
            [](auto& a) {
              return reshape(a, {5, 3, 2, 1});
            }),
      unary("slice_along", box,
            [](auto& a) {
              return slice_along(a, 0, {1, 3});
            }),
      unary("slice to a layout", box,
            [](auto& a) {
              return slice_along(a, 2, {0, 4}, Layout(a.mesh(), {none, "b", "a"}));
            }),
      unary("relayout", matrix,
            [](auto& a) {
              return a.relayout(Layout(a.mesh(), {"b", none}));
            }),
      unary("used twice", matrix,
            [](auto& a) { return reduce_sum(a, 0) * reduce_mean(relu(a) * a, 0); }),
      Case{"two layers",
           {{5, 4}, {4, 6}, {6}, {6, 3}},
           [](const DTensors& x) { return matmul(relu(matmul(x[0], x[1]) + x[2]), x[3]); }},
  };
}

}  // namespace

TEST_CASE("gradients are those of central differences under every layout", "[mesh]") {
  for (const auto& [a, b] : {std::pair(2, 2), std::pair(1, 4), std::pair(4, 1)}) {
    for (const auto& each : cases()) {
      INFO(each.name << " on " << a << " x " << b);
      CHECK(wrong_layouts(each, {{"a", a}, {"b", b}}) == "");
    }
  }
}

TEST_CASE("what gradients cost", "[mesh]") {
  const auto cost = [](std::vector<std::string> w) {
    return on_all(4, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"batch", 4}});
      const auto x = copy_to_mesh(mesh, counting<float>({8, 4}), Layout(mesh, {"batch", none}));
      const DVariable weights("w", copy_to_mesh(mesh, counting<float>({4, 4}), Layout(mesh, w)));
      Tape tape;
      const auto loss = reduce_sum(matmul(x, weights));
      mesh.reset_traffic();
      tape.gradient(loss, {weights});
      return to_text(mesh.traffic());
    });
  };
  CHECK(cost({none, none}) == "1 all-reduce, 24 elements");
  CHECK(cost({"batch", none}) == "1 reduce-scatter, 12 elements");
}

TEST_CASE("how a variable is stored changes no bit of gradients", "[mesh]") {
  const auto bits = [](std::vector<std::string> w) {
    return on_all(4, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"batch", 4}});
      const auto x = copy_to_mesh(mesh, waves<float>({37, 20}, 0), Layout(mesh, {"batch", none}));
      const DVariable weights("w", glorot_uniform(mesh, {20, 30}, {1, 2}, Layout(mesh, w)));
      const DVariable bias("b", zeros<float>(mesh, {30}, Layout(mesh, {none})));
      Tape tape;
      const auto product = matmul(x, weights);
      const auto loss = reduce_sum(softmax(product + bias) * softmax(product));
      std::vector<Tensor<float>> all;
      for (const auto& gradient : tape.gradient(loss, {weights, bias})) {
        all.push_back(gradient.to_global());
      }
      return all;
    });
  };
  const auto replicated = bits({none, none});
  CHECK(bits({"batch", none}) == replicated);
  CHECK(bits({none, "batch"}) == replicated);
}

TEST_CASE("tapes: nested, persistent, of equal and intermediate values, and what they refuse",
          "[mesh]") {
  using Variable = DVariable<float>;
  const auto refusal = [](auto body) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 2}});
      Variable w("w", copy_to_mesh(mesh, Tensor<float>{1, 2, 3}, Layout(mesh, {"x"})));
      body(w);
    });
  };
  CHECK(refusal([](Variable& w) {
          Tape outer({.persistent = true});
          const auto squares = w * w;
          Tape inner;
          const auto of_squares = inner.gradient(squares * 2.0F, squares);
          if (of_squares.to_global() != Tensor<float>{2, 2, 2}) throw std::logic_error("inner");
          for (const auto factor : {1.0F, 3.0F}) {
            const auto all = outer.gradient(squares * factor, {w, w});
            if (all[1].to_global() != Tensor<float>{2 * factor, 4 * factor, 6 * factor}) {
              throw std::logic_error("outer");
            }
          }
        }) == "nothing");
  CHECK(refusal([](Variable& w) {
          Variable twin("twin", w);
          Variable third("third", w * w);
          third.assign(w);
          Tape tape;
          for (const auto& g : tape.gradient(w * twin * third, {w, twin, third})) {
            if (g.to_global() != Tensor<float>{1, 4, 9}) throw std::logic_error("twins");
          }
        }) == "nothing");
  CHECK_THAT(refusal([](Variable& w) {
               Tape tape;
               const auto y = w * w;
               tape.gradient(y, {w});
               tape.gradient(y, {w});
             }),
             StartsWith("2: gradient: this tape has already computed its gradients"));
  CHECK_THAT(refusal([](Variable& w) {
               const auto y = w * w;
               Tape().gradient(y, w);
             }),
             StartsWith("2: gradient: the target of shape (3) does not depend on source 0 of shape "
                        "(3) on this tape"));
  CHECK_THAT(refusal([](Variable& w) {
               Tape tape;
               const auto y = w * w;
               w.assign_add(y);
               tape.gradient(y, {w});
             }),
             Contains("assign to variables after gradient"));
  CHECK_THAT(refusal([](Variable& w) {
               Tape tape;
               tape.gradient(elementwise(w, [](float v) { return 2 * v; }) + w, {w});
             }),
             StartsWith("2: gradient: the target depends on a source by elementwise of shape (3), "
                        "which has no derivative"));
}

TEST_CASE("variables start with the same values on every mesh, and are assigned", "[mesh]") {
  const Shape shape = GENERATE(Shape{5, 6}, Shape{4, 3, 5}, Shape{7}, Shape{});
  Tensor<float> whole(shape, std::vector<float>(elements_of(shape)));
  nn::stateless_uniform({22, 23}, -1, 2, whole.values());
  Tensor<float> twice = whole;
  for (float& value : twice.values()) value *= 2;
  for (const auto& dimensions : test::meshes_of(4)) {
    CHECK(on_all(4, [&](comm::Communicator& comm) -> std::string {
            Mesh mesh(comm, dimensions);
            for (const auto& layout : test::layouts_of(mesh, shape.size())) {
              DVariable w("w", stateless_uniform(mesh, shape, {22, 23}, -1, 2, layout));
              const bool same = w.unpack() == copy_to_mesh(mesh, whole, layout).unpack();
              w.assign_add(w);
              if (w.to_global() != twice) return "twice: " + to_text(layout);
              w.assign_sub(copy_to_mesh(mesh, whole, Layout::replicated(mesh, shape.size())));
              if (!comm.all_agree(same && w.layout() == layout) || w.to_global() != whole) {
                return to_text(layout);
              }
            }
            return "";
          }) == "");
  }
}

TEST_CASE("operands that do not fit name the operation and the shapes", "[mesh]") {
  using Matrix = DTensor<float>;
  const auto refusal = [](auto body) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 2}});
      body(mesh, filled(mesh, {2, 3}, 1.0F, Layout(mesh, {"x", none})));
    });
  };
  const auto labels = [](Mesh& mesh, std::vector<std::int32_t> values) {
    return copy_to_mesh(mesh, Tensor<std::int32_t>(std::move(values)), Layout(mesh, {"x"}));
  };
  CHECK_THAT(
      refusal([&](Mesh& mesh, const Matrix& w) {
        softmax_cross_entropy(w, labels(mesh, {0, 1, 2}));
      }),
      StartsWith("2: softmax_cross_entropy: logits of shape (2, 3) and labels of shape (3)"));
  CHECK_THAT(refusal([&](Mesh& mesh, const Matrix& w) {
               softmax_cross_entropy(w, labels(mesh, {0, 3}));
             }),
             StartsWith("65: rank 1") && Contains("label 3 of example 1 is not in [0, 3)"));
  CHECK_THAT(refusal([](Mesh&, const Matrix& w) { reshape(w, {5}); }),
             StartsWith("2: reshape: shape (2, 3) to (5)"));
  CHECK_THAT(refusal([](Mesh&, const Matrix& w) {
               slice_along(w, 1, {2, 4});
             }),
             StartsWith("2: slice_along: indices [2, 4) of axis 1 of shape (2, 3)"));
  CHECK_THAT(refusal([](Mesh&, const Matrix& w) {
               reduce_sum(w, {1, 1});
             }),
             StartsWith("2: axis 1 is reduced twice"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix&) {
               DVariable b("b", zeros<float>(mesh, {3}, Layout(mesh, {none})));
               b.assign(zeros<float>(mesh, {4}, Layout(mesh, {none})));
             }),
             StartsWith("2: variable \"b\" of shape (3) is assigned a tensor of shape (4)"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix&) {
               const auto seed = static_cast<std::uint64_t>(mesh.rank());
               stateless_uniform(mesh, {3}, {seed, 0}, 0, 1, Layout(mesh, {none}));
             }),
             StartsWith("2: an initial value"));
}

TEST_CASE("argmax, slices and reshapes under every layout", "[mesh]") {
  const Tensor<float> whole({3, 4}, {1, 5, 5, 0, 7, 6, 5, 4, -1, -2, -3, 0});
  for (const auto& dimensions : test::meshes_of(4)) {
    CHECK(on_all(4, [&](comm::Communicator& comm) -> std::string {
            Mesh mesh(comm, dimensions);
            for (const auto& layout : test::layouts_of(mesh, 2)) {
              const auto x = copy_to_mesh(mesh, whole, layout);
              const bool same =
                  argmax(x).to_global() == Tensor<std::int32_t>{1, 0, 3} &&
                  slice_along(x, 1, {1, 3}).to_global() ==
                      Tensor<float>({3, 2}, {5, 5, 6, 5, -2, -3}) &&
                  slice_along(x, 0, {1, 2}).layout() == layout &&
                  reshape(x, {3, 2, 2}).layout().spec(0) == layout.spec(0) &&
                  reshape(x, {2, 6}).to_global() ==
                      Tensor<float>({2, 6}, {whole.values().begin(), whole.values().end()});
              if (!same) return to_text(layout);
            }
            return "";
          }) == "");
  }
}

TEST_CASE("stop_gradient gives a constant, and no axes leave a tensor as it is", "[mesh]") {
  CHECK(on_all(2, [](comm::Communicator& comm) -> std::string {
          Mesh mesh(comm, {{"x", 2}});
          const auto x = copy_to_mesh(mesh, Tensor<float>{3, 5}, Layout(mesh, {"x"}));
          Tape tape;
          const auto gradient = tape.gradient(reduce_sum(x * stop_gradient(x)), x);
          if (gradient.to_global() != Tensor<float>{3, 5}) return to_text(gradient.to_global());
          if (reduce_sum(x, {}).to_global() != x.to_global()) return "reduce_sum {}";
          return reduce_mean(x, {}).to_global() == x.to_global() ? "" : "reduce_mean {}";
        }) == "");
}

TEST_CASE("log_softmax keeps the digits of large logits", "[mesh]") {
  CHECK(on_all(1, [](comm::Communicator& comm) {
          Mesh mesh(comm, {{"all", 1}});
          const auto at = [&](float shift) {
            return log_softmax(copy_to_mesh(mesh, Tensor<float>({1, 2}, {shift, shift + 0.5F}),
                                            Layout::replicated(mesh, 2)))
                .to_global();
          };
          return at(0) == at(8192) ? "" : to_text(at(8192));
        }) == "");
}

TEST_CASE("NaN passes through relu, and gradients of quotients do not overflow", "[mesh]") {
  CHECK(on_all(1, [](comm::Communicator& comm) -> std::string {
          Mesh mesh(comm, {{"all", 1}});
          const auto on_mesh = [&](float value) {
            return copy_to_mesh(mesh, Tensor<float>({1}, {value}), Layout::replicated(mesh, 1));
          };
          if (!std::isnan(relu(on_mesh(NAN)).unpack().values()[0])) return "relu(NaN)";
          const auto z = on_mesh(-1);
          Tape of_relu;
          const auto overflowing = relu(z) / on_mesh(0);
          if (of_relu.gradient(overflowing, z).unpack().values()[0] != 0) return "relu, inactive";
          const auto x = on_mesh(1e-23F);
          const auto y = on_mesh(1e-23F);
          Tape tape;
          const float slope = tape.gradient(divide(x, y), y).unpack().values()[0];
          return std::abs(slope / -1e23F - 1) < 1e-5F ? "" : std::to_string(slope);
        }) == "");
}

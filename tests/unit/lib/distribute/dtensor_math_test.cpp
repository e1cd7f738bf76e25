// Products, element-wise operations and reductions under every layout.
#include <catch2/catch.hpp>
#include <cmath>

#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/tensor.hpp"
#include "lockstep/distribute/values.hpp"
#include "tests/support/layouts.hpp"
#include "tests/support/refusal.hpp"

using namespace lockstep;
using Catch::Matchers::StartsWith;
using test::counting;
using test::on_all;

namespace {

constexpr auto none = Layout::unsharded;

/// By the definition alone.
template <class T>
Tensor<T> plain_product(const Tensor<T>& a, const Tensor<T>& b) {
  const std::size_t m = a.shape()[0];
  const std::size_t k = a.shape()[1];
  const std::size_t n = b.shape()[1];
  std::vector<T> values(m * n);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t x = 0; x < k; ++x) {
        values[i * n + j] += a.values()[i * k + x] * b.values()[x * n + j];
      }
    }
  }
  return {{m, n}, std::move(values)};
}

/// Calls body(mesh) on every mesh of `ranks` ranks; the first text that is not empty, on all ranks.
template <class Body>
std::string on_meshes(int ranks, Body body) {
  for (const auto& dimensions : test::meshes_of(ranks)) {
    const auto text = on_all(ranks, [&](comm::Communicator& comm) {
      Mesh mesh(comm, dimensions);
      return body(mesh);
    });
    if (!text.empty()) return text;
  }
  return "";
}

bool holds(const DTensor<float>& tensor, const Tensor<float>& whole, const Layout& layout) {
  const bool here = tensor.layout() == layout && tensor.shape() == whole.shape();
  return tensor.mesh().communicator().all_agree(here) && tensor.to_global() == whole;
}

/// Collectives of a product, by the table of matmul: what stands in the way is gathered, and the
/// sum is taken. Dimensions of one rank move nothing.
Traffic collectives_of(const Layout& a, const Layout& b) {
  const auto counts = [&](const std::string& spec) -> std::uint64_t {
    return spec != none && a.mesh().size(spec) > 1 ? 1 : 0;
  };
  const auto& rows = a.spec(0);
  const std::string columns = b.spec(1) == rows ? none : b.spec(1);
  std::string inner = none;
  for (const auto& spec : {b.spec(0), a.spec(1)}) {
    if (spec != none && spec != rows && spec != columns) inner = spec;
  }
  Traffic traffic;
  if (a.spec(1) != inner) traffic.all_gathers += counts(a.spec(1));
  if (b.spec(0) != inner) traffic.all_gathers += counts(b.spec(0));
  if (b.spec(1) != columns) traffic.all_gathers += counts(b.spec(1));
  traffic.all_reduces = counts(inner);
  return traffic;
}

std::string cost_of_product(const std::vector<std::string>& a, const std::vector<std::string>& b,
                            std::optional<std::vector<std::string>> to = std::nullopt) {
  return on_all(6, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"x", 2}, {"y", 3}});
    const auto left = copy_to_mesh(mesh, counting<float>({12, 6}), Layout(mesh, a));
    const auto right = copy_to_mesh(mesh, counting<float>({6, 18}), Layout(mesh, b));
    mesh.reset_traffic();
    std::optional<Layout> layout;
    if (to) layout.emplace(mesh, *to);
    const auto product = matmul(left, right, layout);
    return "[" + product.layout().spec(0) + ", " + product.layout().spec(1) +
           "]: " + to_text(mesh.traffic());
  });
}

}  // namespace

TEST_CASE("the guide's product is the same under every layout", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  const Tensor<float> a({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor<float> b({3, 2}, {6, 5, 4, 3, 2, 1});
  const Tensor<float> expected({2, 2}, {20, 14, 56, 41});
  const auto wrong = on_meshes(ranks, [&](Mesh& mesh) -> std::string {
    for (const auto& left : test::layouts_of(mesh, 2)) {
      const auto x = copy_to_mesh(mesh, a, left);
      for (const auto& right : test::layouts_of(mesh, 2)) {
        const auto y = copy_to_mesh(mesh, b, right);
        for (const auto& to : test::layouts_of(mesh, 2)) {
          if (!holds(matmul(x, y, to), expected, to)) {
            return to_text(left) + " x " + to_text(right) + " -> " + to_text(to);
          }
        }
      }
    }
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("the guide's layouts: replicated, contraction over 3, rows also over 2", "[mesh]") {
  const auto product = [](int ranks, std::vector<MeshDimension> dimensions,
                          std::vector<std::string> left, std::vector<std::string> right) {
    return on_all(ranks, [&](comm::Communicator& comm) {
      Mesh mesh(comm, dimensions);
      const auto a =
          copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}), Layout(mesh, left));
      const auto b =
          copy_to_mesh(mesh, Tensor<float>({3, 2}, {6, 5, 4, 3, 2, 1}), Layout(mesh, right));
      const auto c = matmul(a, b);
      const auto traffic = to_text(mesh.traffic());
      c.verify();
      return to_text(c.to_global()) + " as " + to_text(c.layout()) + ": " + traffic;
    });
  };
  CHECK(product(6, {{"x", 6}}, {none, none}, {none, none}) ==
        "[[20.0, 14.0], [56.0, 41.0]] as sharding_specs:[unsharded, unsharded], mesh:[x=6]: "
        "0 elements");
  CHECK(product(3, {{"x", 3}}, {none, "x"}, {"x", none}) ==
        "[[20.0, 14.0], [56.0, 41.0]] as sharding_specs:[unsharded, unsharded], mesh:[x=3]: "
        "1 all-reduce, 8 elements");
  CHECK(product(6, {{"x", 2}, {"y", 3}}, {"x", "y"}, {"y", none}) ==
        "[[20.0, 14.0], [56.0, 41.0]] as sharding_specs:[x, unsharded], mesh:[x=2, y=3]: "
        "1 all-reduce, 4 elements");
}

TEST_CASE("a product of uneven pieces, and its collectives", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  const bool even = GENERATE(true, false);
  const auto a = counting<float>(even ? Shape{24, 24} : Shape{5, 7});
  const auto b = counting<float>(even ? Shape{24, 24} : Shape{7, 3});
  const auto expected = plain_product(a, b);
  const auto wrong = on_meshes(ranks, [&](Mesh& mesh) -> std::string {
    for (const auto& left : test::layouts_of(mesh, 2)) {
      const auto x = copy_to_mesh(mesh, a, left);
      for (const auto& right : test::layouts_of(mesh, 2)) {
        const auto y = copy_to_mesh(mesh, b, right);
        mesh.reset_traffic();
        const auto product = matmul(x, y);
        auto traffic = mesh.traffic();
        traffic.elements = 0;
        const bool counted = !even || traffic == collectives_of(left, right);
        product.verify();
        if (!mesh.communicator().all_agree(counted) || product.to_global() != expected) {
          return to_text(left) + " x " + to_text(right) + ": " + to_text(traffic);
        }
      }
    }
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("what a product costs", "[mesh]") {
  CHECK(cost_of_product({"x", none}, {none, "y"}) == "[x, y]: 0 elements");
  CHECK(cost_of_product({none, "y"}, {"y", none}) ==
        "[unsharded, unsharded]: 1 all-reduce, 288 elements");
  CHECK(cost_of_product({none, "y"}, {none, none}) ==
        "[unsharded, unsharded]: 1 all-reduce, 288 elements");
  CHECK(cost_of_product({"x", "y"}, {"y", none}) == "[x, unsharded]: 1 all-reduce, 144 elements");
  CHECK(cost_of_product({"x", "y"}, {"y", none}, {{"x", "y"}}) ==
        "[x, y]: 1 reduce-scatter, 72 elements");
  CHECK(cost_of_product({none, "x"}, {"y", none}) ==
        "[unsharded, unsharded]: 1 all-gather, 1 all-reduce, 288 elements");
  CHECK(cost_of_product({none, "y"}, {none, "y"}) == "[unsharded, y]: 1 all-gather, 48 elements");
  CHECK(cost_of_product({"x", none}, {"x", none}) == "[x, unsharded]: 1 all-gather, 54 elements");
  CHECK(cost_of_product({"x", none}, {none, "x"}) == "[x, unsharded]: 1 all-gather, 54 elements");
}

TEST_CASE("two dense layers, column then row, cost one sum", "[mesh]") {
  const auto text = on_all(4, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 2}, {"model", 2}});
    const auto x = copy_to_mesh(mesh, counting<float>({8, 6}), Layout(mesh, {"batch", none}));
    const auto w1 = copy_to_mesh(mesh, counting<float>({6, 4}), Layout(mesh, {none, "model"}));
    const auto b1 = copy_to_mesh(mesh, counting<float>({4}), Layout(mesh, {"model"}));
    const auto w2 = copy_to_mesh(mesh, counting<float>({4, 2}), Layout(mesh, {"model", none}));
    const auto relu = [](float v) { return v > 0 ? v : 0; };
    const auto y = matmul(elementwise(add(matmul(x, w1), b1), relu), w2);
    return to_text(y.layout()) + ": " + to_text(mesh.traffic());
  });
  CHECK(text ==
        "sharding_specs:[batch, unsharded], mesh:[batch=2, model=2]: 1 all-reduce, 8 elements");
}

TEST_CASE("a sum may be left to be taken", "[mesh]") {
  const auto text = on_all(3, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"x", 3}});
    const auto a = copy_to_mesh(mesh, counting<float>({3, 3}), Layout(mesh, {none, "x"}));
    const auto b = copy_to_mesh(mesh, counting<float>({3, 3}), Layout(mesh, {"x", none}));
    const auto left = matmul(a, b, Layout::replicated(mesh, 2).partial_over("x"));
    std::string all = to_text(mesh.traffic()) + "; ";
    mesh.reset_traffic();
    const auto doubled = elementwise(left, [](float v) { return 2 * v; });
    all += to_text(mesh.traffic()) + "; ";
    mesh.reset_traffic();
    const auto total = reduce_sum(left);
    return all + to_text(doubled.unpack()) + "; " + to_text(total.unpack()) + ": " +
           to_text(mesh.traffic());
  });
  CHECK(text ==
        "0 elements; 1 all-reduce, 12 elements; "
        "[[60.0, 72.0, 84.0], [132.0, 162.0, 192.0], [204.0, 252.0, 300.0]]; 729.0: "
        "1 all-reduce, 4 elements");
}

TEST_CASE("no cut of rows or columns changes a bit of a product", "[mesh]") {
  const auto fractions = [](const Shape& shape) {
    return counting<float>(shape).map([](float v) { return std::sin(v) / 3; });
  };
  const auto expected = sharding::product(fractions({9, 50}), fractions({50, 11}));
  const auto plain = plain_product(fractions({9, 50}), fractions({50, 11}));
  for (std::size_t i = 0; i < plain.values().size(); ++i) {
    REQUIRE(expected.values()[i] == Approx(plain.values()[i]).margin(1e-5));
  }
  const int ranks = GENERATE(2, 3, 4, 8);
  const auto wrong = on_meshes(ranks, [&](Mesh& mesh) -> std::string {
    for (const auto& to : test::layouts_of(mesh, 2)) {
      const auto a = copy_to_mesh(mesh, fractions({9, 50}), Layout(mesh, {to.spec(0), none}));
      const auto b = copy_to_mesh(mesh, fractions({50, 11}), Layout(mesh, {none, to.spec(1)}));
      if (!holds(matmul(a, b), expected, to)) return to_text(to);
    }
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("products of every type of number", "[mesh]") {
  const auto check = [](auto value) {
    using T = decltype(value);
    const auto a = counting<T>({2, 3});
    const auto b = counting<T>({3, 2});
    const auto product = on_all(3, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 3}});
      return matmul(copy_to_mesh(mesh, a, Layout(mesh, {none, "x"})),
                    copy_to_mesh(mesh, b, Layout(mesh, {"x", none})))
          .to_global();
    });
    CHECK(product == Tensor<T>({2, 2}, {22, 28, 49, 64}));
  };
  check(std::uint8_t{});
  check(std::int32_t{});
  check(std::int64_t{});
  check(double{});
  const Tensor<float> empty({2, 0}, {});
  CHECK(sharding::product(empty, Tensor<float>({0, 2}, {})) == Tensor<float>({2, 2}, {0, 0, 0, 0}));
}

TEST_CASE("values meet under every pair of layouts, with broadcasting", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  using Shapes = std::pair<Shape, Shape>;
  const auto [left, right] =
      GENERATE(Shapes{{5, 6}, {5, 6}}, Shapes{{5, 6}, {6}}, Shapes{{6}, {5, 6}},
               Shapes{{5, 6}, {5, 1}}, Shapes{{5, 1}, {1, 6}}, Shapes{{5, 6}, {}});
  const auto a = counting<float>(left);
  const auto b = counting<float>(right).map([](float v) { return 100 * v; });
  const auto at = [](const Tensor<float>& tensor, std::size_t i, std::size_t j) {
    const auto& shape = tensor.shape();
    const std::size_t columns = shape.empty() ? 1 : shape.back();
    const std::size_t row = shape.size() < 2 || shape[0] == 1 ? 0 : i;
    return tensor.values()[row * columns + (columns == 1 ? 0 : j)];
  };
  std::vector<float> values;
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 6; ++j) values.push_back(at(a, i, j) - at(b, i, j));
  }
  const Tensor<float> expected({5, 6}, values);
  const auto wrong = on_meshes(ranks, [&](Mesh& mesh) -> std::string {
    const auto minus = [](float x, float y) { return x - y; };
    for (const auto& x : test::layouts_of(mesh, left.size())) {
      for (const auto& y : test::layouts_of(mesh, right.size())) {
        const auto result = elementwise(copy_to_mesh(mesh, a, x), copy_to_mesh(mesh, b, y), minus);
        result.verify();
        if (result.to_global() != expected) return to_text(x) + " - " + to_text(y);
      }
    }
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("element-wise operations move what their table says", "[mesh]") {
  const auto cost = [](std::vector<std::string> a, std::vector<std::string> b) {
    return on_all(6, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 2}, {"y", 3}});
      const auto left = copy_to_mesh(mesh, counting<int>({12, 6}), Layout(mesh, a));
      const auto right = copy_to_mesh(mesh, counting<int>(b.size() == 1 ? Shape{6} : Shape{12, 6}),
                                      Layout(mesh, b));
      const auto sum = add(left, right);
      return "[" + sum.layout().spec(0) + ", " + sum.layout().spec(1) +
             "]: " + to_text(mesh.traffic());
    });
  };
  CHECK(cost({"x", "y"}, {"x", "y"}) == "[x, y]: 0 elements");
  CHECK(cost({"x", "y"}, {"y"}) == "[x, y]: 0 elements");  // the bias as layout.without_axis(0)
  CHECK(cost({"x", "y"}, {none, none}) == "[x, y]: 0 elements");
  CHECK(cost({"x", none}, {none, "y"}) == "[x, y]: 0 elements");
  CHECK(cost({"x", none}, {"y", none}) == "[x, unsharded]: 1 all-gather, 48 elements");
  CHECK(cost({"x", none}, {none, "x"}) == "[x, unsharded]: 1 all-to-all, 18 elements");
  CHECK(cost({"x", none}, {"x"}) == "[x, unsharded]: 1 all-gather, 3 elements");
}

TEST_CASE("multiply and map, of any type", "[mesh]") {
  const auto values = on_all(2, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"x", 2}});
    const auto a = copy_to_mesh(mesh, Tensor<std::int8_t>{100, 3, -5}, Layout(mesh, {"x"}));
    const auto squares = multiply(a, a);
    const auto halves = elementwise(a, [](std::int8_t v) { return v / 2.0; });
    return std::pair(squares.to_global(), halves.to_global());
  });
  CHECK(values.first == Tensor<std::int8_t>{16, 9, 25});  // 10,000 wraps around
  CHECK(values.second == Tensor<double>{50, 1.5, -2.5});
}

TEST_CASE("reductions under every layout", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  const std::size_t axis = GENERATE(0U, 1U, 2U);
  const auto whole = counting<float>({4, 5, 6});
  const auto sums = sharding::narrowed<float>(sharding::sum_along(whole, axis), 1);
  const auto means = sums.map([&](float v) { return v / static_cast<float>(whole.shape()[axis]); });
  const auto wrong = on_meshes(ranks, [&](Mesh& mesh) -> std::string {
    for (const auto& layout : test::layouts_of(mesh, 3)) {
      const auto tensor = copy_to_mesh(mesh, whole, layout);
      const auto rest = layout.without_axis(axis);
      const auto from_end = static_cast<std::ptrdiff_t>(axis) - 3;
      if (!holds(reduce_sum(tensor, axis), sums, rest)) return "sum: " + to_text(layout);
      if (!holds(reduce_sum(tensor, {from_end}), sums, rest)) return "from the end";
      if (!holds(reduce_mean(tensor, from_end), means, rest)) return "mean from the end";
      if (!holds(reduce_mean(tensor, axis), means, rest)) return "mean: " + to_text(layout);
      if (reduce_sum(tensor).to_global().item() != 7260) return "all: " + to_text(layout);
      if (reduce_mean(tensor).to_global().item() != 60.5F) return "mean of all";
      for (const auto& to : test::layouts_of(mesh, 2)) {
        if (!holds(reduce_sum(tensor, axis, to), sums, to)) return "to " + to_text(to);
      }
    }
    return "";
  });
  CHECK(wrong == "");
}

TEST_CASE("what a reduction costs", "[mesh]") {
  const auto cost = [](std::vector<std::string> specs, std::size_t axis, const char* to = nullptr) {
    return on_all(6, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 2}, {"y", 3}});
      const auto tensor = copy_to_mesh(mesh, counting<double>({12, 6}), Layout(mesh, specs));
      std::optional<Layout> layout;
      if (to != nullptr) layout.emplace(mesh, std::vector<std::string>{to});
      const auto sum = reduce_sum(tensor, axis, layout);
      return "[" + sum.layout().spec(0) + "]: " + to_text(mesh.traffic());
    });
  };
  CHECK(cost({"x", "y"}, 0) == "[y]: 1 all-reduce, 2 elements");
  CHECK(cost({none, "y"}, 0) == "[y]: 0 elements");
  CHECK(cost({"y", none}, 0) == "[unsharded]: 1 all-reduce, 8 elements");
  CHECK(cost({"y", none}, 0, "y") == "[y]: 1 reduce-scatter, 4 elements");
  CHECK(cost({none, none}, 1, "x") == "[x]: 0 elements");
}

TEST_CASE("operations that cannot be are refused alike", "[mesh]") {
  const auto refusal = [](auto body) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"x", 2}});
      const auto a = copy_to_mesh(mesh, counting<float>({2, 3}), Layout(mesh, {"x", none}));
      body(mesh, a);
    });
  };
  using Matrix = DTensor<float>;
  CHECK_THAT(refusal([](Mesh&, const Matrix& a) { matmul(a, a); }),
             StartsWith("2: matmul: no product of shapes (2, 3) and (2, 3)"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix& a) {
               add(a, copy_to_mesh(mesh, counting<float>({2}), Layout(mesh, {none})));
             }),
             StartsWith("2: add: shapes (2, 3) and (2) cannot be broadcast"));
  CHECK_THAT(
      refusal([](Mesh&, const Matrix& a) { reduce_sum(a, 2); }),
      StartsWith("2: a tensor with sharding_specs:[x, unsharded], mesh:[x=2] has no axis 2"));
  CHECK_THAT(refusal([](Mesh&, const Matrix& a) { reduce_mean(a, -3); }),
             Catch::Contains("has no axis -3"));
  CHECK_THAT(refusal([](Mesh&, const Matrix& a) { reduce_mean(a, 2); }),
             StartsWith("2: a tensor with"));
  CHECK_THAT(
      refusal([](Mesh& mesh, const Matrix& a) { reduce_sum(a, 0, Layout::replicated(mesh, 2)); }),
      StartsWith("2: a tensor with"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix& a) {
               reduce_mean(a, 0, Layout::replicated(mesh, 1).partial_over("x"));
             }),
             StartsWith("2: a mean with"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix&) {
               reduce_mean(copy_to_mesh(mesh, counting<int>({2}), Layout(mesh, {"x"})));
             }),
             StartsWith("2: a mean of whole numbers"));
  CHECK_THAT(
      refusal([](Mesh& mesh, const Matrix&) {
        reduce_mean(copy_to_mesh(mesh, counting<float>({0, 2}), Layout(mesh, {none, none})), 0);
      }),
      StartsWith("2: the mean of no values, of shape (0, 2)"));
  CHECK_THAT(
      refusal([](Mesh& mesh, const Matrix& a) {
        Mesh other(mesh.communicator(), {{"y", 2}});
        add(a, copy_to_mesh(other, counting<float>({2, 3}), Layout(other, {"y", none})));
      }),
      StartsWith("2: add: tensors on different meshes: [x=2 of ranks 0, 1] and [y=2 of ranks "
                 "0, 1]"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix& a) {
               Mesh other(mesh.communicator(), {{"y", 2}});
               softmax_cross_entropy(
                   a, copy_to_mesh(other, Tensor<std::int32_t>{1, 2}, Layout(other, {none})));
             }),
             StartsWith("2: softmax_cross_entropy: tensors on different meshes"));
  CHECK_THAT(refusal([](Mesh& mesh, const Matrix& a) {
               Mesh other(mesh.communicator(), {{"y", 2}});
               DVariable w("w", a);
               w.assign(copy_to_mesh(other, counting<float>({2, 3}), Layout(other, {none, none})));
             }),
             StartsWith("2: assign: tensors on different meshes"));
  const auto of_other_ranks = test::refusal(4, [](comm::Communicator& comm) {
    const auto pair_of = [&](int color) { return comm.split(color); };
    const auto neighbours = pair_of(comm.rank() / 2);
    const auto others = pair_of(comm.rank() % 2);
    Mesh mesh(*neighbours, {{"x", 2}});
    Mesh other(*others, {{"x", 2}});
    try {
      add(copy_to_mesh(mesh, counting<float>({2}), Layout(mesh, {none})),
          copy_to_mesh(other, counting<float>({2}), Layout(other, {none})));
    } catch (const comm::AgreedError&) {  // the text has each rank's own meshes
      throw comm::AgreedError(ExitCode::usage, "refused");
    }
  });
  CHECK(of_other_ranks == "2: refused");
}

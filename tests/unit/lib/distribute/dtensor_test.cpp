// Tensors over a mesh: making them, moving them, and what that costs.
#include "lockstep/distribute/dtensor.hpp"

#include <catch2/catch.hpp>

#include "lockstep/distribute/tensor.hpp"
#include "tests/support/layouts.hpp"
#include "tests/support/refusal.hpp"

namespace lockstep::sharding {

/// Damages one rank's piece.
struct DTensorTest {
  template <class T>
  static void damage(DTensor<T>& tensor) {
    auto piece = tensor.unpack();
    piece.values()[0] += 1;
    tensor.piece_ = std::make_shared<const Tensor<T>>(std::move(piece));
  }
};

}  // namespace lockstep::sharding

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using sharding::MoveKind;
using test::counting;
using test::on_all;
using test::per_rank;

namespace {

constexpr auto none = Layout::unsharded;

// Of a temporary, so that `for (auto n : (a + b).shape())` does not dangle.
static_assert(std::is_same_v<decltype(std::declval<Tensor<float>>().shape()), Shape>);
static_assert(std::is_same_v<decltype(std::declval<DTensor<float>>().shape()), Shape>);
static_assert(std::is_same_v<decltype(std::declval<DTensor<float>>().layout()), Layout>);

/// This rank's piece by its indices alone, without any code that moves.
Tensor<float> piece_of(const Tensor<float>& whole, const Layout& layout, int rank) {
  const auto rows = layout.owned(whole.shape()[0], 0, rank);
  const auto columns = layout.owned(whole.shape()[1], 1, rank);
  std::vector<float> values;
  for (auto i = rows.begin; i < rows.end; ++i) {
    for (auto j = columns.begin; j < columns.end; ++j) {
      values.push_back(whole.values()[i * whole.shape()[1] + j]);
    }
  }
  return {{rows.size(), columns.size()}, std::move(values)};
}

/// An addend of it: the ranks along partial dimensions have addends that sum to the piece.
Tensor<float> addend_of(const Tensor<float>& whole, const Layout& layout, int rank) {
  float share = 0;
  float factor = 1;
  for (const auto& [name, size] : layout.mesh().dimensions()) {
    if (!layout.is_partial_over(name)) continue;
    // Coordinates 0, 1, ... have 2 - size, 1, 1, ... of the whole.
    factor *= layout.mesh().coordinate(rank, name) == 0 ? 2.0F - static_cast<float>(size) : 1.0F;
    share = 1;
  }
  return piece_of(whole, layout, rank).map([&](float v) { return share > 0 ? factor * v : v; });
}

/// How often each kind of move is made, and what is counted for it on a rank. Pieces are padded on
/// the axes that the move cuts or joins, and on no other.
Traffic expected_traffic(const Layout& from, const Layout& to, const Shape& shape, int rank) {
  Traffic traffic;
  Layout now = from;
  for (const auto& move : sharding::moves_between(from, to)) {
    const auto size = static_cast<std::size_t>(from.mesh().size(move.dimension));
    const auto padded = [&](std::size_t axis) { return (shape[axis] + size - 1) / size; };
    Shape block = now.local_shape(shape, rank);
    std::uint64_t* kind = nullptr;
    std::size_t times = size - 1;
    if (move.kind == MoveKind::all_gather || move.kind == MoveKind::all_to_all) {
      kind = move.kind == MoveKind::all_gather ? &traffic.all_gathers : &traffic.all_to_alls;
      block[move.from] = padded(move.from);
    }
    if (move.kind == MoveKind::reduce_scatter) kind = &traffic.reduce_scatters;
    if (move.kind == MoveKind::reduce_scatter || move.kind == MoveKind::all_to_all) {
      block[move.to] = padded(move.to);
    }
    if (move.kind == MoveKind::all_reduce) {
      kind = &traffic.all_reduces;
      times *= 2;
      block = {(elements_of(block) + size - 1) / size};
    }
    if (kind != nullptr && times * elements_of(block) > 0) {
      ++*kind;
      traffic.elements += times * elements_of(block);
    }
    now = sharding::after(now, move);
  }
  return traffic;
}

/// What a relayout is counted as, on every rank.
std::string traffic_of(std::vector<MeshDimension> dimensions, const std::vector<std::string>& from,
                       const std::vector<std::string>& to, const Shape& shape) {
  int ranks = 1;
  for (const auto& dimension : dimensions) ranks *= dimension.size;
  return on_all(ranks, [&](comm::Communicator& comm) {
    Mesh mesh(comm, dimensions);
    const auto tensor = copy_to_mesh(mesh, counting<float>(shape), Layout(mesh, from));
    mesh.reset_traffic();
    tensor.relayout(Layout(mesh, to));
    return to_text(mesh.traffic());
  });
}

}  // namespace

TEST_CASE("pack gives each replica its piece and only that, and unpack is its inverse", "[mesh]") {
  const auto pieces = per_rank(4, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 4}});
    const Tensor<int> mine({1, 2}, {10 * comm.rank(), 10 * comm.rank() + 1});
    const auto tensor = pack_to_mesh(mesh, mine, Layout(mesh, {"batch", none}));
    if (tensor.shape() != Shape{4, 2} || tensor.unpack() != mine) throw std::logic_error("pack");
    if (mesh.traffic() != Traffic{}) throw std::logic_error("pack moved something");
    return tensor.to_global();
  });
  for (const auto& piece : pieces) {
    CHECK(piece == Tensor<int>({4, 2}, {0, 1, 10, 11, 20, 21, 30, 31}));
  }
}

TEST_CASE("a tensor that all ranks have is cut without communication", "[mesh]") {
  const auto pieces = per_rank(6, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 2}, {"model", 3}});
    const auto tensor =
        copy_to_mesh(mesh, counting<float>({3, 4}), Layout(mesh, {"batch", "model"}));
    tensor.verify();
    if (mesh.traffic() != Traffic{}) throw std::logic_error("something was moved");
    return tensor.unpack();
  });
  CHECK(pieces[0] == Tensor<float>({2, 2}, {1, 2, 5, 6}));
  CHECK(pieces[1] == Tensor<float>({2, 2}, {3, 4, 7, 8}));
  CHECK(pieces[2] == Tensor<float>({2, 0}, {}));
  CHECK(pieces[3] == Tensor<float>({1, 2}, {9, 10}));
  CHECK(pieces[4] == Tensor<float>({1, 2}, {11, 12}));
  CHECK(pieces[5] == Tensor<float>({1, 0}, {}));
}

TEST_CASE("relayout moves between all layouts, and nothing else than they imply", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  const Shape shape = GENERATE(Shape{8, 12}, Shape{5, 7}, Shape{1, 3});
  for (const auto& dimensions : test::meshes_of(ranks)) {
    const auto wrong = on_all(ranks, [&](comm::Communicator& comm) {
      Mesh mesh(comm, dimensions);
      const auto whole = counting<float>(shape);
      std::string first;
      for (const auto& from : test::partial_layouts_of(mesh, 2)) {
        const auto tensor = pack_to_mesh(mesh, addend_of(whole, from, comm.rank()), from);
        for (const auto& to : test::layouts_of(mesh, 2)) {
          mesh.reset_traffic();
          const auto moved = tensor.relayout(to);
          const bool right = moved.unpack() == piece_of(whole, to, comm.rank()) &&
                             moved.layout() == to && moved.shape() == shape;
          const auto expected = expected_traffic(from, to, shape, comm.rank());
          const bool counted = mesh.traffic() == expected;
          if (!comm.all_agree(right && counted) && first.empty()) {
            first = to_text(from) + " -> " + to_text(to) + ": " + to_text(expected);
          }
        }
      }
      return first;
    });
    REQUIRE(wrong == "");
  }
}

TEST_CASE("what a relayout costs", "[mesh]") {
  const std::vector<MeshDimension> line = {{"x", 4}};
  const std::vector<MeshDimension> grid = {{"x", 2}, {"y", 3}};
  const Shape shape = {12, 24};  // 288 values
  CHECK(traffic_of(line, {"x", none}, {"x", none}, shape) == "0 elements");
  CHECK(traffic_of(line, {none, none}, {none, "x"}, shape) == "0 elements");
  CHECK(traffic_of(line, {"x", none}, {none, none}, shape) == "1 all-gather, 216 elements");
  CHECK(traffic_of(line, {"x", none}, {none, "x"}, shape) == "1 all-to-all, 54 elements");
  CHECK(traffic_of(grid, {"x", "y"}, {none, none}, shape) == "2 all-gathers, 240 elements");
  CHECK(traffic_of(grid, {"x", none}, {"x", "y"}, shape) == "0 elements");
  CHECK(traffic_of(grid, {"x", none}, {none, "y"}, shape) == "1 all-gather, 48 elements");
  CHECK(traffic_of(grid, {"x", none}, {"y", none}, shape) == "1 all-gather, 144 elements");
  CHECK(traffic_of(grid, {"x", "y"}, {"y", "x"}, shape) ==
        "1 all-gather, 1 all-to-all, 112 elements");
  CHECK(traffic_of(line, {"x", none}, {none, none}, {5, 2}) == "1 all-gather, 12 elements");
}

TEST_CASE("a gradient is summed over the batch dimension, whole or in slices", "[mesh]") {
  const auto text = on_all(4, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 4}});
    const auto mine =
        counting<float>({4, 3}).map([&](float v) { return v * static_cast<float>(comm.rank()); });
    const auto gradient =
        pack_to_mesh(mesh, mine, Layout::replicated(mesh, 2).partial_over("batch"));
    const auto summed = gradient.relayout(Layout::replicated(mesh, 2));
    std::string all = to_text(summed.unpack()) + ": " + to_text(mesh.traffic()) + "; ";
    mesh.reset_traffic();
    const auto sliced = gradient.relayout(Layout(mesh, {"batch", none}));
    all += to_text(mesh.traffic());
    if (sliced.to_global() != summed.unpack()) return std::string("slices differ");
    return all;
  });
  CHECK(text ==
        "[[6.0, 12.0, 18.0], [24.0, 30.0, 36.0], [42.0, 48.0, 54.0], [60.0, 66.0, 72.0]]: 1 "
        "all-reduce, 18 elements; "
        "1 reduce-scatter, 9 elements");
}

TEST_CASE("every type of number is moved", "[mesh]") {
  const auto check = [](auto value) {
    using T = decltype(value);
    const bool right =
        on_all(3, [](comm::Communicator& comm) -> int {
          Mesh mesh(comm, {{"x", 3}});
          const auto whole = counting<T>({4, 5});
          const auto tensor = copy_to_mesh(mesh, whole, Layout(mesh, {"x", none}));
          return tensor.relayout(Layout(mesh, {none, "x"})).to_global() == whole ? 1 : 0;
        }) == 1;
    CHECK(right);
  };
  check(std::int8_t{});
  check(std::uint16_t{});
  check(std::int32_t{});
  check(std::int64_t{});
  check(float{});
  check(double{});
}

TEST_CASE("verify names the replica whose bits differ", "[mesh]") {
  const auto refusal = [](std::vector<std::string> specs, int damaged) {
    return test::refusal(6, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"batch", 2}, {"model", 3}});
      auto tensor = copy_to_mesh(mesh, counting<float>({6, 6}), Layout(mesh, specs));
      if (comm.rank() == damaged) sharding::DTensorTest::damage(tensor);
      tensor.verify();
    });
  };
  CHECK(refusal({"batch", none}, -1) == "nothing");
  CHECK_THAT(refusal({"batch", none}, 4),
             StartsWith("70: replicas of a tensor with sharding_specs:[batch, unsharded]") &&
                 Contains("rank 4 differs from ranks 3, 5"));
  CHECK_THAT(refusal({none, none}, 0), Contains("rank 0 differs from ranks 1-5"));
  CHECK_THAT(refusal({none, "model"}, 1), Contains("rank 4 differs from rank 1"));
  CHECK(refusal({"batch", "model"}, 2) == "nothing");  // nobody else has that piece
}

TEST_CASE("tensors that ranks disagree on are refused, naming the odd one", "[mesh]") {
  const auto refusal = [](auto body) {
    return test::refusal(4, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"batch", 4}});
      body(mesh);
    });
  };
  CHECK_THAT(refusal([](Mesh& mesh) {
               const Shape shape = {mesh.rank() == 2 ? 3U : 2U, 5};
               pack_to_mesh(mesh, Tensor<float>(shape, std::vector<float>(elements_of(shape))),
                            Layout(mesh, {"batch", none}));
             }),
             StartsWith("2: ") && Contains("of axis 0 rank 2 has 3 (not 2)"));
  CHECK_THAT(refusal([](Mesh& mesh) {
               const Layout odd(mesh, {none, "batch"});
               const Layout even(mesh, {"batch", none});
               pack_to_mesh(mesh, counting<float>({2, 2}), mesh.rank() == 1 ? odd : even);
             }),
             StartsWith("2: the tensor to be packed differs between ranks:") &&
                 Contains("[unsharded, batch], mesh:[batch=4] on rank 1 on "));
  CHECK_THAT(refusal([](Mesh& mesh) {
               const Layout layout(mesh, {"batch"});
               if (mesh.rank() == 3) {
                 pack_to_mesh(mesh, Tensor<double>{1}, layout);
               } else {
                 pack_to_mesh(mesh, Tensor<float>{1}, layout);
               }
             }),
             Contains("type is float64 on rank 3 on "));
  CHECK_THAT(refusal([](Mesh& mesh) {
               copy_to_mesh(mesh, counting<float>({2, mesh.rank() == 0 ? 3U : 2U}),
                            Layout::replicated(mesh, 2));
             }),
             StartsWith("2: ") && Contains("shape is (2, 3) on rank 0 on "));
  CHECK_THAT(refusal([](Mesh& mesh) {
               const Tensor<float> mine = {1, mesh.rank() == 2 ? 7.0F : 2.0F};
               copy_to_mesh(mesh, mine, Layout(mesh, {"batch"}));
             }),
             StartsWith("70: ") && Contains("on rank 2 on "));
}

TEST_CASE("tensors that fit no layout are refused alike", "[mesh]") {
  const auto refusal = [](auto body) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"batch", 2}});
      body(mesh);
    });
  };
  const MeshShape other({{"model", 2}});
  CHECK_THAT(
      refusal([&](Mesh& mesh) { pack_to_mesh(mesh, Tensor<int>{1}, Layout(other, {"model"})); }),
      StartsWith("2: layout sharding_specs:[model], mesh:[model=2] for mesh [batch=2]"));
  CHECK_THAT(refusal([](Mesh& mesh) {
               pack_to_mesh(mesh, Tensor<int>{1}, Layout(mesh, {"batch", none}));
             }),
             StartsWith("2: rank 0 has a piece of shape (1)"));
  CHECK_THAT(
      refusal([](Mesh& mesh) { copy_to_mesh(mesh, Tensor<int>{1}, Layout::replicated(mesh, 2)); }),
      StartsWith("2: layout [unsharded, unsharded] for a tensor of shape (1)"));
  CHECK_THAT(refusal([](Mesh& mesh) {
               copy_to_mesh(mesh, Tensor<int>{1},
                            Layout::replicated(mesh, 1).partial_over("batch"));
             }),
             StartsWith("2: a whole tensor has no addends"));
  CHECK_THAT(refusal([](Mesh& mesh) {
               const auto tensor = copy_to_mesh(mesh, Tensor<int>{1}, Layout(mesh, {"batch"}));
               tensor.relayout(Layout::replicated(mesh, 2));
             }),
             StartsWith("2: a tensor with sharding_specs:[batch]") && Contains("remedy"));
}

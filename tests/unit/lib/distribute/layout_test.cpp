// Meshes and layouts as arithmetic, without ranks.
#include <catch2/catch.hpp>
#include <limits>
#include <set>

#include "lockstep/base/errors.hpp"
#include "lockstep/distribute/mesh.hpp"
#include "tests/support/layouts.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using sharding::Move;
using sharding::MoveKind;

namespace {

const MeshShape two_by_three({{"batch", 2}, {"model", 3}});

Layout layout(std::vector<std::string> specs) { return {two_by_three, std::move(specs)}; }

constexpr auto none = Layout::unsharded;

}  // namespace

TEST_CASE("ranks stand row by row in a mesh", "[mesh]") {
  CHECK(two_by_three.size() == 6);
  CHECK(two_by_three.size("model") == 3);
  CHECK(two_by_three.coordinates(4) == std::vector{1, 1});
  CHECK(two_by_three.coordinate(5, "model") == 2);
  CHECK(to_text(two_by_three) == "batch=2, model=3");
  for (const int ranks : {1, 2, 3, 4, 6, 8, 12, 30}) {
    for (const auto& dimensions : test::meshes_of(ranks)) {
      const MeshShape mesh(dimensions);
      std::set<std::vector<int>> seen;
      for (int rank = 0; rank < ranks; ++rank) {
        REQUIRE(mesh.rank_of(mesh.coordinates(rank)) == rank);
        seen.insert(mesh.coordinates(rank));
      }
      REQUIRE(seen.size() == static_cast<std::size_t>(ranks));
    }
  }
  CHECK_THROWS_AS(two_by_three.coordinates(6), std::out_of_range);
  CHECK_THROWS_AS(two_by_three.rank_of({2, 0}), std::out_of_range);
  CHECK_THROWS_AS(two_by_three.rank_of({1}), std::out_of_range);
}

TEST_CASE("meshes that cannot be are refused", "[mesh]") {
  using Dimensions = std::vector<MeshDimension>;
  const auto refused = [](const Dimensions& dimensions, const char* why) {
    CHECK_THROWS_AS(MeshShape(dimensions), ConfigError);
    CHECK_THROWS_WITH(MeshShape(dimensions), Contains(why));
  };
  refused({}, "without dimensions");
  refused({{"", 2}}, "no name");
  refused({{"unsharded", 2}}, "\"unsharded\"");
  refused({{"batch", 2}, {"batch", 3}}, "two dimensions of the mesh are called \"batch\"");
  refused({{"batch", 0}}, "\"batch\" of the mesh has size 0");
  refused({{"batch", 1 << 20}, {"model", 1 << 20}}, "too many ranks");
  CHECK_THROWS_WITH(two_by_three.index("modle"), Contains("did you mean 'model'?"));
}

TEST_CASE("a layout names a mesh dimension for each axis, or none", "[mesh]") {
  const auto rows = layout({"batch", none});
  CHECK(to_text(rows) == "sharding_specs:[batch, unsharded], mesh:[batch=2, model=3]");
  CHECK(rows == Layout::batch_sharded(two_by_three, "batch", 2));
  CHECK(layout({none, "model"}) == Layout::inner_sharded(two_by_three, "model", 2));
  CHECK(layout({none, none}) == Layout::replicated(two_by_three, 2));
  CHECK(layout({none, none}).is_fully_replicated());
  CHECK_FALSE(rows.is_fully_replicated());
  CHECK(rows.num_shards(0) == 2);
  CHECK(rows.num_shards(1) == 1);
  CHECK(rows.axis_of("batch") == 0);
  CHECK_FALSE(rows.axis_of("model"));
  CHECK(rows != layout({none, "batch"}));
}

TEST_CASE("the bias lies as the activations without axis 0", "[mesh]") {
  CHECK(layout({"batch", "model"}).without_axis(0) == layout({"model"}));
  CHECK(layout({"batch", none}).without_axis(0) == layout({none}));
  CHECK(layout({"batch", none}).without_axis(1) == layout({"batch"}));
  CHECK_THROWS_AS(layout({"batch"}).without_axis(1), ConfigError);
}

TEST_CASE("a layout may leave sums to be taken", "[mesh]") {
  const auto partial = layout({"batch", none}).partial_over("model");
  CHECK(to_text(partial) ==
        "sharding_specs:[batch, unsharded], partial:[model], mesh:[batch=2, model=3]");
  CHECK(partial.is_partial_over("model"));
  CHECK(partial.partial_over("model") == partial);
  CHECK(partial.summed() == layout({"batch", none}));
  CHECK(partial.summed_over("model") == partial.summed());
  CHECK(layout({none}).partial_over("model").partial_over("batch") ==
        layout({none}).partial_over("batch").partial_over("model"));
  CHECK_FALSE(layout({none}).partial_over("batch").is_fully_replicated());
  CHECK_THROWS_WITH(partial.partial_over("batch"), Contains("cuts axis 0"));
  CHECK_THROWS_WITH(partial.with_axis(1, "model"), Contains("cuts axis 1"));
}

TEST_CASE("layouts that cannot be are refused", "[mesh]") {
  CHECK_THROWS_WITH(layout({"batch", "batch"}), Contains("\"batch\" is used twice"));
  CHECK_THROWS_WITH(layout({"rows"}), Contains("no dimension \"rows\""));
  CHECK_THROWS_WITH(Layout::batch_sharded(two_by_three, "batch", 0), Contains("no axis 0"));
  CHECK_THROWS_WITH(layout({"batch"}).local_shape({4, 4}, 0),
                    Contains("[batch] for a tensor of shape (4, 4)"));
}

TEST_CASE("the pieces of every layout cover a tensor, once for each replica", "[mesh]") {
  const Shape shape = GENERATE(Shape{4, 6}, Shape{5, 7}, Shape{1, 2}, Shape{0, 3}, Shape{12, 1});
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (const auto& dimensions : test::meshes_of(ranks)) {
      const MeshShape mesh(dimensions);
      for (const auto& layout : test::layouts_of(mesh, 2)) {
        std::vector<int> owners(elements_of(shape));
        std::vector<Shape> pieces;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto rows = layout.owned(shape[0], 0, rank);
          const auto columns = layout.owned(shape[1], 1, rank);
          pieces.push_back(layout.local_shape(shape, rank));
          REQUIRE(pieces.back() == Shape{rows.size(), columns.size()});
          REQUIRE(pieces.back()[0] <= layout.local_shape(shape, 0)[0]);
          for (auto i = rows.begin; i < rows.end; ++i) {
            for (auto j = columns.begin; j < columns.end; ++j) ++owners[i * shape[1] + j];
          }
        }
        const int replicas = ranks / layout.num_shards(0) / layout.num_shards(1);
        REQUIRE(owners == std::vector(elements_of(shape), replicas));
        REQUIRE(global_shape(layout, pieces) == shape);
      }
    }
  }
}

TEST_CASE("shapes of more elements than there are numbers fit no values", "[mesh]") {
  constexpr std::size_t half = std::size_t{1} << 32U;
  CHECK(elements_of({half, half}) == std::numeric_limits<std::size_t>::max());
  CHECK(elements_of({half, half, 0}) == 0);
  CHECK_THROWS_AS(Tensor<float>({half, half}, {}), std::invalid_argument);
}

TEST_CASE("pieces that make no tensor are refused, naming the odd rank", "[mesh]") {
  const MeshShape line({{"batch", 4}});
  const Layout rows(line, {"batch", none});
  const auto refused = [](const Layout& layout, const std::vector<Shape>& pieces,
                          const char* message) {
    CHECK_THROWS_AS(global_shape(layout, pieces), ConfigError);
    CHECK_THROWS_WITH(global_shape(layout, pieces), Contains(message));
  };
  CHECK(global_shape(rows, {{2, 3}, {2, 3}, {2, 3}, {1, 3}}) == Shape{7, 3});
  refused(rows, {{2, 3}}, "1 piece for a mesh of 4 ranks");
  refused(rows, {{2, 3}, {2, 3}, {3, 3}, {2, 3}}, "of axis 0 rank 2 has 3 (not 2)");
  refused(rows, {{2, 3}, {2, 3}, {2, 3}, {2, 4}}, "of axis 1 rank 3 has 4 (not 3)");
  refused(rows, {{2, 4}, {2, 3}, {2, 3}, {2, 3}}, "of axis 1 rank 0 has 4 (not 3)");
  refused(rows, {{1, 3}, {2, 3}, {2, 3}, {2, 3}}, "of axis 0 rank 0 has 1 (not 2)");
  refused(rows, {{2, 3}, {2}, {2, 3}, {2, 3}}, "rank 1 has a piece of shape (2)");
  refused(layout({"model"}), {{2}, {2}, {2}, {2}, {1}, {2}}, "rank 4 has 1 (not 2)");
}

TEST_CASE("a relayout makes one move for each dimension that differs", "[mesh]") {
  const auto moves = [](const Layout& from, const Layout& to) {
    return sharding::moves_between(from, to);
  };
  using Moves = std::vector<Move>;
  const auto partial = layout({"batch", none}).partial_over("model");
  CHECK(moves(layout({"batch", none}), layout({"batch", none})).empty());
  CHECK(moves(layout({none, none}), layout({none, "batch"})) ==
        Moves{{MoveKind::slice, "batch", 0, 1}});
  CHECK(moves(layout({"model", none}), layout({none, none})) ==
        Moves{{MoveKind::all_gather, "model", 0, 0}});
  CHECK(moves(layout({"model", none}), layout({none, "model"})) ==
        Moves{{MoveKind::all_to_all, "model", 0, 1}});
  CHECK(moves(partial, partial.summed()) == Moves{{MoveKind::all_reduce, "model"}});
  CHECK(moves(partial, layout({"batch", "model"})) ==
        Moves{{MoveKind::reduce_scatter, "model", 0, 1}});
  CHECK(moves(partial, partial).empty());
  // What shrinks pieces comes first, and an axis is free before it is cut anew.
  CHECK(moves(layout({"batch", none}), layout({none, "model"})) ==
        Moves{{MoveKind::slice, "model", 0, 1}, {MoveKind::all_gather, "batch", 0, 0}});
  CHECK(moves(layout({"batch", none}), layout({"model", none})) ==
        Moves{{MoveKind::all_gather, "batch", 0, 0}, {MoveKind::slice, "model", 0, 0}});
  // A circle: the shorter dimension is gathered.
  CHECK(moves(layout({"batch", "model"}), layout({"model", "batch"})) ==
        Moves{{MoveKind::all_gather, "batch", 0, 0},
              {MoveKind::all_to_all, "model", 1, 0},
              {MoveKind::slice, "batch", 0, 1}});
}

TEST_CASE("every relayout ends where it should, in few moves", "[mesh]") {
  for (const auto& dimensions : test::meshes_of(8)) {
    const MeshShape mesh(dimensions);
    for (const auto& from : test::partial_layouts_of(mesh, 3)) {
      for (const auto& to : test::layouts_of(mesh, 3)) {
        Layout now = from;
        const auto moves = sharding::moves_between(from, to);
        for (const auto& move : moves) now = sharding::after(now, move);
        REQUIRE(now == to);
        REQUIRE(moves.size() <= mesh.dimensions().size() + 1);
      }
    }
  }
}

TEST_CASE("a tensor cannot take every layout", "[mesh]") {
  const auto from = layout({"batch", none});
  CHECK_THROWS_WITH(sharding::moves_between(from, layout({"batch"})), Contains("for each axis"));
  CHECK_THROWS_WITH(sharding::moves_between(from, from.partial_over("model")),
                    Contains("no addends over \"model\""));
  CHECK_THROWS_WITH(sharding::moves_between(from, Layout::replicated(MeshShape({{"batch", 6}}), 2)),
                    Contains("with the tensor's mesh"));
}

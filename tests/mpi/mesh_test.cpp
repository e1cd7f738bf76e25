// Meshes and tensors over them, with processes as ranks.
#include "lockstep/distribute/mesh.hpp"

#include <catch2/catch.hpp>

#include "lockstep/distribute/operations.hpp"
#include "tests/support/layouts.hpp"
#include "tests/support/mpi_world.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/require_on_all.hpp"

using namespace lockstep;
using test::counting;
using test::refusal_of;

namespace {

constexpr auto none = Layout::unsharded;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every layout of every mesh goes into every other over MPI", "[mpi][mesh]") {
  auto& comm = test::mpi_world();
  const auto whole = counting<float>({5, 6});
  for (const auto& dimensions : test::meshes_of(comm.size())) {
    Mesh mesh(comm, dimensions);
    for (const auto& from : test::layouts_of(mesh, 2)) {
      const auto tensor = copy_to_mesh(mesh, whole, from);
      for (const auto& to : test::layouts_of(mesh, 2)) {
        const auto moved = tensor.relayout(to);
        REQUIRE_ON_ALL(comm, moved.unpack() == copy_to_mesh(mesh, whole, to).unpack());
        REQUIRE_ON_ALL(comm, moved.to_global() == whole);
      }
    }
  }
}

TEST_CASE("the guide's product under every layout over MPI", "[mpi][mesh]") {
  auto& comm = test::mpi_world();
  const Tensor<float> expected({2, 2}, {20, 14, 56, 41});
  for (const auto& dimensions : test::meshes_of(comm.size())) {
    Mesh mesh(comm, dimensions);
    for (const auto& left : test::layouts_of(mesh, 2)) {
      const auto a = copy_to_mesh(mesh, Tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}), left);
      for (const auto& right : test::layouts_of(mesh, 2)) {
        const auto b = copy_to_mesh(mesh, Tensor<float>({3, 2}, {6, 5, 4, 3, 2, 1}), right);
        const auto product = matmul(a, b);
        product.verify();
        REQUIRE_ON_ALL(comm, product.to_global() == expected);
      }
    }
  }
}

TEST_CASE("sums over MPI have the bits of threads", "[mpi][mesh]") {
  auto& comm = test::mpi_world();
  Mesh mesh(comm, {{"batch", comm.size()}});
  const auto addend = [](int rank) {
    return counting<float>({33}).map(
        [&](float v) { return v / static_cast<float>(3 + rank * rank); });
  };
  Tensor<float> expected = addend(0);
  for (int rank = 1; rank < comm.size(); ++rank) {
    const auto next = addend(rank);
    for (std::size_t i = 0; i < 33; ++i) expected.values()[i] += next.values()[i];
  }
  const auto partial =
      pack_to_mesh(mesh, addend(comm.rank()), Layout::replicated(mesh, 1).partial_over("batch"));
  REQUIRE_ON_ALL(comm, partial.relayout(Layout(mesh, {none})).unpack() == expected);
  REQUIRE_ON_ALL(comm, partial.relayout(Layout(mesh, {"batch"})).to_global() == expected);
}

TEST_CASE("meshes and tensors that do not fit are refused over MPI", "[mpi][mesh]") {
  auto& comm = test::mpi_world();
  const int ranks = comm.size();
  const auto large = refusal_of([&] { Mesh(comm, {{"batch", ranks + 1}}); });
  REQUIRE_ON_ALL(comm, contains(large, "2: mesh batch=" + std::to_string(ranks + 1) + " has"));
  if (ranks < 3) return;  // with two ranks neither is the odd one
  const bool odd = comm.rank() == 1;
  const auto named = refusal_of([&] { Mesh(comm, {{odd ? "rows" : "batch", ranks}}); });
  REQUIRE_ON_ALL(comm,
                 contains(named, "dimension 0 is rows=" + std::to_string(ranks) + " on rank 1"));
  Mesh mesh(comm, {{"batch", ranks}});
  const auto piece = refusal_of(
      [&] { pack_to_mesh(mesh, counting<double>({odd ? 3U : 2U}), Layout(mesh, {"batch"})); });
  REQUIRE_ON_ALL(comm, contains(piece, "2: pieces do not make a tensor") &&
                           contains(piece, "rank 1 has 3 (not 2)"));
}

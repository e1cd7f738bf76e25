// Meshes of ranks: making them, their collectives, and what those are counted as.
#include "lockstep/distribute/mesh.hpp"

#include <catch2/catch.hpp>

#include "tests/support/layouts.hpp"
#include "tests/support/refusal.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using test::on_all;
using test::per_rank;

TEST_CASE("a mesh of one dimension \"batch\" of 8", "[mesh]") {
  const auto coordinates = per_rank(8, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 8}});
    return std::pair(mesh.coordinate("batch"), mesh.communicator("batch").size());
  });
  for (int rank = 0; rank < 8; ++rank) {
    CHECK(coordinates[static_cast<std::size_t>(rank)] == std::pair(rank, 8));
  }
}

TEST_CASE("the ranks along a dimension differ in it alone", "[mesh]") {
  const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
  for (const auto& dimensions : test::meshes_of(ranks)) {
    const auto right = on_all(ranks, [&](comm::Communicator& comm) {
      Mesh mesh(comm, dimensions);
      int wrong = 0;
      for (const auto& [name, size] : dimensions) {
        std::vector<std::uint64_t> there(static_cast<std::size_t>(size));
        const int own = mesh.coordinate(name);
        there[static_cast<std::size_t>(own)] = static_cast<std::uint64_t>(comm.rank());
        mesh.all_gather(name, std::span(there));
        for (int c = 0; c < size; ++c) {
          auto expected = mesh.shape().coordinates(comm.rank());
          expected[mesh.shape().index(name)] = c;
          const auto rank = static_cast<int>(there[static_cast<std::size_t>(c)]);
          if (rank != mesh.shape().rank_of(expected)) ++wrong;
        }
        if (mesh.communicator(name).rank() != own) ++wrong;
      }
      auto all = static_cast<std::uint64_t>(wrong);
      comm.all_reduce(std::span(&all, 1));
      return all;
    });
    REQUIRE(right == 0);
  }
}

TEST_CASE("a dimension of one rank names it as the whole does", "[mesh]") {
  const auto names = per_rank(2, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 1}, {"model", 2}});
    return mesh.communicator("batch").world_rank(0);
  });
  CHECK(names == std::vector<int>{0, 1});
}

TEST_CASE("meshes that do not fit are refused on all ranks alike", "[mesh]") {
  const auto refusal = [](int ranks, auto dimensions) {
    return test::refusal(
        ranks, [&](comm::Communicator& comm) { Mesh mesh(comm, dimensions(comm.rank())); });
  };
  using Dimensions = std::vector<MeshDimension>;
  CHECK_THAT(refusal(4,
                     [](int) {
                       return Dimensions{{"batch", 2}, {"model", 3}};
                     }),
             StartsWith("2: mesh batch=2, model=3 has 6 ranks, but there are 4"));
  CHECK_THAT(refusal(2,
                     [](int) {
                       return Dimensions{{"batch", 2}, {"batch", 1}};
                     }),
             StartsWith("2: two dimensions of the mesh are called \"batch\""));
  CHECK_THAT(refusal(4,
                     [](int rank) {
                       return rank == 2 ? Dimensions{{"batch", 2}, {"modle", 2}}
                                        : Dimensions{{"batch", 2}, {"model", 2}};
                     }),
             StartsWith("2: the mesh differs between ranks:") &&
                 Contains("dimension 1 is modle=2 on rank 2 on ") &&
                 Contains("model=2 on the other 3 ranks"));
  CHECK_THAT(
      refusal(
          4,
          [](int rank) {
            return rank == 3 ? Dimensions{{"batch", 4}} : Dimensions{{"batch", 2}, {"model", 2}};
          }),
      StartsWith("2: the mesh differs") && Contains("rank 3 on "));
}

TEST_CASE("the collectives of a mesh are counted, with what reaches a rank", "[mesh]") {
  const auto text = on_all(6, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 2}, {"model", 3}, {"one", 1}});
    std::string all;
    const auto note = [&] {
      all += to_text(mesh.traffic()) + "; ";
      mesh.reset_traffic();
    };
    std::vector<std::int64_t> twelve(12, 1);
    std::vector<std::int64_t> other(12);
    std::vector<std::int64_t> four(4);
    mesh.all_gather("model", std::span(twelve));
    note();
    mesh.all_to_all("batch", std::span<const std::int64_t>(twelve), std::span(other));
    note();
    mesh.reduce_scatter("model", std::span<const std::int64_t>(twelve), std::span(four));
    note();
    mesh.all_reduce("model", std::span(twelve));
    note();
    mesh.all_reduce("model", std::span(twelve).first(7));  // padded to 9
    note();
    mesh.all_gather("one", std::span(twelve));
    mesh.all_reduce("one", std::span(twelve));
    mesh.all_reduce("model", std::span(twelve).first(0));
    note();
    return all;
  });
  CHECK(text ==
        "1 all-gather, 8 elements; 1 all-to-all, 6 elements; 1 reduce-scatter, 8 elements; "
        "1 all-reduce, 16 elements; 1 all-reduce, 12 elements; 0 elements; ");
}

TEST_CASE("blocks that are not equal are refused, before anything is sent", "[mesh]") {
  const auto refused = on_all(2, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 2}});
    std::vector<float> values(3, 1);
    std::vector<float> other(3);
    const std::span<const float> three(values);
    int times = 0;
    const auto expect_refusal = [&](auto call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        ++times;
      }
    };
    expect_refusal([&] { mesh.all_gather("batch", std::span(values)); });
    expect_refusal([&] { mesh.all_to_all("batch", three, std::span(other)); });
    expect_refusal([&] { mesh.all_to_all("batch", three.first(2), std::span(other).first(0)); });
    expect_refusal([&] { mesh.reduce_scatter("batch", three, std::span(other).first(1)); });
    expect_refusal(
        [&] { mesh.reduce_scatter("batch", three.first(2), std::span(other).first(2)); });
    expect_refusal(
        [&] { mesh.reduce_scatter("batch", three.first(2), std::span(other).first(0)); });
    return std::pair(times, mesh.traffic() == Traffic{});
  });
  CHECK(refused == std::pair(6, true));
}

TEST_CASE("sums are taken in the order of the coordinates", "[mesh]") {
  // In float32, ((1 + 2^25) - 2^25) + 1 is 1, and other orders give 0 or 2.
  const auto sums = on_all(4, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 4}});
    const float large = 33554432.0F;
    const std::vector<float> addends = {1, large, -large, 1};
    std::vector<float> all(5, addends[static_cast<std::size_t>(comm.rank())]);
    std::vector<float> blocks(8, all[0]);
    std::vector<float> own(2);
    mesh.all_reduce("batch", std::span(all));
    mesh.reduce_scatter("batch", std::span<const float>(blocks), std::span(own));
    all.insert(all.end(), own.begin(), own.end());
    return all;
  });
  CHECK(sums == std::vector<float>(7, 1.0F));
}

TEST_CASE("sums of whole numbers wrap around", "[mesh]") {
  const auto sums = on_all(3, [](comm::Communicator& comm) {
    Mesh mesh(comm, {{"batch", 3}});
    std::vector<std::int8_t> bytes = {100, -100};
    std::vector<std::int64_t> words = {std::numeric_limits<std::int64_t>::max()};
    mesh.all_reduce("batch", std::span(bytes));
    mesh.all_reduce("batch", std::span(words));
    return std::pair(bytes, words);
  });
  CHECK(sums.first == std::vector<std::int8_t>{44, -44});
  CHECK(sums.second == std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max() - 2});
}

TEST_CASE("a rank that throws releases those who wait along any dimension", "[mesh]") {
  for (const char* dimension : {"batch", "model"}) {
    CHECK_THROWS_WITH(comm::run_ranks(8,
                                      [&](comm::Communicator& comm) {
                                        Mesh mesh(comm, {{"batch", 2}, {"model", 4}});
                                        if (comm.rank() == 5) throw std::runtime_error("lost");
                                        std::vector<float> values(64, 1);
                                        mesh.all_reduce(dimension, std::span(values));
                                        mesh.communicator().all_agree(true);
                                      }),
                      "lost");
  }
}

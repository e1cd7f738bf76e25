// What a program with both using-directives calls without a namespace. The suite `package` looks up
// every name of the public headers in both namespaces.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <iomanip>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <ranges>
#include <stack>
#include <valarray>

#include "lockstep/lockstep.hpp"
#include "tests/support/per_rank.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace std;

namespace {

/// {0: [0, 2], 1: [4, 6]} and their sum: data sets and values.
string values(comm::Communicator& comm) {
  Strategy strategy(comm);
  const auto even = range_dataset(8).filter([](int64_t i) { return i % 2 == 0; });
  const auto doubled = from_elements<int64_t>({0, 1, 2, 3}).map([](int64_t i) { return 2 * i; });
  auto data =
      strategy.distribute_dataset(doubled.zip(even).batch(4), {.policy = data::ShardPolicy::data});
  string text;
  for (auto& batch : data) {
    const auto first = strategy.run([](const auto& x, const auto&) { return x; }, batch);
    text += strategy.describe(first) + " " + to_text(strategy.reduce(ReduceOp::sum, first, 0)) +
            " " + to_text(strategy.gather(first, 0)) + " " + to_text(rows_of(batch_of(vector{1})));
  }
  return text + " " + to_text(cut(join_batches<Tensor<int>>({{1, 2}, {3}}), 1, 3));
}

/// Operations over a mesh.
string tensors(comm::Communicator& comm) {
  Mesh mesh(comm, {{"x", comm.size()}});
  const auto all = Layout::replicated(mesh, 1);
  const auto a = copy_to_mesh(mesh, Tensor<float>{1, 2, 3, 4}, all);
  const auto ones = filled(mesh, {4}, 1.0F, all);
  Tape tape;
  const auto squares = elementwise(a, [](float v) { return v * v; });
  const auto sums = elementwise(squares, ones, plus<float>());
  const auto part = slice_along(divide(multiply(sums, ones), add(ones, ones)), 0, {1, 4});
  const auto own = pack_to_mesh(mesh, Tensor<float>{1}, all.partial_over("x"));
  return to_text(part.to_global()) + to_text(reduce_sum(own, 0).to_global());
}

}  // namespace

TEST_CASE("a program uses namespaces lockstep and std", "[names]") {
  CHECK(test::on_all(2, values) == "{0: [0, 2], 1: [4, 6]} 12 [0, 2, 4, 6] 1 [2, 3]");
  CHECK(test::on_all(2, tensors) == "[2.5, 5.0, 8.5]2.0");
  const test::TemporaryFolder folder;
  { ofstream(folder.path() / "one") << "1\n"; }
  CHECK(list_files(folder.path() / "*").size() == 1);
  CHECK(with_decimals(0.25, 1) == "0.2");
}

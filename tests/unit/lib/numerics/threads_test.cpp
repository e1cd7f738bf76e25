// The threads of a rank do each part of shared work once, whichever of them are late.
#include "lockstep/numerics/threads.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

TEST_CASE("each part of shared work is done once, under the number of one thread", "[numerics]") {
  const int threads = GENERATE(1, 2, 3, 7);
  set_product_threads(threads);
  REQUIRE(product_threads() == static_cast<std::size_t>(threads));
  constexpr int turns = 300;
  constexpr std::size_t unit = 16;
  std::vector<int> done(10'007);
  std::vector<std::size_t> of_thread(product_threads());  // a race if two had one number
  bool are_aligned = true;
  for (int turn = 0; turn < turns; ++turn) {
    if (turn % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // others sleep
    share(done.size(), unit, 1000, [&](Range part, std::size_t thread) {
      for (std::size_t i = part.begin; i < part.end; ++i) ++done[i];
      of_thread[thread] += part.size();
      if (part.begin % unit != 0) are_aligned = false;
    });
  }
  CHECK(are_aligned);
  CHECK(std::count(done.begin(), done.end(), turns) == static_cast<long>(done.size()));
  std::size_t sum = 0;
  for (const std::size_t count : of_thread) sum += count;
  CHECK(sum == turns * done.size());
  share(0, unit, 1000, [&](Range, std::size_t) { are_aligned = false; });
  CHECK(are_aligned);
  set_product_threads(1);
}

TEST_CASE("little work is done by the calling thread alone", "[numerics]") {
  set_product_threads(2);
  const auto here = std::this_thread::get_id();
  int calls = 0;
  share(100, 1, 1, [&](Range part, std::size_t thread) {
    ++calls;
    CHECK(std::this_thread::get_id() == here);
    CHECK(part.size() == 100);
    CHECK(thread == 0);
  });
  CHECK(calls == 1);
  set_product_threads(1);
}

}  // namespace
}  // namespace lockstep

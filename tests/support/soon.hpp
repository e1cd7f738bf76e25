// Waiting for another thread.
#pragma once

#include <chrono>
#include <thread>

namespace lockstep::test {

/// Waits until `condition()` holds; false if it does not within 20 seconds.
template <class Condition>
bool soon(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace lockstep::test

// What tests of device code ask of the place where they run: fakes of CUDA, or real devices.
// tests/fakes/cuda/fake_device.cpp or tests/gpu/real_device.cpp answers: CMake chooses.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::test {

/// How many devices a test may use: `wanted`, or those that there are, if at least `min`. Fakes
/// are as many as wanted. Else 0, and a warning that says what is skipped. On a test's own thread.
int devices(int wanted, int min);

/// Seeds of the orders in which the fake runs work, blocks and threads (tests/fakes/cuda/fake.hpp).
/// A real device chooses its own, so there is one.
std::vector<unsigned> seeds();

/// Uses a seed, for all threads, as long as this lives.
class Seeded {
 public:
  explicit Seeded(unsigned seed);
  ~Seeded();
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  unsigned before_;
};

/// How many multiprocessors the fake's devices have; a real device has its own.
void set_multiprocessors(int count);

/// What was taken of the runtime and is not given back; always 0 where nobody counts it.
std::size_t live_objects();

}  // namespace lockstep::test

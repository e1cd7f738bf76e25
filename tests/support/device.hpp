// What tests of device code ask of the place where they run: fakes of CUDA, or real devices.
// tests/fakes/cuda/fake_device.cpp or tests/gpu/real_device.cpp answers: CMake chooses.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::test {

/// How many devices a test may use: `wanted`, or those that there are, if at least `least`. Fakes
/// are as many as wanted. Else 0, and a warning that says what is skipped. On a test's own thread.
int devices(int wanted, int least);

/// The orders in which a block's threads can be told to run between two barriers: a real device
/// chooses its own, so there is one.
std::vector<int> thread_orders();

/// For the kernels of the calling thread.
void set_thread_order(int order);

/// What was taken of the runtime and is not given back; always 0 where nobody counts it.
std::size_t live_objects();

}  // namespace lockstep::test

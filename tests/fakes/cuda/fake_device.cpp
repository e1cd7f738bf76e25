#include "tests/fakes/cuda/fake.hpp"
#include "tests/support/device.hpp"

namespace lockstep::test {

int devices(int wanted, int /*least*/) {
  fake_cuda::set_devices(wanted);
  return wanted;
}

std::vector<int> thread_orders() {
  return {static_cast<int>(fake_cuda::Order::ascending),
          static_cast<int>(fake_cuda::Order::descending)};
}

void set_thread_order(int order) { fake_cuda::set_order(static_cast<fake_cuda::Order>(order)); }

std::size_t live_objects() { return fake_cuda::live_objects(); }

}  // namespace lockstep::test

#include "tests/fakes/cuda/fake.hpp"
#include "tests/support/device.hpp"

namespace lockstep::test {

int devices(int wanted, int /*min*/) {
  fake_cuda::set_devices(wanted);
  return wanted;
}

std::vector<unsigned> seeds() { return {fake_cuda::seed(), fake_cuda::seed() + 1}; }

Seeded::Seeded(unsigned seed) : before_(fake_cuda::seed()) { fake_cuda::set_seed(seed); }
Seeded::~Seeded() { fake_cuda::set_seed(before_); }

void set_multiprocessors(int count) { fake_cuda::set_multiprocessors(count); }

std::size_t live_objects() { return fake_cuda::live_objects(); }

}  // namespace lockstep::test

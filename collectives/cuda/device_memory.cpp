#include "collectives/cuda/device_memory.hpp"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "lib/base/cuda/runtime.hpp"

namespace lockstep::comm {

void require_device_memory(const char* collective, const void* memory) {
  cudaPointerAttributes attributes = {};
  cuda::check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice) return;
  throw std::invalid_argument(std::string(collective) +
                              ": the values lie in host memory, which is for the host's "
                              "communicator");
}

}  // namespace lockstep::comm

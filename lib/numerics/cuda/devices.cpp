#include "lib/numerics/cuda/devices.hpp"

#include <cuda_runtime_api.h>

namespace lockstep {

CudaDevices cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return {true, 0, cudaGetErrorString(error)};
  return {true, count, count == 0 ? "no device is visible" : ""};
}

}  // namespace lockstep

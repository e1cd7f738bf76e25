// Stands in for cuda/devices.cpp in a build without CUDA.
#include "lib/numerics/cuda/devices.hpp"

namespace lockstep {

CudaDevices cuda_devices() { return {false, 0, "this build has no CUDA parts"}; }

}  // namespace lockstep

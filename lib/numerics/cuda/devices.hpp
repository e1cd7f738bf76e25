// Which CUDA devices this process could use. The one header of the device that needs no CUDA.
#pragma once

#include <string>

namespace lockstep {

/// `count` devices, or none and the reason.
struct CudaDevices {
  bool built_in = false;  ///< this build has the CUDA parts
  int count = 0;
  std::string reason;  ///< why there is none, in words
};

/// Asks the CUDA runtime; a build without it says so. Local.
CudaDevices cuda_devices();

}  // namespace lockstep

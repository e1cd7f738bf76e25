// Replaces nccl.cpp in a build without NCCL.
#include "lockstep/collectives/cuda/device.hpp"

namespace lockstep::comm {

bool nccl_built_in() noexcept { return false; }

std::unique_ptr<DeviceCommunicator> make_nccl_communicator(Communicator& /*host*/,
                                                           const cuda::Stream& /*stream*/,
                                                           std::chrono::milliseconds /*limit*/) {
  throw ConfigError(
      "this build has no NCCL",
      "install NCCL's development files and configure anew, or use another `backend`");
}

}  // namespace lockstep::comm

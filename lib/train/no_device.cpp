#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/device.hpp"

namespace lockstep::train {

std::unique_ptr<DeviceReplica> make_device_replica(nn::Network<float>& /*network*/,
                                                   const ReplicaOptions& /*options*/,
                                                   std::size_t /*rows*/,
                                                   comm::Communicator& /*comm*/) {
  throw comm::AgreedError(ExitCode::usage, "device cuda: this build has no CUDA parts",
                          "use `device=cpu`, or build the preset cuda");
}

}  // namespace lockstep::train

// Toy runs on devices.
#pragma once

#include "lib/train/device.hpp"
#include "tests/support/toy_run.hpp"

namespace lockstep::test {

/// A replica on a device as a test asks for it.
inline auto on_device(train::DeviceExchange exchange, bool strict = true,
                      comm::Communicator* devices = nullptr) {
  return [=](nn::Network<float>& network, std::size_t rows, comm::Communicator& comm) {
    return train::make_device_replica(network,
                                      {.strict = strict,
                                       .share = exchange != train::DeviceExchange::nccl,
                                       .exchange = exchange,
                                       .rows = rows,
                                       .devices = devices},
                                      comm);
  };
}

}  // namespace lockstep::test

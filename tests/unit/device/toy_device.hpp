// Toy runs on devices.
#pragma once

#include "tests/support/toy_run.hpp"

namespace lockstep::test {

/// Options of a replica on a device.
inline auto on_device(train::DeviceExchange exchange, bool strict = true,
                      comm::Communicator* devices = nullptr) {
  return [=](train::ReplicaOptions& options) {
    options.device = train::Device::cuda;
    options.products = strict ? train::ProductsChoice::strict : train::ProductsChoice::library;
    options.share_device = exchange != train::DeviceExchange::nccl;
    options.device_exchange = exchange;
    options.devices = devices;
    options.threads = 0;
  };
}

}  // namespace lockstep::test

// Ranks as threads with a device each, for tests of collectives between devices.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/collectives/cuda/device.hpp"
#include "lockstep/collectives/threads.hpp"
#include "tests/support/device.hpp"

namespace lockstep::test {

enum class Kind { nccl, staged };

inline std::unique_ptr<comm::DeviceCommunicator> make(
    Kind kind, comm::Communicator& host, const cuda::Stream& stream,
    std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  return kind == Kind::nccl ? make_nccl_communicator(host, stream, limit)
                            : make_staged_communicator(host, stream);
}

/// Devices for as many ranks: NCCL wants one for each, else they share. 0: the test is skipped.
inline int devices_for(int ranks, Kind kind) {
  return devices(ranks, kind == Kind::nccl ? ranks : 1);
}

using Body =
    std::function<void(comm::Communicator&, comm::DeviceCommunicator&, const cuda::Stream&)>;

/// `body(host, device, stream)` on ranks with a device each; false where there are too few.
inline bool on_devices(int ranks, Kind kind, const Body& body,
                       std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const int there = devices_for(ranks, kind);
  if (there == 0) return false;
  comm::run_ranks(ranks, [&](comm::Communicator& host) {
    cuda::select_device(host.rank() % there);
    const cuda::Stream stream;
    const auto device = make(kind, host, stream, limit);
    body(host, *device, stream);
  });
  return true;
}

template <class T>
cuda::DeviceBuffer<T> uploaded(const std::vector<T>& values, const cuda::Stream& stream) {
  cuda::DeviceBuffer<T> buffer(values.size());
  cuda::copy(std::span(values), buffer.span(), stream);
  stream.synchronise();
  return buffer;
}

template <class T>
std::vector<T> downloaded(const cuda::DeviceBuffer<T>& buffer, comm::DeviceCommunicator& device,
                          const cuda::Stream& stream) {
  std::vector<T> values(buffer.size());
  cuda::copy(buffer.span(), std::span(values), stream);
  device.wait("what a test computes");
  return values;
}

}  // namespace lockstep::test

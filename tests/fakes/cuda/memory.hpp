// The memory of the fake's devices: one range of addresses that the host can neither read nor write
// but while work of a device runs.
#pragma once

#include <cstddef>

namespace fake_cuda {

/// Memory for `bytes` bytes, all NaN up to 16 MiB, or nullptr where the devices have no more.
/// Addresses are not used again while any memory is in use, and AddressSanitizer sees where each
/// piece ends.
void* device_allocate(std::size_t bytes);

void device_free(void* memory, std::size_t bytes);

/// While one of these lives, on any thread, the process can read and write device memory.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace fake_cuda

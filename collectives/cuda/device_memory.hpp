// What communicators on device memory refuse.
#pragma once

namespace lockstep::comm {

/// Errors   std::invalid_argument, which names `collective`, where `memory` is not a device's.
void require_device_memory(const char* collective, const void* memory);

}  // namespace lockstep::comm

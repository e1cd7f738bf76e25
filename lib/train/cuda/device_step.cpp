#include <stdexcept>

#include "lib/base/cuda/pinned_memory.hpp"
#include "lib/train/cuda/device_steps.hpp"

namespace lockstep::train {

DeviceStep::DeviceStep(const DeviceParts& parts, const CanonicalOptions& options)
    : network_(parts.network),
      comm_(parts.host),
      device_(parts.device),
      stream_(parts.compute),
      exchange_(parts.exchange),
      batches_(network_, options.plan->largest_piece()) {}

Matrix<float> DeviceStep::inputs(data::Range /*piece*/) {
  throw std::logic_error("a device's batches are staged");
}

std::pmr::memory_resource* DeviceStep::staging() noexcept { return &cuda::pinned_memory(); }

void DeviceStep::stage(const data::StagedBatch& staged, float divisor) {
  batches_.stage(staged, divisor);
}

void DeviceStep::forget_staged() noexcept { batches_.forget(); }

std::optional<std::uint64_t> DeviceStep::hash_of_weights(Slice slice) {
  return network_.hash(slice, stream_);
}

void DeviceStep::show_weights(Slice slice) { network_.show(slice, stream_); }

}  // namespace lockstep::train

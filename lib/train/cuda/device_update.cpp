#include "lib/train/cuda/device_update.hpp"

namespace lockstep::train {

DeviceSums::DeviceSums(std::span<const float> parts, std::span<const std::size_t> offsets,
                       std::span<const std::uint8_t> merges, const cuda::Stream& stream)
    : parts_(parts), offsets_(offsets.size()), merges_(merges.size()) {
  cuda::copy(offsets, offsets_.span(), stream);
  cuda::copy(merges, merges_.span(), stream);
  stream.synchronise();  // the spans are the caller's
}

void DeviceSums::put(cuda::DeviceAdamSlice& slice) const noexcept {
  slice.parts = parts_.data();
  slice.offsets = offsets_.data();
  slice.merges = merges_.data();
  slice.part_count = offsets_.size();
}

DeviceUpdate::DeviceUpdate(std::span<float> values, const optim::AdamOptions& options,
                           const cuda::Stream& stream)
    : values_(values),
      options_(options),
      first_(values.size()),
      second_(values.size()),
      factors_(1),
      device_factors_(1),
      not_finite_(1),
      device_not_finite_(1) {
  cuda::clear(first_.span(), stream);
  cuda::clear(second_.span(), stream);
  *not_finite_.data() = 0;
}

void DeviceUpdate::begin(std::uint64_t examples) {
  *factors_.data() = optim::adam_factors(options_, ++steps_, examples);
}

void DeviceUpdate::enqueue(const DeviceSums& sums, const cuda::Stream& stream) const {
  cuda::copy(std::span<const optim::AdamFactors>(factors_.span()), device_factors_.span(), stream);
  cuda::clear(device_not_finite_.span(), stream);
  cuda::DeviceAdamSlice slice = {};
  slice.values = values_.data();
  slice.first = first_.data();
  slice.second = second_.data();
  slice.count = values_.size();
  slice.factors = device_factors_.data();
  slice.not_finite = device_not_finite_.data();
  sums.put(slice);
  cuda::sum_and_update(slice, stream);
  cuda::copy(std::span<const int>(device_not_finite_.span()), not_finite_.span(), stream);
}

}  // namespace lockstep::train

// DeviceUpdate: the passes of an optimizer over a slice of the weights on a device.
#include <algorithm>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"
#include "lockstep/train/cuda/device_step.hpp"

namespace lockstep::train {

DeviceSums::DeviceSums(std::span<const float> parts, std::span<const std::size_t> offsets,
                       std::span<const std::uint8_t> merges, const cuda::Stream& stream)
    : parts_(parts), offsets_(offsets.size()), merges_(merges.size()) {
  cuda::copy(offsets, offsets_.span(), stream);
  cuda::copy(merges, merges_.span(), stream);
  stream.synchronise();  // the caller may free the spans
}

void DeviceSums::put(cuda::DeviceUpdateSlice& slice) const noexcept {
  slice.parts = parts_.data();
  slice.offsets = offsets_.data();
  slice.merges = merges_.data();
  slice.part_count = offsets_.size();
}

DeviceUpdate::DeviceUpdate(std::span<float> values, const optim::OptimizerOptions& options,
                           const std::vector<optim::UpdatedTensor>& tensors,
                           const cuda::Stream& stream)
    : OptimizerState(options, tensors),
      values_(values),
      stream_(stream),
      not_finite_(1),
      device_not_finite_(1) {
  const std::size_t moments = optim::moment_names(options).size();
  if (moments > 0) first_ = cuda::DeviceBuffer<float>(values.size());
  if (moments > 1) second_ = cuda::DeviceBuffer<float>(values.size());
  cuda::clear(first_.span(), stream);
  cuda::clear(second_.span(), stream);
  const auto passes = update_passes_->passes(values.size());
  passes_.assign(passes.begin(), passes.end());
  constexpr std::size_t others = 3;  // squares of gradients, moments of lamb, norms of tensors
  factors_ = cuda::PinnedBuffer<optim::PassFactors>(passes_.size() + others);
  device_factors_ = cuda::DeviceBuffer<optim::PassFactors>(factors_.span().size());
  if (needs_norms()) {
    const std::size_t words = 2 * tensors.size() * ExactSquares::words;
    squares_ = cuda::DeviceBuffer<unsigned long long>(words);
    host_squares_ = cuda::PinnedBuffer<unsigned long long>(words);
  }
  *not_finite_.data() = 0;
}

void DeviceUpdate::copy(optim::Moment moment, std::span<float> into) {
  const auto& from = moment == optim::Moment::first ? first_ : second_;
  cuda::copy(std::span<const float>(from.span()), into, stream_);
  stream_.synchronise();
}

void DeviceUpdate::restore(optim::Moment moment, std::span<const float> from) {
  cuda::copy(from, (moment == optim::Moment::first ? first_ : second_).span(), stream_);
  stream_.synchronise();
}

void DeviceUpdate::clear_flag() const { cuda::clear(device_not_finite_.span(), stream_); }

void DeviceUpdate::fetch_flag() const {
  cuda::copy(std::span<const int>(device_not_finite_.span()), not_finite_.span(), stream_);
}

const optim::PassFactors* DeviceUpdate::put(const optim::PassFactors& factors, std::size_t index) {
  const auto from = factors_.span().subspan(index, 1);
  from[0] = factors;
  cuda::copy(std::span<const optim::PassFactors>(from), device_factors_.span().subspan(index, 1),
             stream_);
  return device_factors_.data() + index;
}

void DeviceUpdate::enqueue_check(const DeviceSums& sums, double weight) {
  optim::PassFactors factors = {};
  factors.inverse_weight = static_cast<float>(1 / weight);
  clear_flag();
  cuda::check_sums(slice_with(sums), put(factors, 0), stream_);
  fetch_flag();
  is_finite_ = true;
}

void DeviceUpdate::begin(double weight, std::uint64_t step) {
  const auto passes = update_passes_->begin(values_.size(), weight, step);
  std::transform(passes.begin(), passes.end(), factors_.data(),
                 [](const optim::RangePass& pass) { return pass.factors; });
  is_finite_ = true;
}

void DeviceUpdate::enqueue(const DeviceSums& sums) const {
  cuda::copy(std::span<const optim::PassFactors>(factors_.span().first(passes_.size())),
             device_factors_.span(), stream_);
  clear_flag();
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    cuda::run_pass(passes_[i].pass, slice_with(sums), passes_[i].range, device_factors_.data() + i,
                   stream_);
  }
  fetch_flag();
}

/// The passes of an update on the device.
class DeviceUpdate::Kernels final : public optim::UpdateKernels {
 public:
  Kernels(DeviceUpdate& update, const DeviceSums& sums)
      : update_(update), slice_(update.slice_with(sums)) {}

  /// A gradient that is not finite is found later: DeviceUpdate::finite().
  bool run(const optim::RangePass& pass) override {
    cuda::run_pass(pass.pass, slice_, pass.range, update_.put(pass.factors, next_++),
                   update_.stream_);
    return true;
  }

  std::vector<ExactSquares::Words> squares(std::span<const Squares> asked,
                                           const optim::PassFactors& factors) override {
    const std::size_t count = asked.size() * ExactSquares::words;
    const auto on_device = update_.squares_.span().first(count);
    const auto words = update_.host_squares_.span().first(count);
    const auto* const of_squares = update_.put(factors, next_++);
    cuda::clear(on_device, update_.stream_);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      cuda::add_squares(asked[i].what, slice_, asked[i].range, of_squares,
                        on_device.data() + i * ExactSquares::words, update_.stream_);
    }
    cuda::copy(std::span<const unsigned long long>(on_device), words, update_.stream_);
    update_.stream_.synchronise();
    std::vector<ExactSquares::Words> all(asked.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::copy_n(words.begin() + i * ExactSquares::words, ExactSquares::words, all[i].begin());
    }
    return all;
  }

 private:
  DeviceUpdate& update_;
  cuda::DeviceUpdateSlice slice_;
  std::size_t next_ = 0;  // index of the next factors
};

void DeviceUpdate::run(const DeviceSums& sums, double weight, std::uint64_t step,
                       const optim::RankSums& ranks) {
  Kernels kernels(*this, sums);
  clear_flag();
  is_finite_ = update_passes_->update(kernels, values_.size(), weight, step, ranks);
  fetch_flag();
}

cuda::DeviceUpdateSlice DeviceUpdate::slice_with(const DeviceSums& sums) const noexcept {
  cuda::DeviceUpdateSlice slice = {};
  slice.values = values_.data();
  slice.first = first_.data();
  slice.second = second_.data();
  slice.count = values_.size();
  slice.not_finite = device_not_finite_.data();
  sums.put(slice);
  return slice;
}

}  // namespace lockstep::train

#include "lib/train/cuda/device_batches.hpp"

#include <algorithm>
#include <stdexcept>

#include "lib/numerics/cuda/elementwise.hpp"

namespace lockstep::train {
namespace {

/// Enqueues a copy to the front of a buffer of `size` elements, which is made once.
template <class T>
void copy_to(cuda::DeviceBuffer<T>& buffer, std::size_t size, std::span<const T> from,
             const cuda::Stream& stream) {
  if (buffer.size() == 0) buffer = cuda::DeviceBuffer<T>(size);
  cuda::copy(from, buffer.span(), stream);
}

}  // namespace

DeviceBatches::DeviceBatches(nn::DeviceNetwork& network, std::size_t rows)
    : network_(network), rows_(rows), results_(rows) {
  for (Slot& slot : slots_) slot.labels = cuda::DeviceBuffer<std::int32_t>(rows);
}

DeviceBatches::Slot* DeviceBatches::find(std::span<const std::int32_t> labels) noexcept {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.staged == labels.data(); });
  return slot == slots_.end() ? nullptr : &*slot;
}

void DeviceBatches::stage(const data::StagedBatch& staged, float divisor) {
  const auto& batch = staged.batch;
  if (find(batch.labels) != nullptr) return;
  Slot* const slot = find({});
  if (slot == nullptr) throw std::logic_error("DeviceBatches: two batches are staged already");
  nn::require_labels(batch.labels, batch.piece.size(), network_.shape().classes);
  divisor_ = divisor;
  const std::size_t values = rows_ * network_.shape().features;
  if (!staged.bytes.empty()) copy_to(slot->bytes, values, staged.bytes, copies_);
  if (!staged.floats.empty()) copy_to(slot->floats, values, staged.floats, copies_);
  cuda::copy(batch.labels, slot->labels.span(), copies_);
  slot->copied.record(copies_);
  slot->staged = batch.labels.data();
}

void DeviceBatches::forget() noexcept {
  try {
    copies_.synchronise();
  } catch (const Error&) {  // whoever waits next is told
  }
  for (Slot& slot : slots_) slot.staged = nullptr;
}

std::size_t DeviceBatches::take(const data::Batch& batch, const cuda::Stream& stream) {
  Slot* const slot = find(batch.labels);
  if (slot == nullptr) throw std::logic_error("DeviceBatches: a batch that was not staged");
  slot->copied.block(stream);
  slot->staged = nullptr;
  return static_cast<std::size_t>(slot - slots_.data());
}

void DeviceBatches::forward(std::size_t slot, std::size_t rows, const cuda::Stream& stream) const {
  const Slot& from = slots_[slot];
  const auto inputs = network_.inputs(rows).flat();
  if (from.bytes.size() > 0) {
    cuda::divide_bytes(from.bytes.span().first(inputs.size()), divisor_, inputs, stream);
  } else if (!inputs.empty()) {
    cuda::copy(std::span<const float>(from.floats.span().first(inputs.size())), inputs, stream);
  }
  cuda::copy(std::span<const std::int32_t>(from.labels.span().first(rows)), network_.labels(rows),
             stream);
  network_.forward(rows, stream);
  network_.loss(rows, stream);
  cuda::copy(std::span<const nn::ExampleResult>(network_.results(rows)),
             results_.span().first(rows), stream);
}

}  // namespace lockstep::train

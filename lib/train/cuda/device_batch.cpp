#include <algorithm>

#include "lib/train/cuda/device_steps.hpp"

namespace lockstep::train {

void DeviceBatch::set_labels(std::span<const std::int32_t> labels, std::size_t rows) const {
  nn::require_labels(labels, rows, network_.shape().classes);
  std::copy(labels.begin(), labels.end(), labels_.data());
}

void DeviceBatch::forward(std::size_t rows, const cuda::Stream& stream) const {
  cuda::copy(std::span<const float>(inputs(rows).flat()), network_.inputs(rows).flat(), stream);
  cuda::copy(std::span<const std::int32_t>(labels_.span().first(rows)), network_.labels(rows),
             stream);
  network_.forward(rows, stream);
  network_.loss(rows, stream);
  cuda::copy(std::span<const nn::ExampleResult>(network_.results(rows)),
             results_.span().first(rows), stream);
}

}  // namespace lockstep::train

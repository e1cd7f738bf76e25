#include "lib/train/slice_update.hpp"

#include "lib/train/step.hpp"

namespace lockstep::train {
namespace {

Slice slice_of(std::size_t block, const comm::Communicator& comm) {
  const std::size_t each = block / static_cast<std::size_t>(comm.size());
  const std::size_t first = each * static_cast<std::size_t>(comm.rank());
  return {first, first + each};
}

}  // namespace

SliceUpdate::SliceUpdate(nn::Network<float>& network, const optim::AdamOptions& options,
                         comm::Communicator& comm)
    : network_(network),
      comm_(comm),
      slice_(slice_of(network.parameters().values().size(), comm)),
      adam_(slice_.size(), options) {}

bool SliceUpdate::run(std::span<const float> gradient_sums, std::uint64_t examples,
                      PhaseSeconds& seconds) {
  Lap phase;
  const auto values = network_.parameters().values();
  const bool finite =
      adam_.update(values.subspan(slice_.first, slice_.size()), gradient_sums, examples);
  seconds.update += phase.take();
  comm_.all_gather(values);
  const bool all_finite = comm_.all_agree(finite);
  seconds.reduce += phase.take();
  return all_finite;
}

}  // namespace lockstep::train

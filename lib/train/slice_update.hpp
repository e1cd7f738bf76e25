// The end of a canonical step: each rank updates its slice of the weights, and shows it to all.
#pragma once

#include <span>

#include "collectives/communicator.hpp"
#include "lib/nn/network.hpp"
#include "lib/numerics/slice.hpp"
#include "lib/optim/adam.hpp"
#include "lib/train/report.hpp"

namespace lockstep::train {

/// A rank's slice of the flat block: equal lengths, whole cache lines; and Adam's moments for it.
class SliceUpdate {
 public:
  /// `network` has as many slices as there are ranks; both must outlive this.
  SliceUpdate(nn::Network<float>& network, const optim::AdamOptions& options,
              comm::Communicator& comm);

  Slice slice() const noexcept { return slice_; }

  /// Steps taken.
  std::uint64_t steps() const noexcept { return adam_.steps(); }

  /// Updates the slice by its gradient sums over `examples` examples, and gathers all slices.
  /// Returns whether the gradient was finite on all ranks. Collective.
  bool run(std::span<const float> gradient_sums, std::uint64_t examples, PhaseSeconds& seconds);

 private:
  nn::Network<float>& network_;
  comm::Communicator& comm_;
  Slice slice_;
  optim::Adam adam_;
};

}  // namespace lockstep::train

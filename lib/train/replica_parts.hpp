// Members of a Replica that its header leaves out, so that programs compile in less memory.
#pragma once

#include <memory>

#include "lockstep/base/aligned.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {

/// They use network and device, and are destroyed before them.
struct Replica::Parts {
  /// The layout of the whole network if this rank holds a part; created by make_snapshot().
  std::unique_ptr<nn::ParameterLayout<float>> whole_layout;
  std::unique_ptr<Inference> processor;
  AlignedBuffer<float> staged_features;  ///< of train(step, features, labels) on a device
  AlignedBuffer<std::int32_t> staged_labels;
  AlignedBuffer<float> staged_values;
  std::unique_ptr<Sentinel> sentinel;
  std::unique_ptr<Step> step;
};

}  // namespace lockstep::train

// From a configuration to the parts of a training run, on every rank alike.
#pragma once

#include <memory>
#include <optional>

#include "apps/settings.hpp"
#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/source.hpp"
#include "lib/nn/network.hpp"
#include "lib/train/device.hpp"
#include "lib/train/step.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {

/// Everything that one rank trains with. Made once, before any work; a step allocates nothing.
struct TrainJob {
  data::DataSet data;
  std::optional<data::Plan> plan;
  std::unique_ptr<Mesh> mesh;
  std::string policy_reason;  ///< why the plan is of its policy
  int threads = 1;
  std::unique_ptr<Products<float>> products;
  std::unique_ptr<nn::Network<float>> network;
  std::optional<train::DeviceOptions> device_options;  ///< none: replicas live on the processor
  std::unique_ptr<train::DeviceReplica> device;        ///< null: likewise
  std::unique_ptr<train::Inference> processor;         ///< its forward passes; null with a device
  std::unique_ptr<train::Step> step;
  std::unique_ptr<data::Transform> transform;  ///< of training batches; null: none
  std::unique_ptr<data::BatchReader> train;
  std::unique_ptr<data::BatchReader> test;

  train::Inference& inference() { return device ? device->inference() : *processor; }
};

/// Opens the data, lays the plan, and makes the first weights.
///
/// Errors   throws comm::AgreedError on every rank: settings that cannot be honoured here (2), bad
///          data (65), data that differs between ranks (2), too little memory (2).
/// Ranks    collective.
TrainJob make_job(const RunConfig& config, comm::Communicator& comm);

}  // namespace lockstep::apps

// From a checkpoint and a data set to the parts of evaluate and predict, on every rank alike.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/cli.hpp"
#include "apps/settings.hpp"
#include "collectives/communicator.hpp"
#include "data/batches.hpp"
#include "data/source.hpp"
#include "lib/train/checkpoint.hpp"
#include "lib/train/device.hpp"
#include "lib/train/replica.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {

/// What `evaluate` and `predict` have in common; the caller adds command, sentence and flags.
Syntax inference_syntax();

/// A saved network, ready to run over a test set. Its products are strict, as those of canonical
/// training, so its results are the same bits as there, on any number of ranks.
struct InferenceJob {
  train::SavedNetwork saved;
  std::unique_ptr<data::Source> test;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<train::Replica> replica;
  std::unique_ptr<data::BatchReader> reader;
};

/// Reads the checkpoint, opens the data and loads the weights.
///
/// Errors   throws comm::AgreedError on every rank: no checkpoint or no --data given, settings that
///          cannot be honoured here (2); a damaged checkpoint, bad data, data of another number of
///          features than the network's (65); files that differ between ranks (2).
/// Ranks    collective.
InferenceJob make_inference_job(const Arguments& arguments, const RunConfig& config,
                                comm::Communicator& comm);

/// "label  text" rows that say what was run on what.
std::vector<std::pair<std::string, std::string>> subject_rows(const InferenceJob& job,
                                                              const RunConfig& config);

}  // namespace lockstep::apps

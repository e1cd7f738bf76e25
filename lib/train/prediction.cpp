#include "lib/train/prediction.hpp"

#include <bit>
#include <cmath>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/train/evaluation.hpp"

namespace lockstep::train {
namespace {

/// A prediction as it travels: the id; the label above the probability's bits.
constexpr std::size_t words_each = 2;

void pack(const data::Batch& batch, Matrix<const float> logits, std::span<std::uint64_t> words) {
  for (std::size_t i = 0; i < logits.rows; ++i) {
    const auto row = logits.row(i);
    const std::uint64_t label = nn::predicted_class<float>(row);
    const auto probability = std::bit_cast<std::uint32_t>(nn::greatest_probability<float>(row));
    words[words_each * i] = batch.ids[i];
    words[words_each * i + 1] = label << 32 | probability;
  }
}

void unpack(std::span<const std::uint64_t> words, std::vector<Prediction>& predictions) {
  predictions.clear();
  for (std::size_t i = 0; i < words.size(); i += words_each) {
    predictions.push_back({words[i], static_cast<std::int32_t>(words[i + 1] >> 32),
                           std::bit_cast<float>(static_cast<std::uint32_t>(words[i + 1]))});
  }
}

/// All ranks hold the same predictions, so they throw together.
void require_finite(std::span<const Prediction> predictions) {
  for (const Prediction& prediction : predictions) {
    if (std::isfinite(prediction.probability)) continue;
    throw comm::AgreedError(
        ExitCode::diverged,
        "record " + std::to_string(prediction.id) + ": the network's outputs are not finite",
        "look for extreme values in the data, or use an earlier checkpoint");
  }
}

void predict_on(Inference& network, data::BatchReader& reader, comm::Communicator& comm,
                const PredictionSink* sink) {
  const auto& plan = reader.plan();
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::vector<std::uint64_t> words(words_each * plan.largest_gathered());
  std::vector<Prediction> predictions;
  predictions.reserve(plan.largest_gathered());
  data::IdsDigest digest;
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    const std::size_t rows = reader.piece(step).size();
    const data::Batch batch = reader.read(0, step, network.inputs(rows).flat());
    digest.add(batch.ids);
    const std::size_t block = words_each * batch.block;
    pack(batch, network.forward(rows), std::span(words).subspan(rank * block, block));
    comm.all_gather(std::span(words).first(static_cast<std::size_t>(comm.size()) * block));
    unpack(std::span(words).first(words_each * batch.global_examples), predictions);
    require_finite(predictions);
    if (sink != nullptr) (*sink)(predictions);
  }
  certify_ids(digest, plan.examples_per_epoch(), comm);
}

}  // namespace

void predict(Inference& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink) {
  const auto* const mine = groups.all.rank() == 0 ? &sink : nullptr;
  groups.fail_together([&] { predict_on(network, reader, groups.batch, mine); });
}

void predict(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink) {
  NetworkInference inference(network);
  predict(inference, reader, groups, sink);
}

}  // namespace lockstep::train

#include "lockstep/train/evaluation.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t max_confusion_classes = 256;

void count_confusion(Matrix<const float> logits, std::span<const std::int32_t> labels,
                     std::vector<std::uint64_t>& confusion) {
  if (confusion.empty()) return;
  for (std::size_t i = 0; i < logits.rows; ++i) {
    const auto label = static_cast<std::size_t>(labels[i]);
    ++confusion[label * logits.cols + nn::predicted_class<float>(logits.row(i))];
  }
}

Evaluation evaluate_on(Inference& network, const nn::Loss<float>& loss, data::BatchReader& reader,
                       comm::Communicator& comm) {
  const auto& shape = network.shape();
  Evaluation result;
  result.examples = reader.plan().examples_per_epoch();
  if (shape.classes <= max_confusion_classes) {
    result.confusion.resize(shape.classes * shape.classes);
  }
  std::vector<nn::ExampleResult> mine(reader.plan().largest_piece());
  GatheredResults results(reader.plan().largest_gathered(), comm);
  data::IdsDigest digest;
  for (std::uint64_t step = 0; step < reader.plan().steps(); ++step) {
    const std::size_t rows = reader.piece(step).size();
    const data::Batch batch = reader.read(0, step, network.inputs(rows).flat());
    digest.add(batch.ids);
    nn::require_labels(batch.labels, rows, shape.classes);
    const auto logits = network.forward(rows);
    const auto own = std::span(mine).first(rows);
    loss.run(logits, batch.labels, own, {});
    count_confusion(logits, batch.labels, result.confusion);
    const auto all = results.gather(own, batch);
    const nn::Tally tally = nn::sum_over_leaves(all, batch.leaf);
    result.loss_sum += tally.loss_sum;
    result.correct += tally.correct;
  }
  comm.all_reduce(std::span(result.confusion));
  result.ids_digest = certify_ids(digest, result.examples, comm);
  return result;
}

}  // namespace

data::Plan evaluation_plan(std::uint64_t records, int ranks) {
  return data::Plan({.records = records,
                     .batch_size = evaluation_batch,
                     .ranks = static_cast<std::uint64_t>(ranks)});
}

Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, data::BatchReader& reader,
                    const Groups& groups) {
  Evaluation result;
  groups.fail_together([&] { result = evaluate_on(network, loss, reader, groups.batch); });
  return result;
}

Evaluation evaluate(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups) {
  NetworkInference inference(network);
  return evaluate(inference, network.loss_function(), reader, groups);
}

std::uint64_t certify_ids(data::IdsDigest mine, std::uint64_t records, comm::Communicator& comm) {
  comm.all_reduce(std::span<std::uint64_t>(mine.parts()));
  const data::IdsDigest expected = data::digest_of_all(records);
  if (mine == expected) return mine.value();
  throw comm::AgreedError(
      ExitCode::invariant,
      "not every record was evaluated exactly once: " + std::to_string(mine.count()) +
          " ids with the digest " + to_hex(mine.value()) + ", where " + std::to_string(records) +
          " have " + to_hex(expected.value()),
      "this is an error of lockstep, or of a machine's memory: please report it");
}

namespace {

/// Predictions in messages: words of 64 bits. The first is the id; the second has the label in the
/// bits above the probability's; the others have all probabilities, if they are asked for.
struct Packing {
  std::size_t classes = 0;          // 0: not asked for
  std::vector<float> softmax = {};  // of a row to pack, or of all unpacked

  std::size_t words_each() const noexcept { return 2 + (classes + 1) / 2; }

  void pack(const data::Batch& batch, Matrix<const float> logits, std::span<std::uint64_t> words) {
    for (std::size_t i = 0; i < logits.rows; ++i) {
      const auto row = logits.row(i);
      const auto mine = words.subspan(words_each() * i, words_each());
      const std::uint64_t label = nn::predicted_class<float>(row);
      mine[0] = batch.ids[i];
      mine[1] = label << 32 | std::bit_cast<std::uint32_t>(nn::greatest_probability<float>(row));
      if (classes == 0) continue;
      softmax.resize(classes);
      nn::probabilities<float>(row, softmax);
      std::memcpy(&mine[2], softmax.data(), classes * sizeof(float));
    }
  }

  void unpack(std::span<const std::uint64_t> words, std::vector<Prediction>& predictions) {
    predictions.clear();
    softmax.resize(words.size() / words_each() * classes);
    for (std::size_t i = 0; i < words.size(); i += words_each()) {
      const auto mine = words.subspan(i, words_each());
      predictions.push_back({mine[0],
                             static_cast<std::int32_t>(mine[1] >> 32),
                             std::bit_cast<float>(static_cast<std::uint32_t>(mine[1])),
                             {}});
      if (classes == 0) continue;
      const auto all = std::span(softmax).subspan(i / words_each() * classes, classes);
      std::memcpy(all.data(), &mine[2], all.size_bytes());
      predictions.back().probabilities = all;
    }
  }
};

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
                const PredictionSink* sink, bool all_probabilities) {
  const auto& plan = reader.plan();
  const auto rank = static_cast<std::size_t>(comm.rank());
  Packing packing = {.classes = all_probabilities ? network.shape().classes : 0};
  const std::size_t words_each = packing.words_each();
  std::vector<std::uint64_t> words(words_each * plan.largest_gathered());
  std::vector<Prediction> predictions;
  predictions.reserve(plan.largest_gathered());
  data::IdsDigest digest;
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    const std::size_t rows = reader.piece(step).size();
    const data::Batch batch = reader.read(0, step, network.inputs(rows).flat());
    digest.add(batch.ids);
    const std::size_t block = words_each * batch.block;
    packing.pack(batch, network.forward(rows), std::span(words).subspan(rank * block, block));
    comm.all_gather(std::span(words).first(static_cast<std::size_t>(comm.size()) * block));
    packing.unpack(std::span(words).first(words_each * batch.global_examples), predictions);
    require_finite(predictions);
    if (sink != nullptr) (*sink)(predictions);
  }
  certify_ids(digest, plan.examples_per_epoch(), comm);
}

}  // namespace

void predict(Inference& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink, bool all_probabilities) {
  const auto* const mine = groups.all.rank() == 0 ? &sink : nullptr;
  groups.fail_together([&] { predict_on(network, reader, groups.batch, mine, all_probabilities); });
}

void predict(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink, bool all_probabilities) {
  NetworkInference inference(network);
  predict(inference, reader, groups, sink, all_probabilities);
}

}  // namespace lockstep::train

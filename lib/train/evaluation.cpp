#include "lib/train/evaluation.hpp"

#include <array>

namespace lockstep::train {
namespace {

constexpr std::size_t most_confusion_classes = 256;

void count_confusion(Matrix<const float> logits, std::span<const std::int32_t> labels,
                     std::vector<std::uint64_t>& confusion) {
  if (confusion.empty()) return;
  for (std::size_t i = 0; i < logits.rows; ++i) {
    const auto label = static_cast<std::size_t>(labels[i]);
    ++confusion[label * logits.cols + nn::predicted_class<float>(logits.row(i))];
  }
}

}  // namespace

data::Plan evaluation_plan(std::uint64_t records, int ranks) {
  return data::Plan({.records = records,
                     .batch_size = evaluation_batch,
                     .ranks = static_cast<std::uint64_t>(ranks)});
}

Evaluation evaluate(nn::Network<float>& network, data::BatchReader& reader,
                    comm::Communicator& comm) {
  const auto& shape = network.shape();
  Evaluation result;
  result.examples = reader.plan().examples_per_epoch();
  if (shape.classes <= most_confusion_classes) {
    result.confusion.resize(shape.classes * shape.classes);
  }
  nn::Tally total;
  for (std::uint64_t step = 0; step < reader.plan().steps(); ++step) {
    const data::Batch batch = reader.read(0, step);
    const auto logits = network.forward({batch.x.data(), batch.labels.size(), shape.features});
    const auto tally = nn::softmax_cross_entropy<float>(logits, batch.labels);
    total.loss_sum += tally.loss_sum;
    total.correct += tally.correct;
    count_confusion(logits, batch.labels, result.confusion);
  }
  comm.all_reduce(std::span(&total.loss_sum, 1));
  comm.all_reduce(std::span(&total.correct, 1));
  comm.all_reduce(std::span(result.confusion));
  result.loss_sum = total.loss_sum;
  result.correct = total.correct;
  return result;
}

}  // namespace lockstep::train

#include "lockstep/train/evaluation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/ids_digest.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

class NetworkInference final : public Inference {
 public:
  explicit NetworkInference(nn::Network<float>& network) : network_(network) {}

  const nn::NetworkShape& shape() const noexcept override { return network_.shape(); }
  Matrix<float> inputs(std::size_t rows) override { return network_.inputs({0, rows}); }
  Matrix<const float> forward(std::size_t rows) override { return network_.forward({0, rows}); }

 private:
  nn::Network<float>& network_;
};

void count_confusion(Matrix<const float> logits, std::span<const std::int32_t> labels,
                     std::vector<std::uint64_t>& confusion) {
  if (confusion.empty()) return;
  for (std::size_t i = 0; i < logits.rows; ++i) {
    const auto label = static_cast<std::size_t>(labels[i]);
    ++confusion[label * logits.cols + nn::predicted_class<float>(logits.row(i))];
  }
}

/// Outputs and values of the examples of a regression, of all ranks, and their sums.
class GatheredValues {
 public:
  GatheredValues(std::size_t rows, std::size_t outputs, comm::Communicator& comm)
      : comm_(comm), outputs_(outputs), pairs_(2 * outputs * rows) {}

  /// Adds the rows of a batch, in its order, to the sums of each output. Collective.
  void add(Matrix<const float> outputs, const data::Batch& batch, std::vector<ValueSums>& sums) {
    const std::size_t each = 2 * outputs_;
    const auto all =
        std::span(pairs_).first(static_cast<std::size_t>(comm_.size()) * each * batch.block);
    const auto mine = all.subspan(static_cast<std::size_t>(comm_.rank()) * each * batch.block);
    for (std::size_t i = 0; i < outputs.rows; ++i) {
      const auto row = outputs.row(i);
      std::copy(row.begin(), row.end(), mine.begin() + each * i);
      std::copy_n(batch.values.begin() + outputs_ * i, outputs_,
                  mine.begin() + each * i + outputs_);
    }
    comm_.all_gather(all);
    for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(comm_.size()); ++rank) {
      const std::size_t rows = batch.rows_of(rank).size();
      const auto of_rank = all.subspan(rank * each * batch.block, rows * each);
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < outputs_; ++j) {
          sums[j].add(static_cast<double>(of_rank[each * i + j]),
                      static_cast<double>(of_rank[each * i + outputs_ + j]));
        }
      }
    }
  }

 private:
  comm::Communicator& comm_;
  std::size_t outputs_;
  std::vector<float> pairs_;
};

/// Sums of the results of all ranks' examples, batch after batch.
class EvaluationSums {
 public:
  EvaluationSums(const nn::NetworkShape& shape, const nn::Loss<float>& loss, const data::Plan& plan,
                 const std::vector<Metric>& metrics, comm::Communicator& comm)
      : outputs_(shape.classes),
        loss_(loss),
        metrics_(metrics),
        comm_(comm),
        mine_(plan.largest_piece()),
        results_(plan.largest_gathered(), comm),
        values_(plan.largest_gathered(), has_values() ? outputs_ : 0, comm) {
    if (has_labels() && outputs_ <= max_counted_classes) {
      sums_.confusion.resize(outputs_ * outputs_);
    }
    sums_.values.resize(has_values() ? outputs_ : 0);
    sums_.metrics.resize(metrics.size());
  }

  /// Adds this rank's outputs for a batch. Collective.
  void add(Matrix<const float> outputs, const data::Batch& batch) {
    const nn::Targets targets = {batch.labels, batch.values};
    nn::require_targets(targets, loss_, outputs.rows, outputs_);
    const auto own = std::span(mine_).first(outputs.rows);
    loss_.run(outputs, targets, own, {});
    if (has_labels()) count_confusion(outputs, batch.labels, sums_.confusion);
    if (has_values()) values_.add(outputs, batch, sums_.values);
    const nn::Tally tally = sum(own, batch);
    sums_.examples += batch.global_examples;
    sums_.loss_sum += tally.loss_sum;
    sums_.correct += tally.correct;
    for (std::size_t m = 0; m < metrics_.size(); ++m) {
      for (std::size_t i = 0; i < own.size(); ++i) {
        own[i] = {metrics_[m].of_example(outputs.row(i), target_of(targets, i)), 0};
      }
      sums_.metrics[m] += sum(own, batch).loss_sum;
    }
  }

  /// Collective.
  Evaluation finish() {
    comm_.all_reduce(std::span(sums_.confusion));
    for (double& metric : sums_.metrics) metric /= static_cast<double>(sums_.examples);
    return std::move(sums_);
  }

 private:
  bool has_labels() const { return loss_.target() == nn::TargetKind::label; }
  bool has_values() const { return !has_labels() && loss_.target_width(outputs_) == outputs_; }

  nn::Targets target_of(const nn::Targets& targets, std::size_t i) const {
    if (has_labels()) return targets.labels.subspan(i, 1);
    const std::size_t width = loss_.target_width(outputs_);
    return {{}, targets.values.subspan(i * width, width)};
  }

  nn::Tally sum(std::span<const nn::ExampleResult> own, const data::Batch& batch) {
    return nn::sum_over_leaves(results_.gather(own, batch), batch.leaf);
  }

  std::size_t outputs_;
  const nn::Loss<float>& loss_;
  const std::vector<Metric>& metrics_;
  comm::Communicator& comm_;
  std::vector<nn::ExampleResult> mine_;
  GatheredResults results_;
  GatheredValues values_;
  Evaluation sums_;
};

Evaluation evaluate_records(Inference& network, const nn::Loss<float>& loss,
                            data::BatchReader& reader, comm::Communicator& comm,
                            const std::vector<Metric>& metrics) {
  EvaluationSums sums(network.shape(), loss, reader.plan(), metrics, comm);
  data::IdsDigest digest;
  for (std::uint64_t step = 0; step < reader.plan().steps(); ++step) {
    const std::size_t rows = reader.piece(step).size();
    const data::Batch batch = reader.read(0, step, network.inputs(rows).flat());
    digest.add(batch.ids);
    sums.add(network.forward(rows), batch);
  }
  Evaluation result = sums.finish();
  result.ids_digest = certify_ids(digest, reader.plan().examples_per_epoch(), comm);
  return result;
}

Evaluation evaluate_pieces(Inference& network, const nn::Loss<float>& loss, const data::Plan& plan,
                           const std::function<std::optional<Piece>()>& next,
                           comm::Communicator& comm, const std::vector<Metric>& metrics) {
  EvaluationSums sums(network.shape(), loss, plan, metrics, comm);
  while (const auto piece = next()) {
    data::Batch batch = data::batch_at(plan, piece->step, static_cast<std::uint64_t>(comm.rank()),
                                       piece->targets.labels, {});
    batch.values = piece->targets.values;
    const std::size_t rows = batch.piece.size();
    copy_features(piece->features, network.inputs(rows));
    sums.add(network.forward(rows), batch);
  }
  return sums.finish();
}

}  // namespace

std::unique_ptr<Inference> make_inference(nn::Network<float>& network) {
  return std::make_unique<NetworkInference>(network);
}

void copy_features(std::span<const float> features, Matrix<float> inputs) {
  if (features.size() != inputs.flat().size()) {
    throw ConfigError(std::to_string(features.size()) + " features for " +
                          std::to_string(inputs.rows) + " examples",
                      "give " + std::to_string(inputs.cols) +
                          " for each, the inputs of the network, example after example");
  }
  std::copy(features.begin(), features.end(), inputs.flat().begin());
}

void ValueSums::add(double output, double value) noexcept {
  if (count_++ == 0) first_ = value;
  const double error = output - value;
  const double difference = value - first_;
  squared_error_ += error * error;
  differences_ += difference;
  squares_ += difference * difference;
}

double ValueSums::r2() const {
  const double distance = squares_ - differences_ * differences_ / static_cast<double>(count_);
  if (distance > 0) return 1 - squared_error_ / distance;
  return squared_error_ > 0 ? 0 : 1;
}

double ValueSums::rmse() const { return std::sqrt(squared_error_ / static_cast<double>(count_)); }

double Evaluation::r2() const {
  double sum = 0;
  for (const ValueSums& sums : values) sum += sums.r2();
  return sum / static_cast<double>(values.size());
}

namespace {

std::optional<double> share(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::optional<double> ClassCounts::recall() const { return share(correct, examples); }

std::optional<double> ClassCounts::precision() const { return share(correct, predicted); }

std::optional<double> ClassCounts::f1() const { return share(2 * correct, examples + predicted); }

std::vector<ClassCounts> Evaluation::classes() const {
  std::size_t count = 0;
  while (count * count < confusion.size()) ++count;
  std::vector<ClassCounts> classes(count);
  for (std::size_t label = 0; label < count; ++label) {
    for (std::size_t predicted = 0; predicted < count; ++predicted) {
      const std::uint64_t times = confusion[label * count + predicted];
      classes[label].examples += times;
      classes[predicted].predicted += times;
      if (label == predicted) classes[label].correct = times;
    }
  }
  return classes;
}

data::Plan evaluation_plan(std::uint64_t records, int ranks) {
  return data::Plan({.records = records,
                     .batch_size = evaluation_batch,
                     .ranks = static_cast<std::uint64_t>(ranks)});
}

Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, data::BatchReader& reader,
                    const Groups& groups, const std::vector<Metric>& metrics) {
  Evaluation result;
  groups.fail_together(
      [&] { result = evaluate_records(network, loss, reader, groups.batch, metrics); });
  return result;
}

Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, const data::Plan& plan,
                    const std::function<std::optional<Piece>()>& next, const Groups& groups,
                    const std::vector<Metric>& metrics) {
  Evaluation result;
  groups.fail_together(
      [&] { result = evaluate_pieces(network, loss, plan, next, groups.batch, metrics); });
  return result;
}

Evaluation evaluate(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups) {
  return evaluate(*make_inference(network), network.loss_function(), reader, groups);
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
/// bits above the probability's; the others have probabilities or values, if they are asked for.
struct Packing {
  Predicted predicted = Predicted::label;
  std::size_t outputs = 0;         // that are asked for
  std::vector<float> floats = {};  // of a row to pack, or of all unpacked

  std::size_t words_each() const noexcept { return 2 + (outputs + 1) / 2; }

  void pack(const data::Batch& batch, Matrix<const float> logits, std::span<std::uint64_t> words) {
    for (std::size_t i = 0; i < logits.rows; ++i) {
      const auto row = logits.row(i);
      const auto mine = words.subspan(words_each() * i, words_each());
      const std::uint64_t label = nn::predicted_class<float>(row);
      mine[0] = batch.ids[i];
      const bool is_finite =
          std::all_of(row.begin(), row.end(), [](float output) { return std::isfinite(output); });
      const float probability = is_finite ? nn::greatest_probability<float>(row) : std::nanf("");
      mine[1] = label << 32 | std::bit_cast<std::uint32_t>(probability);
      if (outputs == 0) continue;
      floats.assign(row.begin(), row.end());
      if (predicted == Predicted::probabilities) nn::probabilities<float>(row, floats);
      std::memcpy(&mine[2], floats.data(), outputs * sizeof(float));
    }
  }

  void unpack(std::span<const std::uint64_t> words, std::vector<Prediction>& predictions) {
    predictions.clear();
    floats.resize(words.size() / words_each() * outputs);
    for (std::size_t i = 0; i < words.size(); i += words_each()) {
      const auto mine = words.subspan(i, words_each());
      predictions.push_back({mine[0],
                             static_cast<std::int32_t>(mine[1] >> 32),
                             std::bit_cast<float>(static_cast<std::uint32_t>(mine[1])),
                             {}});
      if (outputs == 0) continue;
      const auto all = std::span(floats).subspan(i / words_each() * outputs, outputs);
      std::memcpy(all.data(), &mine[2], all.size_bytes());
      predictions.back().outputs = all;
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
                const PredictionSink* sink, Predicted predicted) {
  const auto& plan = reader.plan();
  const auto rank = static_cast<std::size_t>(comm.rank());
  Packing packing = {.predicted = predicted};
  if (predicted != Predicted::label) packing.outputs = network.shape().classes;
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
             const PredictionSink& sink, Predicted predicted) {
  const auto* const mine = groups.all.rank() == 0 ? &sink : nullptr;
  groups.fail_together([&] { predict_on(network, reader, groups.batch, mine, predicted); });
}

void predict(nn::Network<float>& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink, Predicted predicted) {
  predict(*make_inference(network), reader, groups, sink, predicted);
}

}  // namespace lockstep::train

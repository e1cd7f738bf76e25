#include "lockstep/train/evaluation.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/nn/loss_formula.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "lockstep/train/step.hpp"

namespace lockstep::train {
namespace {

class NetworkInference final : public Inference {
 public:
  explicit NetworkInference(nn::Network<float>& network) : network_(network) {}

  const nn::NetworkShape& shape() const noexcept override { return network_.shape(); }

  Matrix<float> inputs(std::size_t rows) override {
    if (network_.rows() == 0 && rows > 0) {
      throw ConfigError("a network without rows, as that of a replica on a device",
                        "use the functions of Replica");
    }
    if (rows <= network_.rows()) return network_.inputs({0, rows});
    return all_rows(inputs_, rows, shape().features);
  }

  Matrix<const float> forward(std::size_t rows) override {
    is_in_parts_ = rows > network_.rows();
    if (!is_in_parts_) return network_.forward({0, rows});
    const auto x = inputs(rows);
    const auto outputs = all_rows(outputs_, rows, shape().classes);
    for (std::size_t first = 0; first < rows; first += network_.rows()) {
      const Range part = {first, std::min(rows, first + network_.rows())};
      copy_features(x.slice(part).flat(), network_.inputs({0, part.size()}));
      const auto results = network_.forward({0, part.size()}).flat();
      std::ranges::copy(results, outputs.slice(part).flat().begin());
    }
    return outputs;
  }

  std::string input_problem(std::size_t row) override {
    if (is_in_parts_) {  // the network has the last rows only
      copy_features(all_rows(inputs_, row + 1, shape().features).row(row), network_.inputs({0, 1}));
      network_.forward({0, 1});
      row = 0;
    }
    for (std::size_t i = 0; i < network_.layers(); ++i) {
      const auto x = network_.activation(network_.input_of(i), {row, row + 1});
      const std::string problem = network_.input_problem(i, x.row(0));
      if (problem.empty()) continue;
      return network_.shape().layer_text(network_.number_of(i)) + ": " + problem;
    }
    return {};
  }

 private:
  static Matrix<float> all_rows(std::vector<float>& memory, std::size_t rows, std::size_t width) {
    if (memory.size() < rows * width) memory.resize(rows * width);
    return {memory.data(), rows, width};
  }

  nn::Network<float>& network_;
  bool is_in_parts_ = false;   // the last forward(): of more rows than the network has
  std::vector<float> inputs_;  // then
  std::vector<float> outputs_;
};

/// Throws DataError for a record whose values a layer does not take. Local.
void require_taken(Inference& network, Matrix<const float> outputs, const data::Batch& batch) {
  for (std::size_t row = 0; row < outputs.rows; ++row) {
    if (all_finite(outputs.row(row))) continue;
    const std::string problem = network.input_problem(row);
    if (!problem.empty()) throw DataError(example_text(row, batch) + ": " + problem, mend_values);
  }
}

void count_confusion(Matrix<const float> logits, std::span<const std::int32_t> labels,
                     std::vector<std::uint64_t>& confusion) {
  if (confusion.empty()) return;
  for (std::size_t i = 0; i < logits.rows; ++i) {
    const auto label = static_cast<std::size_t>(labels[i]);
    ++confusion[label * logits.cols + nn::predicted_class<float>(logits.row(i))];
  }
}

void count_labels(Matrix<const float> logits, std::span<const float> flags,
                  std::vector<ClassCounts>& counts) {
  for (std::size_t i = 0; i < logits.rows; ++i) {
    for (std::size_t j = 0; j < counts.size(); ++j) {
      const bool is_there = flags[i * logits.cols + j] != 0;
      const bool is_predicted = nn::predicts_label(logits(i, j));
      if (is_there) ++counts[j].examples;
      if (is_predicted) ++counts[j].predicted;
      if (is_there && is_predicted) ++counts[j].correct;
    }
  }
}

}  // namespace

void scores_of(std::span<const float> logits, nn::TargetKind kind, std::span<float> scores) {
  switch (kind) {
    case nn::TargetKind::label: return nn::probabilities<float>(logits, scores);
    case nn::TargetKind::flags:
      std::transform(logits.begin(), logits.end(), scores.begin(), nn::sigmoid<float>);
      return;
    case nn::TargetKind::values: std::copy(logits.begin(), logits.end(), scores.begin());
  }
}

namespace {

/// Sums of the results of all ranks' examples, batch after batch.
class EvaluationSums {
 public:
  EvaluationSums(Inference& network, const nn::Loss<float>& loss, const data::Plan& plan,
                 const std::vector<Metric>& metrics, comm::Communicator& comm)
      : network_(network),
        outputs_(network.shape().classes),
        loss_(loss),
        metrics_(metrics),
        comm_(comm),
        mine_(plan.largest_piece()),
        results_(plan.largest_gathered(), comm),
        row_(has_values() || scores_set() ? outputs_ + target_width() : 0),
        rows_(row_ * plan.largest_gathered()) {
    for (const Metric& metric : metrics) {
      const auto& kinds = metric.targets;
      if (!kinds.empty() && std::find(kinds.begin(), kinds.end(), loss.target()) == kinds.end()) {
        throw ConfigError("metric " + in_quotes(metric.name) +
                              " is not for the targets of the loss " + loss.name(),
                          "leave it out");
      }
      if (!metric.of_example != !metric.of_set) continue;
      throw ConfigError("metric " + in_quotes(metric.name) + " has " +
                            (metric.of_set ? "both functions" : "no function"),
                        "set of_example, or of_set");
    }
    set_.outputs = outputs_;
    if (has_labels() && outputs_ <= max_counted_classes) {
      sums_.confusion.resize(outputs_ * outputs_);
    }
    const bool has_flags = loss.target() == nn::TargetKind::flags;
    if (has_flags && target_width() == outputs_) sums_.labels.resize(outputs_);
    sums_.values.resize(has_values() ? outputs_ : 0);
    sums_.metrics.resize(metrics.size());
  }

  /// Runs the network on this rank's piece of a batch, whose features are in the network's
  /// inputs(), and adds the results. Collective.
  void add(const data::Batch& batch) {
    const auto outputs = network_.forward(batch.piece.size());
    look_for_refused(outputs, batch);
    const nn::Targets targets = targets_of(batch);
    nn::require_targets(targets, loss_, outputs.rows, outputs_,
                        batch.plan->positions(batch.step, batch.rank).begin);
    const auto own = std::span(mine_).first(outputs.rows);
    loss_.run(outputs, targets, own, {});
    for (std::size_t i = 0; i < targets.weights.size(); ++i) {
      own[i].weight = static_cast<double>(targets.weights[i]);
      own[i].loss = nn::weighted(own[i].loss, own[i].weight);
    }
    if (has_labels()) count_confusion(outputs, batch.labels, sums_.confusion);
    if (row_ > 0) add_rows(outputs, batch);
    count_labels(outputs, batch.values, sums_.labels);
    const nn::Tally tally = sum(own, batch);
    sums_.examples += batch.global_examples;
    sums_.loss_sum += tally.loss_sum;
    sums_.weight += tally.weight;
    sums_.correct += tally.correct;
    for (std::size_t m = 0; m < metrics_.size(); ++m) {
      if (!metrics_[m].of_example) continue;
      for (std::size_t i = 0; i < own.size(); ++i) {
        own[i] = {metrics_[m].of_example(outputs.row(i), target_of(targets, i)), 0};
      }
      sums_.metrics[m] += sum(own, batch).loss_sum;
    }
  }

  /// Throws comm::AgreedError (65) on every rank if one of them has a record that a layer does not
  /// take. Collective.
  Evaluation finish() {
    comm::together(comm_, [this] {
      if (refused_) throw DataError(*refused_);
    });
    if (sums_.examples == 0) {
      throw comm::AgreedError(ExitCode::data, "an evaluation of no examples",
                              "evaluate a data set with at least one");
    }
    if (sums_.weight == 0) {
      throw comm::AgreedError(ExitCode::data,
                              "the weights of the " + counted(sums_.examples, "example") +
                                  " of the evaluation sum to zero",
                              "give at least one a weight above 0");
    }
    comm_.all_reduce(std::span(sums_.confusion));
    std::vector<std::uint64_t> counts;
    for (const ClassCounts& label : sums_.labels) {
      counts.insert(counts.end(), {label.examples, label.predicted, label.correct});
    }
    comm_.all_reduce(std::span(counts));
    for (std::size_t j = 0; j < sums_.labels.size(); ++j) {
      sums_.labels[j] = {counts[3 * j], counts[3 * j + 1], counts[3 * j + 2]};
    }
    for (std::size_t m = 0; m < metrics_.size(); ++m) {
      if (metrics_[m].of_example) {
        sums_.metrics[m] /= static_cast<double>(sums_.examples);
      } else {
        sums_.metrics[m] = figure_of_set(metrics_[m]);
      }
    }
    return std::move(sums_);
  }

 private:
  bool has_labels() const { return loss_.target() == nn::TargetKind::label; }
  bool has_values() const {
    return loss_.target() == nn::TargetKind::values && loss_.target_width(outputs_) == outputs_;
  }

  /// Keeps this rank's first record that a layer does not take. It is reported after the last
  /// batch, so that all ranks stay in the same collectives. Local.
  void look_for_refused(Matrix<const float> outputs, const data::Batch& batch) {
    if (refused_) return;
    try {
      require_taken(network_, outputs, batch);
    } catch (const DataError& error) {
      refused_ = error;
    }
  }

  /// Collective.
  double figure_of_set(const Metric& metric) const {
    double figure = 0;
    comm::together(comm_, [&] { figure = metric.of_set(set_); });
    return figure;
  }

  /// True if a metric needs the whole set.
  bool scores_set() const {
    return std::any_of(metrics_.begin(), metrics_.end(),
                       [](const Metric& metric) { return !metric.of_example; });
  }

  /// Numbers in the target of an example.
  std::size_t target_width() const { return has_labels() ? 1 : loss_.target_width(outputs_); }

  /// Gathers scores and target of each example, and adds those of all ranks in the order of the
  /// batch. Collective.
  void add_rows(Matrix<const float> outputs, const data::Batch& batch) {
    const std::size_t width = target_width();
    const std::size_t block = row_ * batch.block;
    const auto all = std::span(rows_).first(static_cast<std::size_t>(comm_.size()) * block);
    const auto mine = all.subspan(static_cast<std::size_t>(comm_.rank()) * block, block);
    for (std::size_t i = 0; i < outputs.rows; ++i) {
      const auto row = mine.subspan(row_ * i, row_);
      scores_of(outputs.row(i), loss_.target(), row.first(outputs_));
      if (has_labels()) {
        row[outputs_] = std::bit_cast<float>(batch.labels[i]);
      } else {
        std::copy_n(batch.values.begin() + width * i, width, row.begin() + outputs_);
      }
    }
    comm_.all_gather(all);
    for (std::uint64_t rank = 0; rank < static_cast<std::uint64_t>(comm_.size()); ++rank) {
      const std::size_t rows = batch.rows_of(rank).size();
      for (std::size_t i = 0; i < rows; ++i) add_row(all.subspan(rank * block + row_ * i, row_));
    }
  }

  /// Adds a row to the sums of each output of a regression, and to the set if a metric needs it.
  void add_row(std::span<const float> row) {
    const auto scores = row.first(outputs_);
    const auto target = row.subspan(outputs_);
    for (std::size_t j = 0; j < sums_.values.size(); ++j) {
      sums_.values[j].add(static_cast<double>(scores[j]), static_cast<double>(target[j]));
    }
    if (!scores_set()) return;
    set_.scores.insert(set_.scores.end(), scores.begin(), scores.end());
    if (has_labels()) {
      set_.labels.push_back(std::bit_cast<std::int32_t>(target[0]));
    } else {
      set_.values.insert(set_.values.end(), target.begin(), target.end());
    }
  }

  nn::Targets target_of(const nn::Targets& targets, std::size_t i) const {
    if (has_labels()) return targets.labels.subspan(i, 1);
    const std::size_t width = target_width();
    return {{}, targets.values.subspan(i * width, width)};
  }

  nn::Tally sum(std::span<const nn::ExampleResult> own, const data::Batch& batch) {
    return nn::sum_over_leaves(results_.gather(own, batch), batch.leaf);
  }

  Inference& network_;
  std::size_t outputs_;
  const nn::Loss<float>& loss_;
  const std::vector<Metric>& metrics_;
  comm::Communicator& comm_;
  std::vector<nn::ExampleResult> mine_;
  GatheredResults results_;
  std::size_t row_;          // numbers that are gathered of an example: its scores and its target
  std::vector<float> rows_;  // of all ranks
  std::optional<DataError> refused_;
  ScoredSet set_;
  Evaluation sums_;
};

/// Each metric has collectives of its own, so that other ones on a rank would mix them up.
/// Collective.
void require_equal_metrics(const std::vector<Metric>& metrics, comm::Communicator& comm) {
  const auto text = [](const Metric& metric) {
    return in_quotes(metric.name) + (metric.of_example ? " of examples" : " of the set");
  };
  comm::require_equal(comm, "the evaluation", {{"metrics", joined(metrics, ", ", text)}},
                      "give the same metrics, in the same order, on every rank");
}

/// The greatest number that a rank wants to stop for. Collective.
std::uint64_t agreed_stop(const StopRequest& stop, comm::Communicator& comm) {
  if (!stop) return 0;
  std::uint64_t number = stop();
  comm.all_reduce(std::span(&number, 1), comm::Op::max);
  return number;
}

}  // namespace

std::unique_ptr<Inference> make_inference(nn::Network<float>& network) {
  return std::make_unique<NetworkInference>(network);
}

void require_features(std::span<const float> features, std::size_t examples, std::size_t width) {
  if (features.size() == examples * width) return;
  throw ConfigError(
      std::to_string(features.size()) + " features for " + std::to_string(examples) + " examples",
      "give " + std::to_string(width) +
          " for each, the inputs of the network, example after example");
}

void copy_features(std::span<const float> features, Matrix<float> inputs) {
  require_features(features, inputs.rows, inputs.cols);
  std::copy(features.begin(), features.end(), inputs.flat().begin());
}

double Evaluation::r2() const {
  double sum = 0;
  for (const ValueSums& sums : values) sum += sums.r2();
  return sum / static_cast<double>(values.size());
}

std::vector<ClassCounts> Evaluation::classes() const {
  if (!labels.empty()) return labels;
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
                    const Groups& groups, const std::vector<Metric>& metrics,
                    const StopRequest& stop) {
  require_equal_metrics(metrics, groups.all);
  Evaluation result;
  groups.fail_together([&] {
    const data::Plan& plan = reader.plan();
    EvaluationSums sums(network, loss, plan, metrics, groups.batch);
    data::IdsDigest digest;
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      result.stop = agreed_stop(stop, groups.all);
      if (result.stop != 0) return;
      const auto inputs = network.inputs(reader.piece(step).size());
      const data::Batch batch = reader.read(0, step, inputs.flat());
      digest.add(batch.ids);
      sums.add(batch);
    }
    result = sums.finish();
    result.ids_digest = certify_ids(digest, plan.examples_per_epoch(), groups.batch);
  });
  return result;
}

Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, const data::Plan& plan,
                    const std::function<std::optional<Piece>()>& next, const Groups& groups,
                    const std::vector<Metric>& metrics) {
  require_equal_metrics(metrics, groups.all);
  Evaluation result;
  groups.fail_together([&] {
    EvaluationSums sums(network, loss, plan, metrics, groups.batch);
    const auto rank = static_cast<std::uint64_t>(groups.batch.rank());
    while (const auto piece = next()) {
      const data::Batch batch = batch_with_targets(plan, piece->step, rank, piece->targets);
      copy_features(piece->features, network.inputs(batch.piece.size()));
      sums.add(batch);
    }
    result = sums.finish();
  });
  return result;
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

/// What ranks send of a prediction, beside its outputs.
struct Label {
  std::uint64_t id = 0;
  std::int32_t label = 0;
  float probability = 0;
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
  const std::size_t width = predicted == Predicted::label ? 0 : network.shape().classes;
  const auto kind =
      predicted == Predicted::probabilities ? nn::TargetKind::label : nn::TargetKind::values;
  std::vector<Label> labels(plan.largest_gathered());  // of all ranks, as `outputs`
  std::vector<float> outputs(width * labels.size());
  std::vector<Prediction> predictions;
  predictions.reserve(labels.size());
  data::IdsDigest digest;
  for (std::uint64_t step = 0; step < plan.steps(); ++step) {
    const std::size_t rows = reader.piece(step).size();
    const data::Batch batch = reader.read(0, step, network.inputs(rows).flat());
    digest.add(batch.ids);
    const auto logits = network.forward(rows);
    comm::together(comm, [&] { require_taken(network, logits, batch); });
    const auto outputs_of = [&](std::size_t i) {
      return std::span(outputs).subspan(width * i, width);
    };
    const std::size_t first = static_cast<std::size_t>(comm.rank()) * batch.block;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto row = logits.row(i);
      labels[first + i] = {batch.ids[i], static_cast<std::int32_t>(nn::predicted_class<float>(row)),
                           all_finite(row) ? nn::greatest_probability<float>(row) : std::nanf("")};
      if (width > 0) scores_of(row, kind, outputs_of(first + i));
    }
    const std::size_t all = static_cast<std::size_t>(comm.size()) * batch.block;
    comm.all_gather(std::array{std::as_writable_bytes(std::span(labels).first(all)),
                               std::as_writable_bytes(std::span(outputs).first(width * all))});
    predictions.clear();
    for (std::size_t i = 0; i < batch.global_examples; ++i) {
      predictions.push_back({labels[i].id, labels[i].label, labels[i].probability, outputs_of(i)});
    }
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

}  // namespace lockstep::train

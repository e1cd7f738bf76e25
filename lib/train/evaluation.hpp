// Evaluation and prediction over a whole data set, every example counted once; and figures beside
// loss and accuracy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/nn/loss.hpp"
#include "lockstep/nn/network_shape.hpp"
#include "lockstep/numerics/matrix.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::data {
class BatchReader;
class IdsDigest;
}  // namespace lockstep::data
namespace lockstep::nn {
template <class Real>
class Network;
}

namespace lockstep::train {

/// Sums over the examples of one value of a regression, in the order of the records.
class ValueSums {
 public:
  void add(double output, double value) noexcept;

  /// The coefficient of determination: 1 - squared error / squared distance from the mean. If all
  /// values are equal it is 1 if there is no error, else 0.
  double r2() const;

  /// The root of the mean squared error, in the units of the values that the network learned.
  double rmse() const;

 private:
  std::uint64_t count_ = 0;
  double first_ = 0;
  double squared_error_ = 0;
  double differences_ = 0;  ///< of the values from the first
  double squares_ = 0;
};

/// Examples of one class or label, and examples that were predicted to be of it.
struct ClassCounts {
  std::uint64_t examples = 0;
  std::uint64_t predicted = 0;
  std::uint64_t correct = 0;  ///< predicted to be of the class, and of it

  /// The share of the class's examples that were found; none without examples.
  std::optional<double> recall() const;

  /// The share of the predictions of the class that are right; none without predictions.
  std::optional<double> precision() const;

  /// The harmonic mean of precision and recall; none without examples and predictions.
  std::optional<double> f1() const;
};

/// Outputs and targets of a whole data set, in the order of the evaluation: 0, 1, 2, ...
struct ScoredSet {
  std::size_t outputs = 0;
  /// [records, outputs]: probabilities of classes or labels, as predict() gives them; of a
  /// regression the values that the network learned.
  std::vector<float> scores = {};
  std::vector<std::int32_t> labels = {};  ///< [records], of classes
  std::vector<float> values = {};  ///< [records, Loss::target_width()], of labels and numbers

  std::size_t records() const noexcept { return outputs == 0 ? 0 : scores.size() / outputs; }
};

/// A std::function. For a function that does not take Arguments the compiler's error is a sentence.
template <class... Arguments>
class Figure : public std::function<double(Arguments...)> {
 public:
  Figure() = default;
  template <class Function>
  requires(!std::is_base_of_v<Figure, Function>) Figure(Function figure)  // NOLINT: converts
      : std::function<double(Arguments...)>(checked(std::move(figure))) {}

 private:
  template <class Function>
  static std::function<double(Arguments...)> checked(Function figure) {
    constexpr bool fits = std::is_invocable_r_v<double, Function&, Arguments...>;
    static_assert(
        fits,
        "a metric's function returns a double, and takes (std::span<const float> outputs, "
        "const nn::Targets& target) for each example, or (const train::ScoredSet&)");
    if constexpr (fits) return figure;
    return {};
  }
};

/// A metric: one of both functions is set. Local; a function of its arguments alone.
struct Metric {
  std::string name;
  /// A figure for each example, of which evaluation gives the mean. `outputs`: logits or values,
  /// [outputs]. `target`: one label, or Loss::target_width() values.
  Figure<std::span<const float>, const nn::Targets&> of_example = {};
  /// A figure of the whole set, which every rank holds: 4 bytes for each record and output. What it
  /// throws on a rank, evaluate() throws on all, as a comm::AgreedError.
  Figure<const ScoredSet&> of_set = {};
  /// The kinds of targets that it is for; empty: all. evaluate() refuses others.
  std::vector<nn::TargetKind> targets = {};
};

/// Names and figures of metrics.
using NamedFigures = std::vector<std::pair<std::string, double>>;

/// The share of the examples whose label is among the `k` greatest outputs; of equal ones the first
/// are greater. Name: "top-5". Throws ConfigError for a `k` of 0.
Metric top_k(std::size_t k);

/// The area under the receiver operating characteristic curve: the share of the pairs of a record
/// with a label and one without it whose probabilities are in that order, equal ones counted half.
/// Of two classes that of the second; of several classes (each against all others) or labels their
/// mean. Pairs are counted, so the figure does not depend on thresholds; it is rounded twice for
/// each class. Name: "auc".
///
/// Errors   of_set throws DataError if a class has no record, or all of them.
/// Source   Fawcett 2006, "An introduction to ROC analysis"; Hand and Till 2001 for the mean over
///          classes, as scikit-learn's roc_auc_score(multi_class="ovr") has it.
Metric area_under_curve();

/// The metric of that name: "top-K" or "auc", for targets of `kind` and a network of `outputs`.
/// Throws ConfigError if there is none, or if it does not fit. Local.
Metric metric_named(std::string_view name, nn::TargetKind kind, std::size_t outputs);

/// Probabilities of classes or labels, by the outputs of one example; else the outputs. `scores`:
/// as long as `logits`. Local.
void scores_of(std::span<const float> logits, nn::TargetKind kind, std::span<float> scores);

/// Forward passes for evaluation and prediction, on the CPU or on a device. Inputs and logits are
/// in host memory. Local; one thread.
class Inference {
 public:
  Inference() = default;
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;
  virtual ~Inference() = default;

  virtual const nn::NetworkShape& shape() const noexcept = 0;

  /// The input buffer of the next forward().  [rows, features]
  virtual Matrix<float> inputs(std::size_t rows) = 0;

  /// Logits of inputs(rows), valid until the next call.  [rows, classes]
  virtual Matrix<const float> forward(std::size_t rows) = 0;

  /// What is wrong with the inputs of row `row` of the last forward(), by Layer::input_problem();
  /// empty: nothing.
  virtual std::string input_problem(std::size_t /*row*/) { return {}; }
};

/// The remedy for a record whose values a layer does not take.
inline constexpr const char* mend_values =
    "mend the record, or train with a larger `vocabulary` of the layer; a column of such numbers "
    "is not standardized if trained with `standardize=false`";

/// Inference on the CPU, of as many rows at a time as the network has. `network` must outlive it.
std::unique_ptr<Inference> make_inference(nn::Network<float>& network);

/// Throws ConfigError unless there are `width` features for each of `examples`.
void require_features(std::span<const float> features, std::size_t examples, std::size_t width);

/// Copies features to the input buffer of a network.
/// Errors   those of require_features().
void copy_features(std::span<const float> features, Matrix<float> inputs);

/// Global batch size of evaluation. It affects speed and memory only.
inline constexpr std::uint64_t evaluation_batch = 1024;

/// Evaluation counts the classes of networks with at most this number of them.
inline constexpr std::size_t max_counted_classes = 256;

/// Sums over all ranks, identical on every rank. The loss is summed over leaves in a tree, batch
/// after batch, so the result does not depend on the number of ranks if the rows do not.
///
/// The loss is the mean over the examples with their weights, if the data has such; class weights
/// do not enter. All other figures count each example once.
struct Evaluation {
  std::uint64_t examples = 0;
  double loss_sum = 0;        ///< of losses times weights
  double weight = 0;          ///< sum of the weights; without weights `examples`
  std::uint64_t correct = 0;  ///< of classification; with several labels: all of them are right
  /// Of regression with as many values as outputs: for each of them.
  std::vector<ValueSums> values = {};
  /// The given metrics, in their order; those of examples are summed as the loss is.
  std::vector<double> metrics = {};
  /// confusion[label * classes + predicted]: number of examples; empty for more than
  /// max_counted_classes.
  std::vector<std::uint64_t> confusion = {};
  /// With several labels: the counts of each.
  std::vector<ClassCounts> labels = {};
  /// Digest of the ids evaluated by all ranks; checked to be every record once.
  std::uint64_t ids_digest = 0;
  /// The request for which the evaluation ended early, without figures; 0: it is complete.
  std::uint64_t stop = 0;

  /// The counts of each class, by the confusion matrix, or of each label; empty if both are.
  std::vector<ClassCounts> classes() const;

  double loss() const { return loss_sum / weight; }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(examples); }

  /// The mean of the outputs' R2.
  double r2() const;

  /// R2 of a regression, else accuracy.
  double score() const { return values.empty() ? accuracy() : r2(); }
};

/// Loss, score and metrics of a data set.
struct SetFigures {
  double loss = 0;
  double score = 0;
  NamedFigures metrics = {};

  /// "loss", "score", or the one of `metrics` with that name; nullopt: there is none.
  std::optional<double> named(std::string_view name) const;
};

/// True of "loss", of which less is better; of all other figures of a data set more is.
bool is_less_better(std::string_view figure);

/// The plan for evaluating `records` records on `ranks` ranks.
data::Plan evaluation_plan(std::uint64_t records, int ranks);

/// Returns a number, not 0, if this rank wants to stop. All ranks then stop together, for the
/// greatest number of all. Local.
using StopRequest = std::function<std::uint64_t()>;

/// Evaluates a network on every record that the reader's plan assigns to this rank, and sums over
/// ranks. Calls `stop` before each batch, on all ranks or on none.
///
/// A device must have rows for the plan's largest_piece(); on the processor the network needs at
/// least one. The plan is for the ranks of `groups.batch`.
/// Errors   throws comm::AgreedError if not every record was evaluated exactly once (70), if there
///          are none or their weights sum to zero, or for a record that a layer does not take (65),
///          or if ranks have different metrics (2; their functions are not compared); ConfigError
///          or DataError for targets that do not fit the loss, or for a metric that is not for
///          them; and the errors of reading and communication.
/// Ranks    collective.
Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, data::BatchReader& reader,
                    const Groups& groups, const std::vector<Metric>& metrics = {},
                    const StopRequest& stop = {});

/// This rank's examples of a step of a plan.
struct Piece {
  std::uint64_t step = 0;                ///< from 0
  std::span<const float> features = {};  ///< [b, features] row-major
  nn::Targets targets = {};              ///< [b]
};

/// The same for pieces that `next` returns, until it returns nullopt: steps of `plan`. The ids of
/// their examples are not known, so they are not compared.
Evaluation evaluate(Inference& network, const nn::Loss<float>& loss, const data::Plan& plan,
                    const std::function<std::optional<Piece>()>& next, const Groups& groups,
                    const std::vector<Metric>& metrics = {});

/// Adds the id digests of all ranks and compares the sum with the digest of `records` records, each
/// once. Returns the digest's value.
///
/// Errors   throws comm::AgreedError (70) if they differ.
/// Ranks    collective.
std::uint64_t certify_ids(data::IdsDigest mine, std::uint64_t records, comm::Communicator& comm);

/// What is predicted for each example.
enum class Predicted {
  label,          ///< the label and its probability alone
  probabilities,  ///< those of all classes, too
  flags,          ///< of several labels: the logit of each
  values,         ///< of a regression: the outputs
};

/// The prediction for one example.
struct Prediction {
  std::uint64_t id = 0;                 ///< id of the record in the data set
  std::int32_t label = 0;               ///< the first index of the greatest logit
  float probability = 0;                ///< softmax of that logit
  std::span<const float> outputs = {};  ///< as Predicted has it, [outputs]; empty for `label`
};

/// Receives the predictions of one global batch. The span is valid only during the call.
using PredictionSink = std::function<void(std::span<const Prediction>)>;

/// Runs the network on every record of `reader`'s plan, and passes all predictions to `sink` on
/// rank 0 of `groups.all`, batch after batch, in global order: ids 0, 1, 2, ...
///
/// Needs memory for one global batch, for any number of records. `reader` must use
/// evaluation_plan() for the ranks of `groups.batch`. A device must have rows for its
/// largest_piece(); on the processor the network needs at least one. With strict products the
/// predictions do not depend on the number of ranks.
/// Errors   throws comm::AgreedError: a prediction that is not finite (76), a record that a layer
///          does not take (65), not every record predicted exactly once (70); and the errors of
///          reading, communication and `sink`.
/// Ranks    collective.
void predict(Inference& network, data::BatchReader& reader, const Groups& groups,
             const PredictionSink& sink, Predicted predicted = Predicted::label);

}  // namespace lockstep::train

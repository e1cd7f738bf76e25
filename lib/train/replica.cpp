#include "lockstep/train/replica.hpp"

#include <algorithm>
#include <new>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/batches.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/numerics/threads.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/cost.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/integrity.hpp"
#include "lockstep/train/micro_batches.hpp"
#include "lockstep/train/nonfinite.hpp"
#include "lockstep/train/replica_parts.hpp"
#include "lockstep/train/shared_snapshot.hpp"
#include "lockstep/train/tensor_parallel.hpp"

namespace lockstep::train {

namespace {

void require_plan_of(const comm::Communicator& comm, const data::Plan& plan) {
  if (plan.options().ranks == static_cast<std::uint64_t>(comm.size())) return;
  throw ConfigError("Replica: a plan for " + std::to_string(plan.options().ranks) +
                        " ranks, where there are " + std::to_string(comm.size()),
                    "give PlanOptions::ranks the size of the communicator, or of \"batch\"");
}

/// The threads of this rank's products. Local.
int threads_of(const ReplicaOptions& options, const Groups& groups) {
  return options.threads > 0 ? options.threads : groups.all.own_cores();
}

}  // namespace

Replica::Replica(const nn::NetworkShape& shape, const data::Plan& plan, const Groups& groups,
                 const ReplicaOptions& options)
    : plan_(plan),
      groups_(groups),
      optimizer_(options.optimizer),
      prefetch_(options.prefetch),
      keeps_snapshots_(options.keeps_snapshots),
      parts_(std::make_unique<Parts>()) {
  const StepOptions step_options = {
      .optimizer = options.optimizer,
      .plan = &*plan_,
      .audit_every = options.audit_every,
      .skip_with = options.on_nonfinite == OnNonfinite::skip ? &groups_.all : nullptr,
      .model = groups_.model,
      .micro_batch = options.micro_batch};
  auto exchange = Exchange::automatic;
  require_equal_settings(shape, &plan, options, groups_);
  require_plan_of(groups_.batch, plan);
  comm::together(groups_.all, [&] {
    require_trainable(plan, options, groups_.model_ranks());
    const ReplicaBuffers buffers = training_buffers(shape, plan, options);
    exchange = buffers.exchange;
    rows_ = buffers.rows;
    require_memory(shape, buffers, snapshot_blocks(options), groups_, threads_of(options, groups_));
    make_network(shape, options);
    nn::initialise(*network_, options.seed);
  });
  comm::require_equal(groups_.all, "the replica",
                      {{"exchange", exchange == Exchange::activations ? "activations" : "sums"}},
                      "give all ranks the same `exchange` and `micro_batch`, or `exchange=sums`");
  make_device(options);
  comm::together(groups_.all, [&] {
    parts_->sentinel =
        std::make_unique<Sentinel>(*network_, device_.get(), groups_, options.sentinel_steps);
    const bool canonical = is_canonical(options);
    parts_->step = device_     ? device_->make_step(canonical, step_options, *parts_->sentinel)
                   : canonical ? make_canonical_step(*network_, exchange, step_options,
                                                     groups_.batch, *parts_->sentinel)
                               : make_allreduce_step(*network_, step_options, groups_.batch,
                                                     *parts_->sentinel);
  });
}

Replica::Replica(const SavedNetwork& saved, const Groups& groups, const ReplicaOptions& options)
    : groups_(groups), prefetch_(0), keeps_snapshots_(false), parts_(std::make_unique<Parts>()) {
  require_equal_settings(saved.shape, nullptr, options, groups_);
  comm::together(groups_.all, [&] {
    require_consistent(options, groups_.model_ranks());
    const ReplicaBuffers buffers = evaluation_buffers(groups_.batch.size(), options);
    rows_ = buffers.rows;
    require_memory(saved.shape, buffers, {}, groups_, threads_of(options, groups_));
    make_network(saved.shape, options);
    read_weights(saved, *network_);
  });
  make_device(options);
  require_one_checkpoint(groups_.all, &saved);
  steps_ = saved.info.step;
  examples_ = saved.info.examples;
  if (options.loss != nullptr) return;
  if (const auto* loss = nn::built_in_loss<float>(saved.loss)) {
    network_->set_loss(*loss);
  } else {
    unknown_loss_ = saved.loss;
  }
}

Replica::~Replica() = default;

void Replica::require_end(bool is_endless) {
  if (!is_endless) return;
  throw comm::AgreedError(ExitCode::usage, "evaluate: the data set has no end",
                          "leave repeat() out, or use take(n) after it");
}

void Replica::require_loss(const char* use) const {
  if (unknown_loss_.empty()) return;
  throw comm::AgreedError(ExitCode::usage,
                          std::string(use) + ": the checkpoint was trained with the loss '" +
                              unknown_loss_ + "', which is not built in",
                          "give it as ReplicaOptions::loss");
}

/// The network and its products on the host; with a device it has no rows.
void Replica::make_network(const nn::NetworkShape& shape, const ReplicaOptions& options) {
  const bool on_device = options.device == Device::cuda;
  const bool sliced = plan_ && is_canonical(options);
  set_product_threads(threads_of(options, groups_));
  products_ = is_strict(options, on_device ? "cuBLAS" : library_products_name())
                  ? make_strict_products(on_device ? Simd::automatic : options.simd, options.zeros,
                                         on_device ? Precision::float32 : options.precision)
                  : make_library_products<float>();
  if (options.wrap_products) products_ = options.wrap_products(std::move(products_));
  try {
    network_ = std::make_unique<nn::Network<float>>(
        shape, on_device ? 0 : rows_, *products_,
        sliced ? static_cast<std::size_t>(groups_.batch.size()) : 1,
        plan_ ? groups_.batch.memory() : *std::pmr::new_delete_resource(),
        make_layers_of(shape, groups_));
  } catch (const std::bad_alloc&) {
    throw ConfigError("layers: out of memory on " + groups_.all.place().host, less_memory);
  }
  if (options.loss != nullptr) network_->set_loss(*options.loss);
  network_->set_class_weights(options.class_weights);
  parts_->processor = make_inference(*network_);
}

/// Copies the weights of the network to this rank's device, if it is to have one. Collective.
void Replica::make_device(const ReplicaOptions& options) {
  if (options.device != Device::cuda) return;
  ReplicaOptions own = options;
  if (!plan_) own.device_exchange = DeviceExchange::staged;  // there is nothing to exchange
  device_ = make_device_replica(*network_, own, rows_, groups_.batch);
  if (options.wrap_device) device_ = options.wrap_device(std::move(device_));
}

const nn::NetworkShape& Replica::shape() const noexcept { return network_->shape(); }

/// Throws ConfigError for a replica that only evaluates.
Step& Replica::training() const {
  if (parts_->step) return *parts_->step;
  throw ConfigError("Replica: made without a plan, so it cannot train",
                    "make it with a plan or a data set, and restore() the checkpoint");
}

bool Replica::skips_nonfinite() const { return training().skips(); }

std::uint64_t Replica::skipped_steps() const {
  return steps_ - training().optimizer().scalars().steps;
}

const char* Replica::reduction() const { return training().name(); }

void Replica::begin_training() {
  training();
  parts_->sentinel->begin_after(steps_);  // of a fault found now the checkpoints so far are good
  if (groups_.all.size() > 1) weights_hash();
}

Inference& Replica::inference() noexcept {
  if (device_) return *device_;
  return *parts_->processor;
}

const char* Replica::products() const noexcept {
  return device_ ? device_->products() : products_->name();
}

std::uint64_t Replica::step_of(std::optional<std::uint64_t> step) {
  if (step) return *step;
  throw ConfigError("Replica: the step of this batch is not known",
                    "train on a batch as the iteration gave it, or call train(step, features, "
                    "labels)");
}

nn::Tally Replica::train(std::uint64_t step, std::span<const float> features,
                         const nn::Targets& targets) {
  Step& training_step = training();
  if (step >= plan_->steps()) {
    throw ConfigError("Replica: step " + std::to_string(step) + " of an epoch of " +
                          std::to_string(plan_->steps()) + " steps",
                      "count the steps of each epoch from 0");
  }
  const auto rank = static_cast<std::uint64_t>(groups_.batch.rank());
  const data::Batch batch = batch_with_targets(*plan_, step, rank, targets);
  nn::require_targets(targets, network_->loss_function(), batch.piece.size(), shape().classes,
                      plan_->positions(step, rank).begin);
  PhaseSeconds seconds;
  if (MicroBatches* const parts = training_step.micro_batches()) {
    require_features(features, batch.piece.size(), shape().features);
    parts->stage({batch, features, {}}, 1);
    return train(batch, seconds).tally;
  }
  if (!device_) {
    copy_features(features, network_->inputs(training_step.rows(batch.piece)));
    return train(batch, seconds).tally;
  }
  return train(stage_copy(batch, features), seconds).tally;
}

/// Copies a batch to staging memory, for a device.
data::Batch Replica::stage_copy(data::Batch batch, std::span<const float> features) {
  const std::size_t rows = batch.piece.size();
  if (parts_->staged_labels.size() == 0) {
    const auto max = static_cast<std::size_t>(plan_->largest_piece());
    auto& memory = device_->staging_memory();
    parts_->staged_features = AlignedBuffer<float>(max * shape().features, memory);
    parts_->staged_labels = AlignedBuffer<std::int32_t>(max, memory);
    const auto& loss = network_->loss_function();
    if (loss.target() != nn::TargetKind::label) {
      parts_->staged_values =
          AlignedBuffer<float>(max * loss.target_width(shape().classes), memory);
    }
  }
  const Matrix<float> inputs = {parts_->staged_features.data(), rows, shape().features};
  copy_features(features, inputs);
  if (parts_->staged_values.size() > 0) {
    std::copy(batch.values.begin(), batch.values.end(), parts_->staged_values.data());
    batch.values = parts_->staged_values.span().first(batch.values.size());
  } else {
    std::copy(batch.labels.begin(), batch.labels.end(), parts_->staged_labels.data());
  }
  batch.labels = parts_->staged_labels.span().first(rows);  // by which the batch is found again
  device_->stage({batch, inputs.flat(), {}}, 1);
  return batch;
}

data::Prefetch Replica::prefetch(data::BatchReader& reader, std::uint64_t batches) const {
  if (device_) return {reader, prefetch_, batches, device_->staging_memory()};
  if (training().micro_batches() != nullptr) {
    return {reader, prefetch_, batches, *std::pmr::new_delete_resource()};
  }
  return {reader, prefetch_, batches};
}

data::Batch Replica::load(data::Prefetch& batches, std::uint64_t epoch, std::uint64_t step) {
  if (MicroBatches* const parts = training().micro_batches()) {
    const data::StagedBatch staged = batches.take(epoch, step);
    parts->stage(staged, batches.divisor());
    return staged.batch;
  }
  if (!device_) {
    const Range rows = training().rows(batches.piece(step));
    return batches.read(epoch, step, network_->inputs(rows).flat());
  }
  const data::StagedBatch staged = batches.take(epoch, step);
  device_->stage(staged, batches.divisor());
  // The next batch is copied concurrently with this step, if it has been read.
  const bool last = step + 1 == batches.plan().steps();
  const auto next = batches.ready(last ? epoch + 1 : epoch, last ? 0 : step + 1);
  if (next) device_->stage(*next, batches.divisor());
  return staged.batch;
}

StepResult Replica::train(const data::Batch& batch, PhaseSeconds& seconds, std::uint64_t stop) {
  StepResult result;
  groups_.fail_together([&] {
    result = training().run(batch, seconds, stop);
    ++steps_;
    examples_ += batch.global_examples;
    why_skipped_.clear();
    if (result.not_finite == nullptr) return;
    const auto results = training().results(batch);
    NonfiniteValue first = first_nonfinite(batch, results);
    first.add(find_nonfinite(*network_, training().gradient_sums(), result.tally.weight));
    NonfiniteText found = describe_nonfinite(result.not_finite, first, batch, results, groups_);
    if (found.is_bad_input) throw comm::AgreedError(ExitCode::data, found.text, mend_values);
    why_skipped_ = std::move(found.text);
    if (result.skipped) return;
    throw_diverged(steps_, why_skipped_,
                   found.in_features
                       ? "mend these records of the data, or what computes their features"
                       : lower_rate);
  });
  if (groups_.model != nullptr) {
    groups_.model->all_reduce(std::span<std::uint64_t>(&result.stop, 1), comm::Op::max);
  }
  return result;
}

/// The first value of this rank's last piece that is not finite. Local.
NonfiniteValue Replica::first_nonfinite(const data::Batch& batch,
                                        std::span<const nn::ExampleResult> results) {
  if (const MicroBatches* const parts = training().micro_batches()) return parts->nonfinite();
  const Range rows = device_ ? batch.piece : training().rows(batch.piece);
  const auto activation = [&](std::size_t i) -> Matrix<const float> {
    if (device_) return device_->copy_activation(i, rows.size());
    return network_->activation(i, rows);
  };
  const auto gradient = [&](std::size_t i) -> Matrix<const float> {
    if (device_) return device_->copy_gradient(i, rows.size());
    return network_->gradient(i, rows);
  };
  return find_nonfinite(*network_, ExampleValues{batch, activation, gradient, results});
}

void Replica::drop_staged() noexcept {
  if (device_) device_->drop_staged();
}

Evaluation Replica::evaluate(data::Source& source, const std::vector<Metric>& metrics) {
  comm::together(groups_.all, [&] {
    if (source.features() == shape().features) return;
    throw ConfigError("evaluate: records of " + counted(source.features(), "feature") +
                          " for a network of " + std::to_string(shape().features),
                      "give data that is shaped as that of training");
  });
  comm::require_equal(groups_.all, "the data set of an evaluation",
                      {{"records", std::to_string(source.records())}, {"data", source.identity()}},
                      "open the same data on all ranks");
  data::BatchReader reader(source, evaluation_plan(source.records(), groups_.batch.size()),
                           groups_.batch.rank());
  return evaluate(reader, metrics);
}

Evaluation Replica::evaluate(data::BatchReader& reader, const std::vector<Metric>& metrics,
                             const StopRequest& stop) {
  require_loss("evaluate");
  return train::evaluate(inference(), network_->loss_function(), reader, groups_, metrics, stop);
}

Evaluation Replica::evaluate(const data::Plan& plan,
                             const std::function<std::optional<Piece>()>& next,
                             const std::vector<Metric>& metrics) {
  require_loss("evaluate");
  require_plan_of(groups_.batch, plan);
  const std::uint64_t of_evaluation =
      evaluation_plan(evaluation_batch, groups_.batch.size()).largest_piece();
  const std::uint64_t rows = std::max<std::uint64_t>(rows_, device_ ? 0 : of_evaluation);
  if (plan.largest_piece() > rows) {
    throw comm::AgreedError(ExitCode::usage,
                            "evaluate: batches of " + std::to_string(plan.options().batch_size) +
                                " examples, for buffers of " + std::to_string(rows) +
                                " rows on each rank",
                            "batch the data set by at most " + std::to_string(evaluation_batch));
  }
  return train::evaluate(inference(), network_->loss_function(), plan, next, groups_, metrics);
}

void Replica::predict(data::BatchReader& reader, const PredictionSink& sink, Predicted predicted) {
  train::predict(inference(), reader, groups_, sink, predicted);
}

template <class Take>
void Replica::forward_all(std::span<const float> features, Take take) {
  const std::size_t width = shape().features;
  if (features.size() % width != 0) {
    throw ConfigError(std::to_string(features.size()) + " features, where an example has " +
                          std::to_string(width),
                      "give whole examples, one after the other");
  }
  while (!features.empty()) {
    const std::size_t rows = std::min(rows_, features.size() / width);
    copy_features(features.first(rows * width), inference().inputs(rows));
    const auto outputs = inference().forward(rows);
    for (std::size_t i = 0; i < rows; ++i) take(outputs.row(i));
    features = features.subspan(rows * width);
  }
}

std::vector<std::int32_t> Replica::predict(std::span<const float> features) {
  const nn::TargetKind kind = network_->loss_function().target();
  if (kind != nn::TargetKind::label) {
    const bool has_flags = kind == nn::TargetKind::flags;
    throw ConfigError(std::string("Replica::predict: the loss '") +
                          network_->loss_function().name() + "' is of " +
                          (has_flags ? "several labels" : "values") + ", not of classes",
                      has_flags ? "use probabilities()" : "use outputs()");
  }
  std::vector<std::int32_t> labels;
  forward_all(features, [&](std::span<const float> logits) {
    labels.push_back(static_cast<std::int32_t>(nn::predicted_class<float>(logits)));
  });
  return labels;
}

std::vector<float> Replica::outputs(std::span<const float> features) {
  std::vector<float> all;
  forward_all(features,
              [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
  return all;
}

std::vector<float> Replica::probabilities(std::span<const float> features) {
  const nn::TargetKind kind = network_->loss_function().target();
  if (kind == nn::TargetKind::values) {
    throw ConfigError(std::string("Replica::probabilities: the loss '") +
                          network_->loss_function().name() + "' is of values, which have none",
                      "use outputs()");
  }
  std::vector<float> all;
  forward_all(features, [&](std::span<const float> row) {
    all.resize(all.size() + row.size());
    scores_of(row, kind, std::span(all).last(row.size()));
  });
  return all;
}

void Replica::copy_weights_to_host() {
  if (device_) device_->copy_weights_to_host({0, network_->parameters().values().size()});
}

std::uint64_t Replica::weights_hash() {
  copy_weights_to_host();
  const std::uint64_t hash = whole_hash(network_->parameters(), groups_);
  require_same_weights(groups_.all, hash, steps_,
                       parts_->sentinel ? parts_->sentinel->good_steps(steps_) : 0);
  return hash;
}

std::vector<std::pair<std::string, std::uint64_t>> Replica::tensor_hashes() {
  if (groups_.batch.rank() != 0) return {};
  copy_weights_to_host();
  const auto& block = network_->parameters();
  std::vector<std::pair<std::string, std::uint64_t>> hashes;
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    nn::WeightsHash hash;
    hash.add(block.tensors()[i], whole_tensor(block.layout(), block.values(), i, groups_));
    hashes.emplace_back(block.tensors()[i].name, hash.value());
  }
  return hashes;
}

}  // namespace lockstep::train

// Converts the settings of a run (flags, run file) to the option structs of the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/settings.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/trainer.hpp"

namespace lockstep::apps {

/// The configured network, for examples of `shape` (data::Source::shape()), with `outputs` outputs.
///
/// Errors   throws ConfigError: settings of one model given with another, no list of layers for
///          model layers, a layer that does not fit its input.
nn::NetworkShape network_of(const RunConfig& config, const std::vector<std::uint64_t>& shape,
                            std::uint64_t outputs);

/// The number of outputs of a network for a data set whose training set has `counts` records of
/// each label: classes, or values of a regression.
///
/// Errors   throws DataError if the number is found from the labels, and no record has one of them,
///          or the test set has others.
/// Ranks    local.
std::uint64_t outputs_of(const RunConfig& config, const data::DataSet& data,
                         const std::vector<std::uint64_t>& counts);

/// The sizes of the mesh's dimensions on `ranks` ranks. With "model=2" alone, batch has the rest.
/// Errors   throws ConfigError if the product of the dimensions is not the number of ranks.
train::MeshSizes mesh_of(const RunConfig& config, std::uint64_t ranks);

/// A plan, and the reason for its sharding policy.
struct TrainingPlan {
  data::Plan plan;
  std::string reason;
  std::string warning;  ///< printed once; empty: none
};

/// The names in a list of columns, as a line of CSV has them: a name with a comma stands in double
/// quotes. Throws ConfigError, with `place`, for quotes that do not match.
std::vector<std::string> column_names(const std::string& place, const std::string& text);

/// How the data of `config` is read. Throws ConfigError for lists of columns. Local.
data::DataSetOptions data_options(const RunConfig& config);

/// The ranks that open data together through `exchange`, which must outlive the result. Local.
data::OpeningRanks opening_ranks(comm::Exchange& exchange);

/// Throws ConfigError for a setting of tables or pictures (table_settings()) that cannot be applied
/// to data of the kind of `train`. Local.
void require_used(const RunConfig& config, const data::Source& train);

/// Prints what was unusual when training and test set were opened. Local.
void print_warnings(const data::DataSet& sets);

/// The plan of training on `records` records in files of `file_records` (empty: not from files).
///
/// Errors   throws ConfigError: errors of Plan and choose_policy(), and a plan without a step.
/// Ranks    local; the same on every rank.
TrainingPlan training_plan(const RunConfig& config, std::uint64_t records,
                           std::vector<std::uint64_t> file_records, std::uint64_t ranks);

/// The loss of training on `train`. Throws ConfigError. Local.
const nn::Loss<float>& loss_of(const RunConfig& config, const data::Source& train);

/// The setting `metrics`: `names`, for targets of `kind` and a network of `outputs`. Throws
/// ConfigError. Local.
std::vector<train::Metric> metrics_of(const std::string& names, nn::TargetKind kind,
                                      std::size_t outputs);

/// Throws DataError if `set` has no figure for one of `metrics`: the area under the curve needs
/// records with and without each of `outputs` labels. `names`: those of the labels; empty: they are
/// numbers. `what`: test or validation, for the message. Local.
void require_labels(const data::Source& set, const std::string& what,
                    const std::vector<std::string>& names,
                    const std::vector<train::Metric>& metrics, std::size_t outputs);

/// Length, metrics and validation of training; `validation` is null if there is no validation set.
/// Throws ConfigError for settings that need one. Local.
train::TrainerOptions trainer_options(const RunConfig& config, const nn::Loss<float>& loss,
                                      std::size_t outputs, data::BatchReader* validation);

/// The optimizer of training with `plan`. Throws ConfigError for settings that do not fit. Local.
optim::OptimizerOptions optimizer_options(const RunConfig& config, const data::Plan& plan);

/// The replica options in the settings, but for the optimizer. `threads`: see threads_of(). Local.
train::ReplicaOptions replica_options(const RunConfig& config, int threads);

/// The threads of a rank's products: the setting, else the number of the rank's cores. Local.
/// Throws ConfigError for an implausible number.
int threads_of(const RunConfig& config, int own_cores);
int threads_of(const RunConfig& config, const comm::Communicator& comm);

/// Warns, on rank 0, if these are more than its cores. Local.
void warn_of_threads(int threads, const comm::Communicator& comm);

}  // namespace lockstep::apps

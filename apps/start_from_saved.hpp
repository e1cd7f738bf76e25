// Where training starts from something saved: `lockstep train --resume` finds a checkpoint and
// decides which settings continue it; `lockstep train --init` takes the weights of another network.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/cli.hpp"
#include "apps/settings.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/plan.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/replica.hpp"

namespace lockstep::apps {

// --resume

/// The run that a job continues.
struct Resume {
  std::filesystem::path run;         ///< its folder; empty: none, or a checkpoint outside a run
  std::filesystem::path checkpoint;  ///< empty: no valid one, so training starts from the beginning
  bool complete = false;             ///< it is finished
  std::optional<std::uint64_t> stopped_early_after = {};  ///< a step: then it is finished too
  RunConfig config;            ///< of this job, with the run's settings where none is given
  train::TrainingState state;  ///< of the checkpoint

  /// False if there was nothing to continue.
  bool found() const noexcept { return !run.empty() || !checkpoint.empty(); }
};

/// The run to continue, as `config.resume` says; nullopt if that is "none". Without a run to
/// continue (`auto`) the result has the settings alone.
///
/// Settings that are not given on the command line or in the run file are those of the run, also
/// of one without a checkpoint; settings that do not determine the results may be given freely.
/// Rank 0 warns of each checkpoint that is skipped.
///
/// Errors   throws comm::AgreedError on all ranks: no such checkpoint, or a damaged one (65);
///          settings that determine the results and differ from the checkpoint's, a checkpoint that
///          Replica::save() wrote, and a run in use (2).
/// Ranks    collective.
std::optional<Resume> find_resume(const Arguments& arguments, const RunConfig& config,
                                  comm::Communicator& comm);

/// The settings that determine results; values are TOML literals. With the canonical reduction they
/// are free of ranks, devices and machines. Local.
comm::KeyValues decisive_settings(const RunConfig& config);

/// The value of a setting that was saved; its default for one that is newer. Local.
std::string saved_value(const comm::KeyValues& saved, const std::string& name);

/// The settings, data and plan that determine the results of training on the ranks of `comm`. With
/// the canonical reduction and the policy DATA they do not depend on the ranks. Local.
///
/// `train_identity`, `test_identity`: Source::identity() of the data.
comm::KeyValues decisive_of(const RunConfig& config, const std::string& train_identity,
                            const std::string& test_identity, const data::Plan& plan,
                            const comm::Communicator& comm);

/// The banner's text about a run to continue, after `steps` steps. Local.
std::string resume_text(const Resume& resume, std::uint64_t steps);

/// True if this job records in the folder of the run that it continues. Local.
bool continues_in_place(const RunConfig& config, const std::optional<Resume>& resume);

/// The folder to record in: that of the run which is continued, unless another one is given. Local.
std::string run_dir_of(const RunConfig& config, const std::optional<Resume>& resume);

/// Throws ConfigError with the name of data, plan or ranks that differ from the checkpoint's.
/// Local.
void require_same_data(const Resume& resume, const comm::KeyValues& now);

// --init

/// Sets the weights of `replica` that the settings name, before its first step. Returns the
/// banner's text; empty: none. Rank 0 warns of data that is scaled otherwise than the checkpoint's.
///
/// Errors   throws comm::AgreedError: those of Replica::start_from(); columns of the table that are
///          not the checkpoint's (2).
/// Ranks    collective.
std::string start_from(const RunConfig& config, const data::Source& train, train::Replica& replica);

}  // namespace lockstep::apps

// The subcommands of `lockstep`. Each takes the words after its name and returns the exit code.
// With a single process errors are thrown; if other ranks may be waiting, they are printed and the
// job ends (run_on_ranks in cli.hpp).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/cli.hpp"

namespace lockstep::apps {

struct TrainData;

// The command lines that they take.
Syntax train_syntax();
Syntax sweep_syntax();
Syntax evaluate_syntax();
Syntax predict_syntax();
Syntax plan_syntax();
Syntax generate_syntax();
Syntax convert_syntax();
Syntax bench_syntax();
Syntax doctor_syntax();
Syntax launch_syntax();
Syntax inspect_syntax();
Syntax compare_syntax();
Syntax plot_syntax();

/// Trains on all ranks of this job: under a launcher over MPI, else as threads of this process.
int train_command(const std::vector<std::string>& words);

/// The part of one rank of `comm` in train_command(). The configuration is the same on all ranks.
/// `check`, unless empty, may throw a ConfigError for the data before anything is computed.
///
/// Errors   throws comm::AgreedError on all ranks, and errors of one rank.
/// Ranks    collective.
void train_on(const Arguments& arguments, const RunConfig& given, comm::Communicator& comm,
              const std::function<void(const TrainData& data)>& check = {});

/// Runs the trials of a sweep file, each on a group of the ranks of this job.
int sweep_command(const std::vector<std::string>& words);

/// Computes loss and accuracy of a checkpoint on a test set, over all ranks of this job.
int evaluate_command(const std::vector<std::string>& words);

/// Prints or writes what a checkpoint predicts for every example of a data set, over all ranks of
/// this job.
int predict_command(const std::vector<std::string>& words);

/// Prints and verifies which rank reads which record at which step; or prints the layers of a
/// network, or a measured step on more ranks. Without MPI.
int plan_command(const std::vector<std::string>& words);

/// Writes the built-in data set as files of any format. Without MPI.
int generate_command(const std::vector<std::string>& words);

/// Converts a data set to another format or another number of files. Without MPI.
int convert_command(const std::vector<std::string>& words);

/// Benchmarks one component on all ranks of this job; the first word names the component.
int bench_command(const std::vector<std::string>& words);

/// Prints what the ranks of a run do or did last, and names the rank that others wait for. Without
/// MPI. Returns 0 if nothing is wrong, else 1.
int doctor_command(const std::vector<std::string>& words);

/// Runs a training job and restarts it when it fails. Without MPI. Returns the job's exit code.
int launch_command(const std::vector<std::string>& words);

/// Prints what a run, a checkpoint, a folder of them or a data set contains. Without MPI. Returns
/// 0, or 65 if a checkpoint or summary.json is damaged.
int inspect_command(const std::vector<std::string>& words);

/// Finds the first recorded point where two runs differ. Without MPI. Returns 0 if they are equal
/// and 1 if they differ, as cmp does.
int compare_command(const std::vector<std::string>& words);

/// Draws the epochs of runs as SVG or PNG. Without MPI.
int plot_command(const std::vector<std::string>& words);

struct Subcommand {
  const char* name;
  const char* does;  ///< in a line
  int (*run)(const std::vector<std::string>& words);
  Syntax (*syntax)();
};

/// A script with which "bash", "zsh" or "fish" completes the subcommands, their flags and the
/// values of these. Throws ConfigError for another shell.
std::string completion(const std::string& shell, std::span<const Subcommand> commands);

}  // namespace lockstep::apps

// The subcommands of `lockstep`. Each takes the words behind its name and returns the exit code.
// Errors that this process alone has come out as exceptions; where other ranks might be waiting,
// they are printed and the job ends (run_on_ranks in cli.hpp).
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

/// Trains on all ranks of this job: under a launcher over MPI, else as threads of this process.
int train_command(const std::vector<std::string>& words);

/// Loss and accuracy of a checkpoint on a test set, over all ranks of this job.
int evaluate_command(const std::vector<std::string>& words);

/// Writes a checkpoint's label for every example of a test set, over all ranks of this job.
int predict_command(const std::vector<std::string>& words);

/// Prints which rank reads which record at which step, and proves it. Without MPI.
int plan_command(const std::vector<std::string>& words);

/// Writes the built-in data set as files of any format. Without MPI.
int generate_command(const std::vector<std::string>& words);

/// Writes a data set again, in another format or other files. Without MPI.
int convert_command(const std::vector<std::string>& words);

/// Measures one part by itself on all ranks of this job; the first word names the part.
int bench_command(const std::vector<std::string>& words);

/// Finds the first recorded point where two runs differ. Without MPI. Returns 0 where they are the
/// same and 1 where they differ, as cmp does.
int compare_command(const std::vector<std::string>& words);

}  // namespace lockstep::apps

// Terminal output: the banner, progress, epoch metrics, the closing table.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/data/table.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::apps {

enum class Progress { bar, lines, off };

/// Resolves "auto": a progress bar on a terminal, else lines.
Progress progress_of(const std::string& setting);

/// Prints "label  text" rows under a headline to stdout.
struct Banner {
  std::string headline;
  std::vector<std::pair<std::string, std::string>> rows;
  std::string whole = {};  ///< label of a row that is not shortened however long it is

  void print() const;
};

/// `text` with spaces for its line breaks.
std::string on_one_line(std::string text);

/// Prints lines of equally many cells to stdout, in columns; the first is aligned to the left.
/// Cells are printed on one line, by presentable().
void print_table(std::vector<std::vector<std::string>> lines);

/// What the outputs of a network stand for.
struct OutputNames {
  std::vector<std::string> classes = {};        ///< the text of each class; empty: their numbers
  std::vector<data::TableColumn> targets = {};  ///< of a regression: the columns to predict
};

OutputNames names_of(const train::CheckpointInfo& info);

/// Prints training progress to stdout; created on rank 0 only.
class Console final : public train::Observer {
 public:
  Console(Progress progress, std::uint64_t epochs, std::uint64_t total_steps, OutputNames names);

  /// After an error, ends the line of the progress bar.
  ~Console() override;
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void on_step(const train::StepReport& report) override;
  void on_epoch(const train::EpochReport& report) override;
  void on_checkpoint(const train::DueCheckpoint&) override {}

  /// Prints the closing table. `saved` is the last checkpoint's path.
  void finish(const train::RunReport& report, const std::string& saved) const;

 private:
  using Clock = std::chrono::steady_clock;

  void show_progress(const train::StepReport& report);
  void clear_bar();

  Progress progress_;
  std::uint64_t epochs_;
  std::uint64_t total_steps_;
  OutputNames names_;
  Clock::time_point shown_ = Clock::now();
  double seconds_ = 0;       // of the steps below
  std::uint64_t steps_ = 0;  // since this job began
  std::uint64_t examples_ = 0;
  std::uint64_t epoch_ = 0;
  double epoch_loss_ = 0;
  double epoch_weight_ = 0;
  bool bar_shown_ = false;
};

/// "214 of 10,000 examples misclassified (2.1 %); worst class: 9, ..."; of a regression
/// "'price': R2 0.812, root mean square error 43.2".
std::string error_in_words(const train::Evaluation& test, const OutputNames& names);

/// Prints precision, recall and F1 of each class, their means and the accuracy, with the columns of
/// scikit-learn's classification_report(). `classes`: their names; empty: they are
/// numbers.
void print_report(const train::Evaluation& test, const std::vector<std::string>& classes);

/// The text of --help for --report.
inline constexpr const char* report_help =
    "print precision, recall and F1 of each class on the test set";

/// Throws ConfigError if there are more classes than print_report() can count, or numbers to
/// predict. `table`: that of the data; null if it is none.
void require_reportable(std::uint64_t outputs, const data::TableSchema* table);

/// The ranks and their hosts in rank order: "2 ranks on 1 host (alpha: 2)". Collective.
std::string ranks_text(comm::Communicator& comm);

/// The columns of a terminal that does not tell its size, and of texts for no terminal.
inline constexpr int usual_columns = 80;

/// The number of columns of the terminal on this process's stdout; nullopt without a terminal, or
/// if it cannot move its cursor (TERM=dumb).
///
/// Under mpirun a rank's stdout is always a pseudo-terminal of size 0x0, so the parent's stdout is
/// used if the parent is mpirun on this machine. Local.
std::optional<int> terminal_columns();

/// Writes a line to the terminal on stderr of the mpirun that started this process on this machine,
/// over the progress bar; false without one. For what is printed after Ctrl-C, which mpirun may no
/// longer pass on. Local.
bool print_on_terminal_of_mpirun(const std::string& line);

/// The words of the mpirun on this machine that started this process, up to those of the program:
/// "mpirun", "-n", "2". Empty without one. Local.
std::vector<std::string> mpirun_words();

}  // namespace lockstep::apps

// Terminal output: the banner, progress, epoch metrics, the closing table.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/table.hpp"
#include "lockstep/train/report.hpp"

namespace lockstep::apps {

enum class Progress { bar, lines, off };

/// Resolves "auto": a progress bar on a terminal, else lines.
Progress progress_of(const std::string& setting);

/// Prints "label  text" rows under a headline to stdout.
struct Banner {
  std::string headline;
  std::vector<std::pair<std::string, std::string>> rows;

  void print() const;
};

/// Prints lines of equally many cells to stdout, in columns; the first is aligned to the left.
void print_table(const std::vector<std::vector<std::string>>& lines);

/// Prints training progress to stdout; created on rank 0 only.
class Console final : public train::Observer {
 public:
  /// `table`: that of the data; null if it is none.
  Console(Progress progress, std::uint64_t epochs, std::uint64_t total_steps,
          std::shared_ptr<const data::TableSchema> table);

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
  std::shared_ptr<const data::TableSchema> table_;
  int columns_;
  Clock::time_point shown_ = Clock::now();
  double seconds_ = 0;
  std::uint64_t examples_ = 0;
  std::uint64_t epoch_ = 0;
  double epoch_loss_ = 0;
  std::uint64_t epoch_examples_ = 0;
  bool bar_shown_ = false;
};

/// "214 of 10,000 examples misread (2.1 %); label 9 is the hardest: ..."; of a regression
/// "'price': R2 0.812, root mean square error 43.2". `table`: that of the data; null if it is none.
std::string error_in_words(const train::Evaluation& test, const data::TableSchema* table);

/// "4 columns of numbers, standardized; 'x' left out (as asked); missing numbers: mean".
std::string table_text(const data::TableSchema& table);

/// "3 classes of column 'species': 'Adelie', 'Chinstrap', 'Gentoo'; 44.2 % are 'Adelie'". `counts`:
/// training records of each label. Of a regression: "numbers: 'price' (mean 12.3, ...)".
std::string labels_text(const data::TableSchema& table, const std::vector<std::uint64_t>& counts);

/// The number of columns of the terminal on this process's stdout; nullopt without a terminal, or
/// if it cannot move its cursor (TERM=dumb).
///
/// Under mpirun a rank's stdout is always a pseudo-terminal of size 0x0, so the parent's stdout is
/// used if the parent is mpirun on this machine. Local.
std::optional<int> terminal_columns();

}  // namespace lockstep::apps

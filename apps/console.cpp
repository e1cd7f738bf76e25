#include "apps/console.hpp"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/checkpoint.hpp"

namespace lockstep::apps {
namespace {

using namespace std::chrono_literals;

constexpr auto bar_interval = 100ms;
constexpr auto line_interval = 5s;
constexpr int widest_bar = 30;

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::lround(std::max(0.0, seconds)));
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string percent(double part, double whole) {
  return fmt::format("{:5.1f} %", whole > 0 ? 100 * part / whole : 0.0);
}

/// The bytes that ranks read: "23.4 MB", or "0.6 MB to 1.1 MB".
std::string read_text(const std::vector<std::uint64_t>& bytes) {
  const auto [min, max] = std::minmax_element(bytes.begin(), bytes.end());
  const std::string text = bytes_text(static_cast<double>(*min));
  return *min == *max ? text : text + " to " + bytes_text(static_cast<double>(*max));
}

/// False for the later bytes of a character in UTF-8.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

}  // namespace

Progress progress_of(const std::string& setting) {
  if (setting == "off") return Progress::off;
  if (setting == "lines") return Progress::lines;
  return setting == "bar" || terminal_columns() ? Progress::bar : Progress::lines;
}

void Banner::print() const {
  fmt::print("{}\n", presentable(headline));
  std::size_t width = 10;
  for (const auto& [label, text] : rows) width = std::max(width, presentable(label).size());
  for (const auto& [label, text] : rows) {
    const std::string shown = label == whole ? presentable(text, text.size()) : presentable(text);
    fmt::print("  {:<{}} {}\n", presentable(label), width, shown);
  }
  std::fflush(stdout);
}

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void print_table(std::vector<std::vector<std::string>> lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      line[i] = presentable(on_one_line(std::move(line[i])));
      const auto width = std::count_if(line[i].begin(), line[i].end(), begins_character);
      widths[i] = std::max(widths[i], static_cast<std::size_t>(width));
    }
  }
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      text += i == 0 ? fmt::format("  {:<{}}", line[i], widths[i])
                     : fmt::format("  {:>{}}", line[i], widths[i]);
    }
    fmt::print("{}\n", text.substr(0, text.find_last_not_of(' ') + 1));
  }
}

Console::Console(Progress progress, std::uint64_t epochs, std::uint64_t total_steps,
                 OutputNames names)
    : progress_(progress), epochs_(epochs), total_steps_(total_steps), names_(std::move(names)) {}

void Console::on_step(const train::StepReport& report) {
  if (report.epoch != epoch_) {
    epoch_ = report.epoch;
    epoch_loss_ = 0;
    epoch_weight_ = 0;
  }
  seconds_ += report.seconds;
  ++steps_;
  examples_ += report.examples;
  if (report.skipped.empty()) {
    epoch_weight_ += report.weight;
    epoch_loss_ += report.loss * report.weight;
  } else {
    clear_bar();
    launching::print_warning(fmt::format("step {} skipped: {}", report.step, report.skipped));
  }
  const auto now = Clock::now();
  if (progress_ == Progress::off) return;
  if (now - shown_ < (progress_ == Progress::bar ? Clock::duration(bar_interval)
                                                 : Clock::duration(line_interval))) {
    return;
  }
  shown_ = now;
  show_progress(report);
}

void Console::show_progress(const train::StepReport& report) {
  const auto done = static_cast<double>(report.step);
  const auto all = static_cast<double>(total_steps_);
  const std::string figures =
      fmt::format("step {}/{}  epoch {}/{}  loss {:.3f}  {} examples/s  {} left",
                  grouped(report.step), grouped(total_steps_), report.epoch, epochs_,
                  epoch_weight_ > 0 ? epoch_loss_ / epoch_weight_ : 0.0,
                  grouped(static_cast<std::uint64_t>(static_cast<double>(examples_) / seconds_)),
                  clock_text(seconds_ / static_cast<double>(steps_) * (all - done)));
  if (progress_ == Progress::lines) {
    fmt::print("  {}\n", figures);
  } else {
    const int columns = terminal_columns().value_or(usual_columns);  // the window may have changed
    const int room = columns - static_cast<int>(figures.size()) - 5;
    const int width = std::clamp(room, 0, widest_bar);
    const auto filled = static_cast<std::size_t>(done / all * width);
    std::string bar =
        std::string(filled, '#') + std::string(static_cast<std::size_t>(width) - filled, '.');
    if (width > 0) bar = "[" + bar + "] ";
    fmt::print("\r{}\x1b[K", (bar + figures).substr(0, static_cast<std::size_t>(columns - 1)));
    bar_shown_ = true;
  }
  std::fflush(stdout);
}

void Console::clear_bar() {
  if (bar_shown_) fmt::print("\r\x1b[K");
  bar_shown_ = false;
}

void Console::on_epoch(const train::EpochReport& report) {
  if (progress_ == Progress::off) return;
  clear_bar();
  const auto figures = [&](const char* set, double loss, std::optional<double> score,
                           const train::NamedFigures& metrics) {
    const char* const name = report.is_regression ? "R2" : "accuracy";
    std::string text = fmt::format("{} loss {:.3f}", set, loss);
    if (score) text += fmt::format(", {} {:.3f}", name, *score);
    for (const auto& [metric, figure] : metrics) text += fmt::format(", {} {:.3f}", metric, figure);
    return text + "   ";
  };
  const auto& validation = report.validation;
  fmt::print("epoch {}/{}  {}{}{}{:.1f} s, {} examples/s\n", report.epoch, epochs_,
             figures("training", report.train_loss, report.train_score, {}),
             validation
                 ? figures("validation", validation->loss, validation->score, validation->metrics)
                 : "",
             figures("testing", report.test.loss, report.test.score, report.test.metrics),
             report.seconds, grouped(static_cast<std::uint64_t>(report.examples_per_second)));
  if (!report.new_shares.empty()) {
    fmt::print("balance: leaves of a batch on each rank from now on: {}\n",
               fmt::join(report.new_shares, " "));
  }
  std::fflush(stdout);
}

void Console::finish(const train::RunReport& report, const std::string& saved) const {
  if (progress_ == Progress::off) return;
  const auto& median = report.step_seconds;
  const double other =
      std::max(0.0, median.total - median.data - median.compute - median.reduce - median.update);
  const auto row = [&](const char* what, double seconds) {
    fmt::print("  {:<26} {:>9.3f} ms  {}\n", what, 1e3 * seconds, percent(seconds, median.total));
  };
  fmt::print("\n{}", counted(report.steps, "step"));
  if (report.skipped_steps > 0) {
    fmt::print(", {} of them skipped as not finite", grouped(report.skipped_steps));
  }
  fmt::print(", {} examples/s", grouped(static_cast<std::uint64_t>(report.examples_per_second)));
  if (report.startup_seconds > 0) {
    fmt::print("; the first step was done {:.2f} s after the start", report.startup_seconds);
  }
  fmt::print("\n");
  row("one step (median)", median.total);
  row("  reading the batch", median.data);
  row("  forward and backward", median.compute);
  row("  exchange between ranks", median.reduce);
  row("  update", median.update);
  row("  publishing and the rest", other);
  if (std::any_of(report.bytes_read.begin(), report.bytes_read.end(), std::identity())) {
    fmt::print("each rank read {} of training data\n", read_text(report.bytes_read));
  }
  if (report.best.epoch > 0) {
    const auto best =
        std::filesystem::path(saved).parent_path() / train::checkpoint_name(report.best.step);
    std::error_code ignored;
    fmt::print("validation: best after epoch {} and {}{}{}\n", report.best.epoch,
               counted(report.best.step, "step"),
               std::filesystem::exists(best, ignored) ? ", saved in " + best.string() : "",
               report.stopped_early ? "; training ended early" : "");
  }
  const std::string test = error_in_words(report.test, names_);  // with names of the data
  fmt::print("test: {}\n", presentable(test, test.size()));
  fmt::print("weights {} saved in {}\n", to_hex(report.weights_hash), saved);
  std::fflush(stdout);
}

std::string ranks_text(comm::Communicator& comm) {
  const auto hosts = comm::gather_text(comm, comm.place().host);
  std::vector<std::pair<std::string, int>> counts;
  for (const auto& host : hosts) {
    auto at = std::find_if(counts.begin(), counts.end(),
                           [&](const auto& count) { return count.first == host; });
    if (at == counts.end()) at = counts.emplace(at, host, 0);
    ++at->second;
  }
  constexpr std::size_t max_named = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(counts.size(), max_named); ++i) {
    names += fmt::format("{}{}: {}", i == 0 ? "" : ", ", counts[i].first, counts[i].second);
  }
  if (counts.size() > max_named) names += ", ...";
  return fmt::format("{} on {} ({})", counted(static_cast<std::uint64_t>(comm.size()), "rank"),
                     counted(static_cast<std::uint64_t>(comm.place().nodes), "host"), names);
}

namespace {

/// The first of the classes or labels with the least `score`; an undefined score counts as 1.
std::size_t worst_by(std::optional<double> (train::ClassCounts::*score)() const,
                     const std::vector<train::ClassCounts>& all) {
  const auto of = [score](const auto& counts) { return (counts.*score)().value_or(1); };
  const auto worst = std::min_element(all.begin(), all.end(),
                                      [&](const auto& a, const auto& b) { return of(a) < of(b); });
  return static_cast<std::size_t>(worst - all.begin());
}

/// "worst label: 'rain', 12 of its 40 missed, 3 predicted wrongly": that with the least F1.
std::string worst_flag_text(const train::Evaluation& test,
                            const std::function<std::string(std::size_t)>& name) {
  const std::size_t label = worst_by(&train::ClassCounts::f1, test.labels);
  const train::ClassCounts& worst = test.labels[label];
  return fmt::format("worst label: {}, {} of its {} missed, {} predicted wrongly", name(label),
                     grouped(worst.examples - worst.correct), grouped(worst.examples),
                     grouped(worst.predicted - worst.correct));
}

/// "worst class: 9, 47 of its 992 wrong, 20 of them predicted as 3": that with the least recall,
/// and its most frequent wrong prediction.
std::string worst_class_text(const train::Evaluation& test,
                             const std::function<std::string(std::size_t)>& name) {
  const auto classes = test.classes();
  const std::size_t label = worst_by(&train::ClassCounts::recall, classes);
  const auto row = std::span(test.confusion).subspan(label * classes.size(), classes.size());
  std::vector<std::uint64_t> wrong(row.begin(), row.end());
  wrong[label] = 0;
  const auto most = std::max_element(wrong.begin(), wrong.end());
  return fmt::format("worst class: {}, {} of its {} wrong, {} of them predicted as {}", name(label),
                     grouped(classes[label].examples - classes[label].correct),
                     grouped(classes[label].examples), grouped(*most),
                     name(static_cast<std::size_t>(most - wrong.begin())));
}

std::string values_in_words(const train::Evaluation& test,
                            const std::vector<data::TableColumn>& targets) {
  std::string text;
  for (std::size_t i = 0; i < test.values.size(); ++i) {
    text += fmt::format("{}{}: R2 {:.3f}, root mean square error {:.5g}", i == 0 ? "" : "; ",
                        in_quotes(targets[i].name), test.values[i].r2(),
                        targets[i].deviation * test.values[i].rmse());
  }
  return text;
}

}  // namespace

OutputNames names_of(const train::CheckpointInfo& info) {
  const bool is_regression = info.table != nullptr && info.table->is_regression();
  return {info.class_names(),
          is_regression ? info.table->targets : std::vector<data::TableColumn>()};
}

std::string error_in_words(const train::Evaluation& test, const OutputNames& names) {
  if (!test.values.empty()) return values_in_words(test, names.targets);
  const std::uint64_t wrong = test.examples - test.correct;
  std::string text = fmt::format(
      "{} of {} examples {} ({:.1f} %)", grouped(wrong), grouped(test.examples),
      test.labels.empty() ? "misclassified" : "have a wrong label", 100 * (1 - test.accuracy()));
  const auto name = [&](std::size_t label) {
    return names.classes.empty() ? std::to_string(label) : on_one_line(names.classes[label]);
  };
  if (wrong > 0 && !test.labels.empty()) return text + "; " + worst_flag_text(test, name);
  if (wrong == 0 || test.confusion.empty()) return text;
  return text + "; " + worst_class_text(test, name);
}

void require_reportable(std::uint64_t outputs, const data::TableSchema* table) {
  if (table != nullptr && table->is_regression()) {
    throw ConfigError("--report: there are numbers to predict, and no classes",
                      "leave --report out: R2 and error of each are printed anyway");
  }
  if (outputs <= train::max_counted_classes) return;
  throw ConfigError(fmt::format("--report: there are {} classes, and it has at most {}", outputs,
                                train::max_counted_classes),
                    "leave --report out");
}

namespace {

/// Means over classes or labels.
struct MeanScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
  double weights = 0;

  /// An undefined score counts as 0.
  void add(const train::ClassCounts& counts, double weight) {
    precision += weight * counts.precision().value_or(0);
    recall += weight * counts.recall().value_or(0);
    f1 += weight * counts.f1().value_or(0);
    weights += weight;
  }

  std::vector<std::string> line(const char* name, std::uint64_t support) const {
    const auto mean = [&](double sum) {
      return fmt::format("{:.4f}", weights > 0 ? sum / weights : 0.0);
    };
    return {name, mean(precision), mean(recall), mean(f1), grouped(support)};
  }
};

}  // namespace

void print_report(const train::Evaluation& test, const std::vector<std::string>& classes) {
  const auto score = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.4f}", *share) : "-";
  };
  std::vector<std::vector<std::string>> lines = {
      {"", "precision", "recall", "f1-score", "support"}};
  MeanScores macro;  // of the classes that occur, or of all labels, as scikit-learn has it
  MeanScores weighted;
  std::uint64_t support = 0;
  for (const train::ClassCounts& counts : test.classes()) {
    const std::size_t index = lines.size() - 1;
    lines.push_back({classes.empty() ? std::to_string(index) : classes[index],
                     score(counts.precision()), score(counts.recall()), score(counts.f1()),
                     grouped(counts.examples)});
    if (counts.f1() || !test.labels.empty()) macro.add(counts, 1);
    weighted.add(counts, static_cast<double>(counts.examples));
    support += counts.examples;
  }
  lines.push_back({"accuracy", "", "", score(test.accuracy()), grouped(test.examples)});
  lines.push_back(macro.line("macro avg", support));
  lines.push_back(weighted.line("weighted avg", support));
  fmt::print("\n");
  print_table(lines);
  std::fflush(stdout);
}

namespace {

/// The columns of an open terminal; 0 if its size is unknown, nullopt if it is not a terminal.
std::optional<int> columns_of(int descriptor) {
  if (::isatty(descriptor) == 0) return std::nullopt;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool parent_is_mpirun() { return comm::is_mpirun(program_of(::getppid())); }

/// Opens a file that the parent has open; -1 if it cannot.
int open_of_parent(int descriptor, int flags) {
  const std::string path = fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor);
  return ::open(path.c_str(), flags | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
}

std::optional<int> columns_of_parent() {
  const int descriptor = open_of_parent(STDOUT_FILENO, O_RDONLY);
  if (descriptor < 0) return std::nullopt;
  const auto columns = columns_of(descriptor);
  ::close(descriptor);
  return columns;
}

}  // namespace

std::optional<int> terminal_columns() {
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string(kind) == "dumb") return std::nullopt;
  const auto columns = parent_is_mpirun() ? columns_of_parent() : columns_of(STDOUT_FILENO);
  if (columns == 0) return usual_columns;
  return columns;
}

Console::~Console() {
  if (progress_ != Progress::bar || std::uncaught_exceptions() == 0) return;
  if (is_stop_requested() && parent_is_mpirun()) return;  // the write could block
  std::fputs(bar_shown_ ? "\n" : "\r\x1b[K", stdout);     // a terminal shows Ctrl-C as ^C
  std::fflush(stdout);
}

bool print_on_terminal_of_mpirun(const std::string& line) {
  const int descriptor = parent_is_mpirun() ? open_of_parent(STDERR_FILENO, O_WRONLY) : -1;
  if (descriptor < 0) return false;
  const std::string text = "\r\x1b[K" + line + "\n";
  const bool is_written =
      ::isatty(descriptor) == 1 &&
      ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(descriptor);
  return is_written;
}

std::vector<std::string> mpirun_words() {
  if (!parent_is_mpirun()) return {};
  std::vector<std::string> words = process_words(::getppid(), "cmdline");
  const auto program = std::find(words.begin(), words.end(), program_invocation_name);
  if (program == words.end()) return {};
  words.erase(program, words.end());
  return words;
}

}  // namespace lockstep::apps

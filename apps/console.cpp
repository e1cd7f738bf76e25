#include "apps/console.hpp"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/range.hpp"
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

/// The label with the highest misclassification rate, and its most frequent wrong prediction.
struct WorstLabel {
  std::size_t label = 0;
  std::size_t predicted_as = 0;
  std::uint64_t misread = 0;
  std::uint64_t examples = 0;
  std::uint64_t times = 0;
};

WorstLabel worst_label(const train::Evaluation& test) {
  const auto classes = test.classes();
  WorstLabel worst;
  for (std::size_t label = 0; label < classes.size(); ++label) {
    const std::uint64_t examples = classes[label].examples;
    const std::uint64_t misread = examples - classes[label].correct;
    if (misread * std::max<std::uint64_t>(worst.examples, 1) <=
        worst.misread * std::max<std::uint64_t>(examples, 1)) {
      continue;
    }
    worst = {.label = label, .misread = misread, .examples = examples};
  }
  for (std::size_t guess = 0; guess < classes.size(); ++guess) {
    const std::uint64_t times = test.confusion[worst.label * classes.size() + guess];
    if (guess == worst.label || times <= worst.times) continue;
    worst.times = times;
    worst.predicted_as = guess;
  }
  return worst;
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

std::string optimizer_text(const optim::OptimizerOptions& options) {
  std::string text = fmt::format("{} at {:g}", optim::name_of(options.kind), options.learning_rate);
  if (options.momentum != 0) {
    text += fmt::format(", {}momentum {:g}", options.nesterov ? "Nesterov " : "", options.momentum);
  }
  if (options.weight_decay != 0) text += fmt::format(", weight decay {:g}", options.weight_decay);
  if (options.clip_norm) text += fmt::format(", norm clipped to {:g}", *options.clip_norm);
  if (options.clip_value) text += fmt::format(", values clipped to {:g}", *options.clip_value);
  const optim::Schedule& schedule = options.schedule;
  if (schedule.kind != optim::ScheduleKind::constant) {
    text += fmt::format("; {} schedule", optim::name_of(schedule.kind));
  }
  if (schedule.warmup > 0) text += fmt::format("; warm-up of {}", counted(schedule.warmup, "step"));
  return text;
}

std::string schedule_picture(const optim::OptimizerOptions& options, std::uint64_t steps) {
  constexpr std::uint64_t columns = 60;
  constexpr int rows = 8;
  constexpr int eighths = 8;
  static constexpr std::array blocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const optim::Schedule& schedule = options.schedule;
  if (schedule.kind == optim::ScheduleKind::constant && schedule.warmup == 0) return "";
  std::string text;
  for (int row = rows - 1; row >= 0; --row) {
    const double top = options.learning_rate * (row + 1) / rows;
    text += row == rows - 1 || row == 0 ? fmt::format("{:>10.3g} ", row == 0 ? 0 : top)
                                        : std::string(11, ' ');
    for (std::uint64_t column = 0; column < columns; ++column) {
      const std::uint64_t step = share_begin(steps, 2 * column + 1, 2 * columns);
      const double height = schedule.factor(step) * rows - row;
      const auto part = static_cast<std::size_t>(std::clamp(height * eighths, 0.0, 8.0));
      text += blocks[part];
    }
    text += "\n";
  }
  return text + fmt::format("{:>10}  0{:>{}}\n", "step", grouped(steps), columns - 1);
}

void print_table(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
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
  row("  summing over ranks", median.reduce);
  row("  update", median.update);
  row("  everything else", other);
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

std::string records_text(const data::DataSet& sets) {
  const auto validation =
      sets.validation ? fmt::format(", {} validation", grouped(sets.validation->records())) : "";
  return fmt::format("{} training{} and {} test records of {} features",
                     grouped(sets.train->records()), validation, grouped(sets.test->records()),
                     grouped(sets.train->features()));
}

std::string table_text(const data::TableSchema& table) {
  const auto numbers = static_cast<std::uint64_t>(
      std::count_if(table.columns.begin(), table.columns.end(),
                    [](const auto& column) { return column.categories.empty(); }));
  std::string text = counted(numbers, "column") + " of numbers" +
                     (table.standardized ? ", standardized" : ", as they are");
  if (const auto words = table.columns.size() - numbers; words > 0) {
    text += fmt::format("; {} of words as {} features", words, table.features() - numbers);
  }
  constexpr std::size_t max_named = 3;
  const auto& left_out = table.left_out;
  for (std::size_t i = 0; i < std::min(left_out.size(), max_named); ++i) {
    text += fmt::format("; {} left out ({})", in_quotes(left_out[i].first), left_out[i].second);
  }
  if (left_out.size() > max_named) {
    text += fmt::format("; {} more left out", left_out.size() - max_named);
  }
  text += fmt::format("; missing numbers: {}", data::name_of(table.missing));
  return table.weight.empty() ? text : text + "; weights in " + in_quotes(table.weight);
}

std::string targets_text(const data::TableSchema& table) {
  if (table.is_multi_label()) {
    return fmt::format("{}, each 0 or 1: {}", counted(table.targets.size(), "label"),
                       listed(table.label_names()));
  }
  return joined(table.targets, ", ", [](const data::TableColumn& target) {
    return fmt::format("{} (mean {:.5g}, deviation {:.5g})", in_quotes(target.name), target.mean,
                       target.deviation);
  });
}

std::string labels_text(const std::string& where, const std::vector<std::string>& classes,
                        const std::vector<std::uint64_t>& counts) {
  const auto largest = std::max_element(counts.begin(), counts.end());
  const auto records = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  return fmt::format("{} {}{}: {}; {:.1f} % are {}", classes.size(),
                     classes.size() == 1 ? "class" : "classes", where, listed(classes),
                     100.0 * static_cast<double>(*largest) / static_cast<double>(records),
                     in_quotes(classes[static_cast<std::size_t>(largest - counts.begin())]));
}

namespace {

/// The label with the least F1, of several: "label 'rain' is the hardest: 12 of its 40 missed,
/// ...".
std::string worst_flag_text(const train::Evaluation& test,
                            const std::function<std::string(std::size_t)>& name) {
  const auto f1 = [](const train::ClassCounts& counts) { return counts.f1().value_or(1); };
  const auto worst = std::min_element(test.labels.begin(), test.labels.end(),
                                      [&](const auto& a, const auto& b) { return f1(a) < f1(b); });
  return fmt::format("label {} is the hardest: {} of its {} missed, {} given wrongly",
                     name(static_cast<std::size_t>(worst - test.labels.begin())),
                     grouped(worst->examples - worst->correct), grouped(worst->examples),
                     grouped(worst->predicted - worst->correct));
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
  const std::uint64_t misread = test.examples - test.correct;
  std::string text = fmt::format(
      "{} of {} examples {} ({:.1f} %)", grouped(misread), grouped(test.examples),
      test.labels.empty() ? "misread" : "have a wrong label", 100 * (1 - test.accuracy()));
  const auto name = [&](std::size_t label) {
    std::string word = names.classes.empty() ? std::to_string(label) : names.classes[label];
    std::replace(word.begin(), word.end(), '\n', ' ');
    return word;
  };
  if (misread > 0 && !test.labels.empty()) return text + "; " + worst_flag_text(test, name);
  if (misread == 0 || test.confusion.empty()) return text;
  const WorstLabel worst = worst_label(test);
  return text + fmt::format("; label {} is the hardest: {} of its {}, {} of them taken for {}",
                            name(worst.label), grouped(worst.misread), grouped(worst.examples),
                            grouped(worst.times), name(worst.predicted_as));
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

  /// What a class does not have counts as 0.
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
    lines.push_back({classes.empty() ? std::to_string(index) : presentable(classes[index]),
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
  if (is_stop_requested() && parent_is_mpirun()) return;  // it reads no more: this could block
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

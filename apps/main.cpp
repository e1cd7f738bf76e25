// The `lockstep` command: runs the subcommand, prints its errors, and returns the exit code.
#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/flag_names.hpp"
#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

using Words = std::vector<std::string>;

int completion_command(const Words& words);
Syntax completion_syntax();

constexpr std::array subcommands = {
    Subcommand{"train", "trains a network on all ranks of this job", train_command, train_syntax},
    Subcommand{"sweep", "trains one network for each choice of settings, in groups of ranks",
               sweep_command, sweep_syntax},
    Subcommand{"plan", "which rank reads which record at which step, with proof", plan_command,
               plan_syntax},
    Subcommand{"evaluate", "loss and score of a checkpoint on a test set", evaluate_command,
               evaluate_syntax},
    Subcommand{"predict", "labels or numbers that a checkpoint predicts", predict_command,
               predict_syntax},
    Subcommand{"generate", "writes a built-in data set as files", generate_command,
               generate_syntax},
    Subcommand{"convert", "writes a data set in another format, or other files", convert_command,
               convert_syntax},
    Subcommand{"compare", "two runs: the first recorded point that differs", compare_command,
               compare_syntax},
    Subcommand{"plot", "draws loss and score of runs against epochs", plot_command, plot_syntax},
    Subcommand{"inspect", "what a run, a checkpoint or a data set contains", inspect_command,
               inspect_syntax},
    Subcommand{"launch", "supervises a job: starts it again when it fails", launch_command,
               launch_syntax},
    Subcommand{"doctor", "checks a launch; or a run that hangs or has ended: which rank, and why",
               doctor_command, doctor_syntax},
    Subcommand{"completion", "a script that completes this command in a shell", completion_command,
               completion_syntax},
    Subcommand{"bench", "measures one part by itself: reading, collectives, a step", bench_command,
               bench_syntax},
};

Syntax completion_syntax() {
  Syntax syntax;
  syntax.command = "lockstep completion";
  syntax.does = "Prints a script with which a shell completes subcommands, flags and values.";
  syntax.usage = "bash|zsh|fish";
  syntax.operand = "shell";
  syntax.example = "source <(lockstep completion bash)";
  return syntax;
}

int completion_command(const Words& words) {
  return run_on_rank_0(completion_syntax(), words, [](const Arguments& arguments) {
    fmt::print("{}", completion(arguments.operand(), subcommands));
    return static_cast<int>(ExitCode::success);
  });
}

void print_usage() {
  fmt::print(
      "lockstep {}: trains neural networks on many processes that stay in step\n\n"
      "usage: lockstep SUBCOMMAND [CONFIG.toml] [flags]\n\n",
      version);
  for (const auto& subcommand : subcommands) {
    fmt::print("  {:<10} {}\n", subcommand.name, subcommand.does);
  }
  fmt::print(
      "\n`lockstep SUBCOMMAND --help` lists its flags; `lockstep --version` prints the version "
      "alone.\n");
}

int dispatch(const Words& words) {
  for (const auto& subcommand : subcommands) {
    if (!words.empty() && words[0] == subcommand.name) {
      return subcommand.run({words.begin() + 1, words.end()});
    }
  }
  if (!is_rank_0()) return static_cast<int>(ExitCode::success);  // rank 0 prints
  if (words.empty()) throw ConfigError("no subcommand", "`lockstep --help` lists them");
  if (words[0] == "help" && words.size() > 1) return dispatch({words[1], "--help"});
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_usage();
    return static_cast<int>(ExitCode::success);
  }
  if (words[0] == "--version" || words[0] == "-v" || words[0] == "version") {
    fmt::print("{}\n", version);
    return static_cast<int>(ExitCode::success);
  }
  Words names;
  for (const auto& subcommand : subcommands) names.emplace_back(subcommand.name);
  throw ConfigError("unknown subcommand '" + words[0] + "'",
                    did_you_mean(suggestion(words[0], names), "`lockstep --help` lists them"));
}

/// Prints warnings and errors, including those of the libraries.
void print_message(launching::Level level, const std::string& text) {
  const bool error = level == launching::Level::error;
  const std::string shown = with_flags(text);
  const char* const word = error ? "error" : "warning";
  if (is_stop_requested() &&
      print_on_terminal_of_mpirun(fmt::format("lockstep: {}: {}", word, shown))) {
    return;
  }
  spdlog::log(error ? spdlog::level::err : spdlog::level::warn, "{}", shown);
}

/// Opens /dev/null where stdin, stdout or stderr is closed: a file that is opened later would get
/// its number, and what is printed. Writing to it fails, as to a closed one.
void open_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) ::open("/dev/null", O_RDONLY);  // gets the lowest number
  }
}

int run_main(const Words& words) {
  open_closed_streams();
  remove_temporaries_on_signals();
  std::signal(SIGCHLD, SIG_DFL);  // ignored, as by the parent, it would leave no child to wait for
  std::signal(SIGXFSZ, SIG_IGN);  // writes beyond `ulimit -f` then fail with an error
  spdlog::set_default_logger(spdlog::stderr_color_mt("lockstep", launching::has_colours()
                                                                     ? spdlog::color_mode::always
                                                                     : spdlog::color_mode::never));
  spdlog::set_pattern("%n: %^%l%$: %v");
  launching::set_message_printer(print_message);
  try {
    const int code = dispatch(words);
    if (code == static_cast<int>(ExitCode::success)) flush_stdout();
    return code;
  } catch (const std::exception& error) {
    launching::print(error);
    return launching::exit_code(error);
  }
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) { return lockstep::apps::run_main({argv + 1, argv + argc}); }

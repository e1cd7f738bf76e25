// `lockstep launch -- COMMAND`: supervises a training job, and restarts it when it fails.
#include "lockstep/launch/launch.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/cli.hpp"
#include "apps/flag_names.hpp"
#include "apps/run_file.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/launch/hosts.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/train/checkpoint.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/train/run_directory.hpp"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int cannot_start = 127;  // of the child process, as shells have it
constexpr int by_signal = 128;     // and the number of the signal, as shells have it
constexpr int failures_at_a_step = 3;
constexpr auto poll_interval = std::chrono::milliseconds(50);
constexpr auto pause = std::chrono::seconds(1);                 // before a restart
constexpr double max_silence = 10;                              // of a host, in seconds
constexpr auto max_without_ranks = std::chrono::seconds(10);    // of a launcher that had some
constexpr auto max_without_launcher = std::chrono::seconds(5);  // that ranks outlive theirs
constexpr auto max_locked = std::chrono::minutes(3);     // file servers keep a lost host's lock
constexpr auto max_after_end = std::chrono::seconds(3);  // of a launcher whose job has ended

}  // namespace

Syntax launch_syntax() {
  Syntax syntax;
  syntax.command = "lockstep launch";
  syntax.does =
      "Runs a training job, and starts it again with `--resume auto` when it fails: after a lost "
      "rank, a hang, a lost host.\nHosts that mpirun's --host or --hostfile names and that do not "
      "answer then are left out, with their ranks.\nIt does not after an error that a restart "
      "would repeat (codes "
      "2, "
      "65, 76), after a request to stop (75; signals are passed on), nor when the same step has "
      "failed three times. Ends with the job's exit code.\nA script must start mpirun or srun with "
      "`exec`: signals reach the script alone, and not what it starts.\n";
  syntax.usage = "[flags] -- COMMAND...";
  syntax.note = "(such as: -- mpirun -n 4 lockstep train run.toml --run-dir runs/A)";
  syntax.flags = {{"max-restarts", "N", "give up after N restarts", "100"}};
  syntax.operand = "word";
  syntax.operands = 0;
  return syntax;
}

namespace {

bool resumes(const std::vector<std::string>& command) {
  return std::any_of(command.begin(), command.end(), [](const std::string& word) {
    return word == "--resume" || word.starts_with("--resume=");
  });
}

/// The command with `--resume auto` for each of its programs, which mpirun separates by colons.
std::vector<std::string> resumed(const std::vector<std::string>& command) {
  std::vector<std::string> words;
  for (const auto& word : command) {
    if (word == ":") words.insert(words.end(), {"--resume", "auto"});
    words.push_back(word);
  }
  words.insert(words.end(), {"--resume", "auto"});
  return words;
}

/// The command that continues a run from its own newest checkpoint, and not from that of another
/// run with which `--resume` began it.
std::vector<std::string> continued(std::vector<std::string> command) {
  const std::string flag = "--resume";
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i] == flag && i + 1 < command.size()) command[i + 1] = "auto";
    if (command[i].starts_with(flag + "=")) command[i] = flag + "=auto";
  }
  return command;
}

/// Starts a command in a process group of its own, so that a terminal's signals reach this process
/// alone, which passes them on. Throws ConfigError if there is no such program.
pid_t start(const std::vector<std::string>& command) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::array<int, 2> failure{};  // a pipe that a started program closes
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    throw Error(ExitCode::internal, "pipe: " + system_reason(errno), "close files or processes");
  }
  sigset_t blocked{};  // so that the child gets no signal while it has this process's handlers
  sigset_t before{};
  ::sigfillset(&blocked);
  ::sigprocmask(SIG_SETMASK, &blocked, &before);
  const pid_t child = ::fork();
  if (child != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) {
    throw Error(ExitCode::internal, "fork: " + system_reason(errno), "free memory or processes");
  }
  if (child > 0) {
    ::close(failure[1]);
    char failed = 0;
    ssize_t bytes = 0;
    do {
      bytes = ::read(failure[0], &failed, 1);
    } while (bytes < 0 && errno == EINTR);
    ::close(failure[0]);
    if (bytes == 0) return child;
    ::waitpid(child, nullptr, 0);
    throw ConfigError("launch: " + command[0] + " cannot be started",
                      "give a program that is in PATH, and its arguments, behind --");
  }
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);  // a background group may not read a terminal
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execvp(words[0], words.data());
  static_cast<void>(!::write(failure[1], "x", 1));
  ::_exit(cannot_start);
}

bool is_srun(pid_t process) { return program_of(process) == "srun"; }

/// True if the process, a launcher, has a child that is not a zombie; nullopt if the kernel does
/// not say, and of other programs: a script may start children and then become a rank.
std::optional<bool> has_ranks(pid_t process) {
  if (!comm::is_mpirun(program_of(process)) && !is_srun(process)) return std::nullopt;
  const auto children = children_of(process);
  return children ? std::optional(!children->empty()) : std::nullopt;
}

/// True for an mpirun with its recovery, as its command line or environment say: its code is 0 also
/// if all ranks were killed. Nullopt if it is no mpirun, or not yet.
std::optional<bool> ignores_killed_ranks(pid_t process) {
  if (!comm::is_mpirun(program_of(process))) return std::nullopt;
  const std::string name = "orte_enable_recovery";
  const auto command = process_words(process, "cmdline");
  for (std::size_t i = 0; i < command.size(); ++i) {
    if (command[i].ends_with("-enable-recovery")) return true;
    if (command[i] == name && i + 1 < command.size()) return comm::is_on(command[i + 1]);
  }
  const std::string variable = "OMPI_MCA_" + name + '=';
  for (const std::string& word : process_words(process, "environ")) {
    if (word.starts_with(variable)) return comm::is_on(word.substr(variable.size()));
  }
  return false;
}

/// True if the command trains nothing, and so records nothing.
bool only_checks(const std::vector<std::string>& command) {
  constexpr std::array flags = {"--dry-run", "--print-config", "--help", "-h"};
  return std::any_of(flags.begin(), flags.end(),
                     [&](const char* flag) { return contains(command, flag); });
}

/// Kills a launcher that hangs. srun leaves a process in its group which, when srun is killed, ends
/// the step and the allocation that srun made.
void kill_launcher(pid_t launcher, bool leaves_group) {
  ::kill(leaves_group ? launcher : -launcher, SIGKILL);
}

/// How an attempt ended.
struct Ended {
  int code = 0;
  bool was_asked = false;  ///< this process got a signal
  bool hung = false;       ///< the launcher outlived its ranks, and was killed
};

fs::path diagnosis_of(const std::string& run) {
  return fs::path(run) / "flight" / launching::diagnosis_name;
}

/// True if a watchdog has ended the job.
bool is_diagnosed(const std::string& run) {
  std::error_code ignored;
  return fs::exists(diagnosis_of(run), ignored);
}

/// Tells one summary.json of a run from the next, which replaces it; the clocks of hosts and file
/// servers may differ. Without the file: nullopt.
using SummaryId = std::optional<std::array<std::int64_t, 4>>;

SummaryId summary_id(const std::string& run) {
  const int file = ::open((fs::path(run) / "summary.json").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;  // opened: NFS then asks the server
  struct stat status {};
  const bool is_known = ::fstat(file, &status) == 0;
  ::close(file);
  if (!is_known) return std::nullopt;
  return {{static_cast<std::int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec,
           status.st_mtim.tv_nsec}};
}

/// Whether the job has finished this run; nullopt if it has not begun to train it: the summary is
/// still the one `before` it.
std::optional<bool> has_finished(const std::string& run, const SummaryId& before) {
  const auto now = summary_id(run);
  if (!now || now == before) return std::nullopt;
  return train::is_finished(run);
}

/// The exit code that the ranks recorded; nullopt if they have not.
std::optional<int> recorded_code(const std::string& run) {
  return launching::recorded_exit_code(fs::path(run) / "flight");
}

/// The exit code that the ranks recorded. After a request to stop waits for it: mpirun may end
/// before its ranks, while these save.
std::optional<int> code_of_ranks(const std::string& run, bool was_asked) {
  const auto end = Clock::now() + max_after_end;
  auto code = recorded_code(run);
  while (was_asked && !code && Clock::now() < end) {
    std::this_thread::sleep_for(poll_interval);
    code = recorded_code(run);
  }
  return code;
}

/// Watches the flight recorders of a run: ranks of other hosts are no children of their launcher.
class RecorderWatch {
 public:
  explicit RecorderWatch(const std::string& run) : run_(run), last_(latest()) {}

  /// True if the ranks of this job have recorded something, and then nothing for longer than their
  /// own watchdogs permit: none of them is left.
  bool are_silent() {
    const auto now = Clock::now();
    if (now < next_look_) return false;
    const bool was_stopped = now > next_look_ + between_looks;  // perhaps with the ranks
    next_look_ = now + between_looks;
    if (const double latest_now = latest(); latest_now != last_) {
      last_ = latest_now;
      changed_ = now;
    } else if (was_stopped && changed_) {
      changed_ = now;
    }
    if (!changed_) return false;
    const double silence = std::chrono::duration<double>(now - *changed_).count();
    return silence > spare_seconds && (have_ended_ || silence > spare_seconds + limit());
  }

 private:
  static constexpr auto between_looks = std::chrono::seconds(10);  // at 16 kB a rank
  static constexpr double spare_seconds = 60;  // for file servers, and for the watchdogs to act

  /// The time of the last record; notes whether all ranks have ended their work.
  double latest() {
    double time = 0;
    have_ended_ = true;
    for (const Flight& flight : launching::read_flights(fs::path(run_) / "flight")) {
      have_ended_ = have_ended_ && flight.phase == Phase::end;
      time = std::max(time, last_record(flight));
    }
    return time;
  }

  double limit() const {
    RunConfig config;
    try {
      config = read_config(run_);
    } catch (const Error&) {  // the default
    }
    return launching::start_limit(static_cast<double>(config.timeout));
  }

  std::string run_;
  bool have_ended_ = false;
  double last_;
  std::optional<Clock::time_point> changed_;  ///< when last_ was new; none: as before this job
  Clock::time_point next_look_ = Clock::now();
};

/// How the job ended that its launcher ended with `ended`, as its ranks recorded.
///
/// `must_record`: a job without a record has not succeeded, whatever the launcher returns.
Ended as_recorded(Ended ended, bool must_record, const std::string& run, const SummaryId& before,
                  const StopRequests& requests) {
  if (const auto code = code_of_ranks(run, ended.was_asked)) {
    return {*code, ended.was_asked, false};
  }
  const auto finished = has_finished(run, before);
  if (finished.value_or(false)) {  // mpirun returns 1 if it was asked to stop
    return ended.was_asked || ended.hung ? Ended{0, ended.was_asked, false} : ended;
  }
  if (ended.code == 0 && (finished || must_record)) {  // all ranks were killed
    ended.code =
        ended.was_asked ? by_signal + requests.signal() : static_cast<int>(ExitCode::timeout);
  }
  return ended;
}

/// Waits until the job ends, and passes signals on. Kills a launcher that outlives its ranks:
/// mpirun 4.1.4 waits for a lost host for minutes, and for ever after some losses while MPI starts,
/// and after all losses with its recovery on several hosts; srun does after the loss of a node.
Ended wait_for(pid_t job, const std::vector<std::string>& command, const std::string& run,
               const SummaryId& before, const StopRequests& requests) {
  Ended ended;
  auto with_ranks = Clock::now();
  bool had_ranks = false;
  std::optional<bool> ignores_killed;
  RecorderWatch recorders(run);
  for (;;) {
    int status = 0;
    if (::waitpid(job, &status, WNOHANG) == job) {
      ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : by_signal + WTERMSIG(status);
      const bool must_record = ignores_killed.value_or(false) && !only_checks(command);
      return as_recorded(ended, must_record, run, before, requests);
    }
    if (const int signal = requests.signal(); signal != 0 && !ended.was_asked) {
      // On one SIGINT srun only lists its tasks; USR1 it passes on, and ranks save.
      ::kill(job, signal == SIGINT && is_srun(job) ? SIGUSR1 : signal);
      ended.was_asked = true;
    }
    const auto now = Clock::now();
    if (!ignores_killed) ignores_killed = ignores_killed_ranks(job);
    const auto ranks = has_ranks(job);
    had_ranks = had_ranks || ranks.value_or(false);
    const bool may_have_ranks = ranks.value_or(true) || !had_ranks;
    const bool has_ended = recorded_code(run).has_value();
    if (may_have_ranks && !has_ended && !is_diagnosed(run)) with_ranks = now;
    const bool outlives = now - with_ranks > (has_ended ? max_after_end : max_without_ranks);
    if (outlives || recorders.are_silent()) {
      ended.hung = true;
      kill_launcher(job, is_srun(job));
      with_ranks = now;
    }
    std::this_thread::sleep_for(poll_interval);
  }
}

/// The step that the ranks of a run recorded last.
std::uint64_t last_step(const std::string& run) {
  std::uint64_t step = 0;
  for (const Flight& flight : launching::read_flights(fs::path(run) / "flight")) {
    step = std::max(step, flight.step);
  }
  return step;
}

/// The command on those of its hosts that answer, or as it is where none does or it names none.
launching::Words on_answering_hosts(const launching::Words& command, const std::string& run) {
  if (std::getenv("SLURM_JOB_ID") != nullptr) return command;  // mpirun then uses srun, not a shell
  const auto hosts = launching::hosts_of(command);
  const auto shell = launching::remote_shell(command);
  if (hosts.empty() || shell.empty()) return command;
  const auto silent = launching::silent_hosts(hosts, shell, max_silence);
  if (silent.empty()) return command;
  const std::string names = joined(silent);
  if (silent.size() == hosts.size()) {
    launching::print_warning(
        fmt::format("no host answers over {}: {}; the job is started on them", shell[0], names));
    return command;
  }
  auto rest = launching::without_hosts(command, silent, fs::path(run) / "flight" / "hostfile");
  const auto ranks = launching::ranks_in(rest);
  launching::print_warning(
      fmt::format("{} {} not answer over {}: the job is started on the other hosts{}", names,
                  silent.size() == 1 ? "does" : "do", shell[0],
                  ranks.empty() ? "" : fmt::format(", with -n {}", ranks)));
  return rest;
}

/// Waits until no process of any host holds the lock of the folder, for at most `time`, or for a
/// request to stop. False if it is still locked.
bool is_released_within(Clock::duration time, const std::string& run,
                        const StopRequests& requests) {
  const auto end = Clock::now() + time;
  while (lock_state(run) == LockState::held) {
    if (Clock::now() > end || requests.signal() != 0) return false;
    std::this_thread::sleep_for(poll_interval);
  }
  return true;
}

/// Waits until the ranks of a failed job have released its folder, or for a request to stop. False
/// if it is still locked.
bool is_released(const std::string& run, const StopRequests& requests) {
  if (is_released_within(max_without_launcher, run, requests)) return true;
  if (requests.signal() != 0) return false;
  launching::print_warning(
      "the folder of the run is locked, perhaps by a rank of a lost host: the job is started again "
      "as soon as it is released, within three minutes");
  if (is_released_within(max_locked, run, requests)) return true;
  if (requests.signal() == 0) {
    launching::print_error(run +
                           ": the folder is still locked, so the job is not started again\n"
                           "  remedy: end the process that holds it, and start the job again");
  }
  return false;
}

/// What a watchdog wrote where its message may be lost: mpirun forwards none of a host that it has
/// lost. Empty if there is none, or if all ranks are on this host.
std::string diagnosis_in(const std::string& run, const launching::Words& command) {
  std::ifstream file(diagnosis_of(run));
  if (launching::hosts_of(command).empty() || !file) return "";
  std::string text;
  for (std::string line; std::getline(file, line);) text += "\n  " + line;
  return text;
}

bool would_repeat(int code) {
  constexpr std::array codes = {ExitCode::success, ExitCode::usage, ExitCode::data,
                                ExitCode::stopped, ExitCode::diverged};
  return std::any_of(codes.begin(), codes.end(),
                     [&](ExitCode known) { return code == static_cast<int>(known); });
}

int supervise(std::vector<std::string> command, std::uint64_t max_restarts) {
  std::string run = run_dir_in(command);
  if (run.empty() || run == "auto") {
    throw ConfigError("launch: the command has no --run-dir, so a restart could not continue it",
                      "write `-- mpirun -n 4 lockstep train run.toml --run-dir runs/A`");
  }
  run = fs::path(launching::folder_of_ranks(command)) / run;
  if (!resumes(command)) command = resumed(command);
  const StopRequests requests;
  if (!is_released_within(max_without_launcher, run, requests)) require_not_locked(run);
  const bool had_checkpoint = train::has_checkpoint(run);  // of a run before this job
  const auto summary_before = summary_id(run);
  const bool is_new = train::run_file_in(run).empty();
  launching::Words attempt = command;
  std::optional<std::uint64_t> failed_step;
  int failures = 0;  // in a row, in this step
  std::uint64_t restarts = 0;
  while (true) {
    const auto flight = fs::path(run) / "flight";  // of the attempt before
    std::error_code ignored;
    fs::remove(flight / launching::diagnosis_name, ignored);
    if (fs::exists(flight / launching::exit_code_name, ignored)) {
      launching::reserve_exit_code(flight);
    }
    const auto before = summary_id(run);
    const Ended ended = wait_for(start(attempt), attempt, run, before, requests);
    if (ended.was_asked && ended.hung) {
      launching::print_warning("the job hung after the request to stop, and was killed");
    }
    const bool is_final = would_repeat(ended.code) && !ended.hung;
    if (ended.was_asked || is_final) return ended.code;
    const std::uint64_t step = last_step(run);
    failures = step == failed_step ? failures + 1 : 1;
    failed_step = step;
    const auto how = fmt::format("the job {} in step {}",
                                 ended.hung ? "hung after its ranks had ended, and was killed"
                                            : fmt::format("ended with code {}", ended.code),
                                 step);
    if (failures == failures_at_a_step) {
      launching::print_error(
          fmt::format("{}, as {} times before: it is not started again\n"
                      "  remedy: look at what the ranks print, and at `lockstep "
                      "doctor {}`",
                      how, failures - 1, in_shell(run)));
      return ended.code;
    }
    if (restarts == max_restarts) {
      launching::print_error(
          how + ", after " + counted(restarts, "restart") + diagnosis_in(run, attempt) +
          "\n  remedy: start it again to continue; --max-restarts sets the limit");
      return ended.code;
    }
    launching::print_warning(
        fmt::format("{}; restart {} follows{}", how, ++restarts, diagnosis_in(run, attempt)));
    std::this_thread::sleep_for(pause);
    if (!is_released(run, requests)) {
      return requests.signal() != 0 ? ended.code : static_cast<int>(ExitCode::usage);
    }
    const bool has_begun =
        train::has_checkpoint(run) && (!had_checkpoint || summary_id(run) != summary_before);
    attempt = on_answering_hosts(has_begun ? continued(command) : command, run);
    if (requests.signal() != 0) return ended.code;
    if (is_new) train::remove_unsaved_run(run);
  }
}

}  // namespace

int launch_command(const std::vector<std::string>& words) {
  const auto dashes = std::find(words.begin(), words.end(), "--");
  auto own_end = dashes;
  if (dashes == words.end()) {  // the flags behind the first other word are the command's
    own_end = std::find_if(words.begin(), words.end(),
                           [](const std::string& word) { return !word.starts_with('-'); });
    if (own_end != words.end()) ++own_end;
  }
  const std::vector<std::string> own(words.begin(), own_end);
  return run_on_rank_0(launch_syntax(), own, [&](const Arguments& arguments) {
    if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) {
      throw ConfigError("launch: mpirun has started it, so it could start no other",
                        "write `lockstep launch -- mpirun -n 2 lockstep train ...`");
    }
    const auto max_restarts = *arguments.number("max-restarts", 0);
    if (words.end() - dashes < 2) {
      throw ConfigError("launch: no command",
                        "write it behind --: `lockstep launch -- mpirun ...`");
    }
    return supervise({dashes + 1, words.end()}, max_restarts);
  });
}

}  // namespace lockstep::apps

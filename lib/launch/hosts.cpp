#include "lockstep/launch/hosts.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <thread>

#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/communicator.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/socket.hpp"

namespace lockstep::launching {
namespace {

namespace fs = std::filesystem;

/// "h1" or "h1:2", as --host lists hosts.
struct Entry {
  std::string text;
  std::string host;
  std::uint64_t slots = 1;
};

/// One option of the command, at command[at], and the word behind it.
struct Option {
  std::size_t at;
  std::string value;
};

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 3> host_names = {"--host", "-host", "-H"};
constexpr std::array<std::string_view, 6> file_names = {"--hostfile",         "-hostfile",
                                                        "--machinefile",      "-machinefile",
                                                        "--default-hostfile", "-default-hostfile"};
constexpr std::array<std::string_view, 5> rank_names = {"-n", "--n", "-np", "--np", "-c"};
constexpr std::array<std::string_view, 4> folder_names = {"--wdir", "-wdir", "--wd", "-wd"};
constexpr std::array<std::string_view, 2> srun_folder_names = {"--chdir", "-D"};
constexpr std::array<std::string_view, 2> agent_names = {"plm_rsh_agent", "orte_rsh_agent"};

/// True if the word at `i` is the program: a word `lockstep` before a subcommand. Before an option
/// it is the value of another one: --wdir /home/me/lockstep --host h1.
bool is_lockstep(const Words& command, std::size_t i) {
  return fs::path(command[i]).filename() == "lockstep" && !command[i + 1].starts_with('-');
}

/// The options with one of these names, before the program that mpirun starts.
std::vector<Option> options(const Words& command, Names names) {
  std::vector<Option> found;
  for (std::size_t i = 1; i + 1 < command.size(); ++i) {
    if (is_lockstep(command, i) || command[i] == "--run-dir") break;
    if (contains(names, command[i])) found.push_back({i, command[i + 1]});
  }
  return found;
}

Entry entry_of_list(const std::string& text) {
  Entry entry = {text, text.substr(0, text.find(':'))};
  if (const auto colon = text.find(':'); colon != std::string::npos) {
    entry.slots = whole_number(std::string_view(text).substr(colon + 1)).value_or(1);
  }
  return entry;
}

/// "h1 slots=2 max_slots=4 # comment"; nullopt for lines without a host.
std::optional<Entry> entry_of_line(const std::string& line) {
  std::istringstream words(line.substr(0, line.find('#')));
  Entry entry = {line, ""};
  if (!(words >> entry.host)) return std::nullopt;
  for (std::string word; words >> word;) {
    constexpr std::string_view slots = "slots=";
    if (word.starts_with(slots)) {
      entry.slots = whole_number(std::string_view(word).substr(slots.size())).value_or(1);
    }
  }
  return entry;
}

std::vector<Entry> entries_of(const Words& command) {
  std::vector<Entry> entries;
  const auto lists = options(command, host_names);
  for (const Option& list : lists) {
    for (const auto& text : split_list(list.value)) entries.push_back(entry_of_list(text));
  }
  if (!lists.empty()) return entries;
  const auto files = options(command, file_names);
  if (files.size() != 1) return entries;
  std::ifstream file(files[0].value);
  for (std::string line; std::getline(file, line);) {
    if (const auto entry = entry_of_line(line)) entries.push_back(*entry);
  }
  return entries;
}

bool starts_one_program(const Words& command) {
  return !command.empty() && comm::is_mpirun(fs::path(command[0]).filename().string()) &&
         !contains(command, ":");
}

std::uint64_t slots_of(const std::vector<Entry>& entries) {
  std::uint64_t slots = 0;
  for (const Entry& entry : entries) slots += entry.slots;
  return slots;
}

std::uint64_t fewer_ranks(std::uint64_t ranks, std::uint64_t slots, std::uint64_t slots_left) {
  if (ranks <= slots_left || slots == 0) return ranks;
  if (ranks <= slots) return std::max<std::uint64_t>(slots_left, 1);
  return std::max<std::uint64_t>(ranks * slots_left / slots, 1);
}

bool is_this_host(const std::string& host) {
  const std::string own = host_name();
  const std::array<std::string, 4> names = {"localhost", "127.0.0.1", own,
                                            own.substr(0, own.find('.'))};
  return contains(names, host) || contains(comm::own_addresses(), host);
}

bool is_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + '/' + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

/// Starts a command without input and output, in a process group of its own; 0 if that fails.
pid_t start_quietly(Words command) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (auto& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  if (::posix_spawnp(&child, words[0], &files, &attributes, words.data(), environ) != 0) child = 0;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return child;
}

}  // namespace

Words hosts_of(const Words& command) {
  Words hosts;
  if (!starts_one_program(command)) return hosts;
  for (const Entry& entry : entries_of(command)) {
    if (!contains(hosts, entry.host)) hosts.push_back(entry.host);
  }
  return hosts;
}

Words without_hosts(const Words& command, const Words& gone, const fs::path& hostfile) {
  const auto entries = entries_of(command);
  std::vector<Entry> left;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(left),
               [&](const Entry& entry) { return !contains(gone, entry.host); });
  if (left.size() == entries.size()) return command;
  Words rest = command;
  const auto given = options(command, rank_names);
  if (!given.empty()) {  // a later one is a program's
    const auto ranks = whole_number(given[0].value);
    const auto slots = slots_of(entries);
    if (ranks) {
      rest[given[0].at + 1] = std::to_string(fewer_ranks(*ranks, slots, slots_of(left)));
    }
  }
  const auto lists = options(command, host_names);
  const bool is_list = !lists.empty();
  const std::string text = joined(left, is_list ? "," : "\n", &Entry::text);
  if (!is_list) {
    make_folder(hostfile.parent_path());
    write_file(hostfile, text + '\n');
    rest[options(command, file_names)[0].at + 1] = hostfile.string();
    return rest;
  }
  rest[lists[0].at + 1] = text;
  for (std::size_t i = lists.size() - 1; i > 0; --i) {  // their hosts are in the first one
    const auto at = rest.begin() + static_cast<std::ptrdiff_t>(lists[i].at);
    rest.erase(at, at + 2);
  }
  return rest;
}

std::string ranks_in(const Words& command) {
  const auto found = options(command, rank_names);
  return found.empty() ? "" : found[0].value;
}

std::string folder_of_ranks(const Words& command) {
  bool is_srun = false;
  Words split;
  for (const auto& word : command) {
    is_srun = is_srun || (fs::path(word).filename() == "srun");
    split.push_back(word);
    for (const std::string_view name : {"--chdir=", "-D", "--wdir="}) {
      if (is_srun != (name != "--wdir=") || !word.starts_with(name) || word == name) continue;
      split.back() = is_srun ? "--chdir" : "--wdir";
      split.push_back(word.substr(name.size()));
    }
  }
  const auto found = options(split, is_srun ? Names(srun_folder_names) : folder_names);
  return found.empty() ? "" : found.back().value;
}

Words remote_shell(const Words& command) {
  std::string agents = "ssh : rsh";
  for (const char* name : {"OMPI_MCA_orte_rsh_agent", "OMPI_MCA_plm_rsh_agent"}) {
    if (const char* const given = std::getenv(name)) agents = given;
  }
  for (const Option& option : options(command, agent_names)) {
    agents = option.value;
  }
  std::istringstream list(agents);
  for (std::string agent; std::getline(list, agent, ':');) {
    std::istringstream text(agent);
    Words words;
    for (std::string word; text >> word;) words.push_back(word);
    if (words.empty() || !is_program(words[0])) continue;
    if (fs::path(words[0]).filename() == "ssh") words.insert(words.end(), {"-o", "BatchMode=yes"});
    return words;
  }
  return {};
}

Words silent_hosts(const Words& hosts, const Words& shell, double seconds) {
  struct Question {
    std::string host;
    pid_t process;
    bool is_answered = false;
  };
  std::vector<Question> questions;
  for (const auto& host : hosts) {
    if (is_this_host(host)) continue;
    Words words = shell;
    words.insert(words.end(), {host, "true"});
    questions.push_back({host, start_quietly(words)});
  }
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (Question& question : questions) {
    while (question.process != 0) {
      int status = 0;
      if (::waitpid(question.process, &status, WNOHANG) == question.process) {
        question.is_answered = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        break;
      }
      if (Clock::now() > end) ::kill(-question.process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  Words silent;
  for (const Question& question : questions) {
    if (!question.is_answered) silent.push_back(question.host);
  }
  return silent;
}

}  // namespace lockstep::launching

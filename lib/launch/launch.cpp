#include "lockstep/launch/launch.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/collectives/shared.hpp"
#include "lockstep/collectives/tcp.hpp"
#include "lockstep/collectives/threads.hpp"
#include "lockstep/collectives/two_level.hpp"
#include "lockstep/launch/leftovers.hpp"
#include "lockstep/launch/watchdog.hpp"

namespace lockstep::launching {
namespace {

constexpr std::uint64_t max_threads = 1024;

// Time for all ranks to reach the same error, and for the launcher to notice a lost rank.
constexpr double seconds_to_leave = 5;

[[noreturn]] void end_job(const std::string& text, int code) {
  print_error(text);
  std::fflush(stdout);
  comm::abort_job(code);
}

std::string text_of_rank(const comm::Communicator& comm, const std::exception& error) {
  return "rank " + std::to_string(comm.world_rank(comm.rank())) + " on " + comm.place().host +
         ": " + what_of(error);
}

[[noreturn]] void end_job_of(const comm::Communicator& comm, const std::exception& error) {
  end_job(text_of_rank(comm, error), exit_code(error));
}

/// Ends this process, without MPI_Finalize where that would wait for lost ranks.
///
/// mpirun 4.1.4 with its recovery ends when the ranks on its own host have ended in any way, but
/// waits for ever for a rank on another host that has not called MPI_Finalize or ends with a code;
/// and MPI_Finalize waits for all ranks, so no rank ends the launcher before. srun waits for ever
/// for the tasks of lost nodes.
[[noreturn]] void end_rank(const comm::Communicator& group, int code, const comm::Place& before,
                           bool lost_ranks) {
  if (std::fflush(stdout) != 0 && code == 0) code = static_cast<int>(ExitCode::output);
  const bool is_srun = comm::srun_recovers();
  const bool is_elsewhere = comm::is_child_of_daemon();
  const bool are_elsewhere = before.nodes > 1 || is_elsewhere;
  if (are_elsewhere && !lost_ranks) comm::finalize_mpi();
  if (code != 0 && group.rank() == 0 && !is_srun && !is_elsewhere) comm::abort_job(code);
  const bool launcher_waits =
      is_srun ? group.place().nodes < before.nodes : are_elsewhere && (lost_ranks || code != 0);
  if (launcher_waits) {
    std::this_thread::sleep_for(
        std::chrono::seconds(1));  // the launcher passes on what was printed
    if (!comm::end_launcher() && group.rank() == 0) {
      print_warning(is_srun ? "srun does not end by itself when a node is lost; `lockstep launch` "
                              "ends it"
                            : "mpirun does not end by itself after an error or a loss of ranks on "
                              "other hosts; `lockstep launch` ends it");
    }
  }
  std::_Exit(code);
}

int run_rank(comm::MpiCommunicator& comm, const std::function<void()>& body) {
  try {
    body();
    comm.finish();
    return static_cast<int>(ExitCode::success);
  } catch (const comm::AgreedError& error) {
    if (!comm::all_ranks_leave(seconds_to_leave)) end_job(error.what(), exit_code(error));
    // `srun -K` terminates the other ranks when the first one ends with a code; ignoring SIGTERM
    // lets them return the same code.
    std::signal(SIGTERM, SIG_IGN);
    if (comm.rank() == 0) print(error);
    if (comm::launcher_recovers()) end_rank(comm, exit_code(error), comm.place(), false);
    return exit_code(error);
  } catch (const comm::RankLost& error) {
    // The lost rank or the launcher has printed the cause; the launcher usually ends this rank too.
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_to_leave));
    end_job(error.what(), exit_code(error));
  } catch (const std::exception& error) {
    end_job_of(comm, error);
  }
}

/// True on one rank of each host.
bool is_first_of_host(const std::optional<comm::Launch>& launch) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    if (const char* const given = std::getenv(name)) return std::string_view(given) == "0";
  }
  return !launch || launch->rank == 0;
}

}  // namespace

bool is_rank(const std::optional<comm::Launch>& launch) {
  if (!launch || launch->launcher == "sbatch") return false;
  const bool lone_step = launch->ranks == 1 && !launch->pmix;
  return !lone_step;
}

void require_no_batch_shell(const std::optional<comm::Launch>& launch, const std::string& program) {
  if (!launch || launch->launcher != "sbatch") return;
  throw ConfigError("this is one process in the shell of a Slurm job of " +
                        std::to_string(launch->ranks) + " tasks",
                    "start it with `srun --mpi=pmix -K " + program +
                        " ...`, or give `ranks=N` for N threads of this process alone");
}

int run_over_mpi(const std::optional<comm::Launch>& launch, const MpiRankBody& body,
                 double start_seconds, const std::function<void()>& before_timeout) {
  try {
    if (launch) comm::require_pmix(*launch);
    std::optional<StartLimit> limit(std::in_place, launch ? launch->rank : 0, start_seconds,
                                    launch.has_value(), before_timeout);
    if (is_first_of_host(launch)) remove_mpi_leftovers();
    const comm::MpiSession session;
    comm::MpiCommunicator comm;
    if (launch) comm::require_promised_world(*launch, comm.size(), comm::mpi_version());
    return run_rank(comm, [&] { body(comm, [&] { limit.reset(); }); });
  } catch (const ConfigError& error) {  // the same in every process of the launch
    const bool first = !launch || launch->rank == 0 || launch->ranks == 0;  // 0: unknown
    if (first) {
      print_error(error.what());
    } else {  // the launcher ends the first rank when another one has ended
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return exit_code(error);
  }
}

namespace {

/// share_nodes() without watching MPI.
std::unique_ptr<comm::Communicator> over_shared_memory(const std::string& backend,
                                                       comm::MpiCommunicator& mpi, bool survives) {
  const comm::Place& place = mpi.place();
  const bool alone = mpi.size() > 1 && place.nodes == mpi.size();
  if (backend == "shared" && alone) {
    throw comm::AgreedError(ExitCode::usage,
                            "backend shared: no two ranks of this job are on one host",
                            "use `backend=mpi`, or leave it out");
  }
  const bool shares =
      backend == "shared" || ((backend == "auto" || backend == "nccl") && mpi.size() > place.nodes);
  std::unique_ptr<comm::Communicator> tcp;
  if (survives && place.nodes > 1 && backend != "mpi") {
    tcp = std::make_unique<comm::TcpCommunicator>(mpi);
  }
  if (!shares) return tcp;
  try {
    if (place.nodes == 1) return std::make_unique<comm::SharedCommunicator>(mpi, place);
    if (tcp) return std::make_unique<comm::TwoLevelCommunicator>(std::move(tcp), place);
    return std::make_unique<comm::TwoLevelCommunicator>(mpi, place);
  } catch (const comm::AgreedError& error) {
    if (backend == "shared" || survives) throw;
    if (mpi.rank() == 0) {
      print_warning("backend " + backend +
                    ": ranks communicate over MPI alone: " + error.problem());
    }
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<comm::Communicator> share_nodes(const std::string& backend,
                                                comm::MpiCommunicator& mpi, bool survives) {
  auto shared = over_shared_memory(backend, mpi, survives);
  const bool uses_mpi = !shared || (mpi.place().nodes > 1 && !survives);
  if (uses_mpi) {  // other transports report ranks that have left
    mpi.watch_peers([&mpi](const comm::RankLeft& error) { end_job_of(mpi, error); });
  }
  return shared;
}

namespace {

/// Throws unless the ranks of `comm` can outlive each other. Collective.
void require_survivable(comm::Communicator& comm) {
  comm::together(comm, [&] {
    const auto refuse = [](const std::string& why, const std::string& remedy) {
      throw ConfigError("`survive`: " + why, remedy);
    };
    const std::string backend = comm.backend();
    const auto launch = comm::detect_launcher();
    const bool is_srun = launch && launch->launcher == "srun";
    if (backend == "threads") {
      refuse("the ranks are threads of one process, which end together",
             "start them as processes, with mpirun or srun");
    }
    if (comm.size() == 1) refuse("there is no other rank to go on", "start more ranks");
    if (!comm.reports_losses()) {
      refuse("the ranks communicate over " + backend + ", which does not report lost ranks",
             "use `backend=shared`, or leave it out");
    }
    if (!comm::launcher_recovers() && !comm::srun_recovers()) {
      refuse("the launcher ends all ranks when one of them ends",
             is_srun ? "start them with `SLURM_NO_KILL=set SLURM_KILL_BAD_EXIT=0 srun --mpi=pmix "
                       "...`, without -K"
                     : "start them with `mpirun --mca orte_enable_recovery 1 ...`");
    }
  });
}

/// The ranks of `before` that are not in `now`: "rank 1", "ranks 0, 2".
std::string lost_ranks(const comm::Communicator& before, const comm::Communicator& now) {
  const auto members = now.world_ranks();
  std::vector<int> lost = before.world_ranks();
  std::erase_if(lost, [&](int rank) { return contains(members, rank); });
  return ranks_text(lost);
}

/// Returns when all ranks of the group have called it. Over TCP, the end of a rank can reach
/// another one before its last message does. So there are two rounds: a loss in the second one is
/// ignored, because all work has ended.
void leave_together(comm::Communicator& group) {
  group.all_agree(true);
  try {
    group.all_agree(true);
  } catch (const comm::RankLost&) {  // see above
  }
}

/// Runs `body` and returns the exit code, after all ranks of the group have ended it alike.
int run_group(comm::Communicator& group, const RankBody& body,
              const std::function<void(int code)>& on_end) {
  try {
    body(group);
    leave_together(group);
    return static_cast<int>(ExitCode::success);
  } catch (const comm::AgreedError& error) {
    leave_together(group);
    if (group.rank() == 0) print(error);
    return exit_code(error);
  } catch (const comm::RankLost&) {
    throw;
  } catch (const std::exception& error) {
    print_error(text_of_rank(group, error));
    std::fflush(stdout);
    const bool others_go_on = comm::is_child_of_daemon();  // only the ranks of this host end
    if (!others_go_on) on_end(exit_code(error));
    comm::abort_job(exit_code(error));
  }
}

}  // namespace

void survive(comm::Communicator& comm, const RankBody& body,
             const std::function<void(int code)>& on_end) {
  require_survivable(comm);
  // The PMIx server of srun ends the step when a task ends that has not called MPI_Finalize, and
  // the communicators of survivable ranks need no MPI.
  if (comm::srun_recovers()) comm::finalize_mpi();
  const auto launcher = ::getppid();
  auto* group = &comm;
  for (std::unique_ptr<comm::Communicator> own;;) {
    try {
      const int code = run_group(*group, body, on_end);
      const bool is_cut_off = code == static_cast<int>(ExitCode::timeout);
      if (is_cut_off) std::_Exit(code);  // the job continues on other hosts
      if (group->rank() == 0) on_end(code);
      end_rank(*group, code, comm.place(), own != nullptr);
    } catch (const comm::RankLost&) {
      // Handled below, after all objects of body() are destroyed.
    }
    if (::getppid() != launcher) {  // then all ranks end, one soon after the other
      end_job(
          "rank " + std::to_string(comm.rank()) + ": the launcher has ended, so this rank ends too",
          static_cast<int>(ExitCode::timeout));
    }
    auto living = group->living();
    if (living->rank() == 0) {
      print_warning((living->size() == group->size() ? "the network was interrupted"
                                                     : lost_ranks(*group, *living) + " ended") +
                    "; " + counted(static_cast<std::uint64_t>(living->size()), "rank") +
                    (living->size() == 1 ? " goes on" : " go on"));
    }
    own = std::move(living);
    group = own.get();
  }
}

void run_over_threads(std::uint64_t ranks, const RankBody& body) {
  if (ranks == 0) throw ConfigError("0 ranks", "give at least one");
  if (ranks > max_threads) {
    throw ConfigError(
        {"ranks", std::to_string(ranks)},
        std::to_string(ranks) + " threads are more than " + std::to_string(max_threads),
        "start that many ranks as processes, with mpirun");
  }
  comm::run_ranks(static_cast<int>(ranks), [&](comm::Communicator& comm) {
    try {
      body(comm);
    } catch (const comm::AgreedError&) {
      throw;
    } catch (const std::exception& error) {
      if (comm.size() == 1) throw;
      throw Error(static_cast<ExitCode>(exit_code(error)),
                  "rank " + std::to_string(comm.rank()) + ": " + what_of(error));
    }
  });
}

}  // namespace lockstep::launching

namespace lockstep {
namespace {

struct ProgramWords {
  std::optional<std::uint64_t> ranks = {};  // of --ranks
  std::vector<std::string> others = {};
};

/// True if `word` is `name` but for one letter, or for two neighbours that are swapped. nearest()
/// permits more, and would take flags of programs, such as --range, for misspelt.
bool is_misspelt(std::string_view word, std::string_view name) {
  while (!word.empty() && !name.empty() && word.front() == name.front()) {
    word.remove_prefix(1);
    name.remove_prefix(1);
  }
  while (!word.empty() && !name.empty() && word.back() == name.back()) {
    word.remove_suffix(1);
    name.remove_suffix(1);
  }
  const bool swapped =
      word.size() == 2 && name.size() == 2 && word[0] == name[1] && word[1] == name[0];
  return swapped || std::max(word.size(), name.size()) == 1;
}

void require_not_misspelt(std::string_view word) {
  const std::string name = lower_case(word.substr(0, word.find('=')));
  if (!is_misspelt(name, "--ranks")) return;
  throw ConfigError("unknown flag '" + name + "'; did you mean '--ranks'?",
                    "use --ranks N, for N ranks as threads; a flag of the program's own with "
                    "such a name stands after --");
}

std::uint64_t parse_ranks(std::string_view number) {
  try {
    return parse_count(number, 1);
  } catch (const ConfigError& error) {
    throw ConfigError("--ranks: " + error.problem(), error.remedy());
  }
}

ProgramWords words_of(int argc, char** argv) {
  constexpr std::string_view with_value = "--ranks=";
  ProgramWords found;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      found.others.insert(found.others.end(), argv + i + 1, argv + argc);
      break;
    }
    require_not_misspelt(word);
    if (word.starts_with(with_value)) {
      found.ranks = parse_ranks(word.substr(with_value.size()));
    } else if (word != "--ranks") {
      found.others.emplace_back(word);
    } else if (++i < argc) {
      found.ranks = parse_ranks(argv[i]);
    } else {
      throw ConfigError("--ranks: a number is missing", "use --ranks N, for N ranks as threads");
    }
  }
  return found;
}

/// Calls `work`; what it throws is a std::exception then.
template <class Work>
void run_named(Work work) {
  try {
    work();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    const std::unique_ptr<char, decltype(&std::free)> type(
        abi::__cxa_demangle(abi::__cxa_current_exception_type()->name(), nullptr, nullptr, nullptr),
        &std::free);
    throw Error(ExitCode::internal,
                "the program threw a value of type " + std::string(type ? type.get() : "unknown"),
                "throw a std::exception, or lockstep::Error, with a message");
  }
}

int run_over_launcher(const std::optional<comm::Launch>& launch, const RankBody& body) {
  return launching::run_over_mpi(launch, [&](comm::MpiCommunicator& mpi, const auto& connected) {
    const auto shared = launching::share_nodes("auto", mpi);
    connected();
    run_named([&] { body(shared ? *shared : static_cast<comm::Communicator&>(mpi)); });
  });
}

/// `work(launch)` gives the exit code.
template <class Work>
int run_main(Work work) noexcept {
  try {
    if (auto own = set_warning_handler(launching::print_warning)) {
      set_warning_handler(std::move(own));  // the program's
    }
    const int code = work(comm::detect_launcher());
    flush_stdout();
    return code;
  } catch (const std::exception& error) {
    launching::print(error);
    return launching::exit_code(error);
  }
}

}  // namespace

int run_replicas(std::uint64_t threads, const RankBody& body) noexcept {
  return run_main([&](const std::optional<comm::Launch>& launch) {
    if (launching::is_rank(launch)) return run_over_launcher(launch, body);
    launching::run_over_threads(threads,
                                [&](comm::Communicator& comm) { run_named([&] { body(comm); }); });
    return static_cast<int>(ExitCode::success);
  });
}

int run_replicas(int argc, char** argv, const RankProgram& body) noexcept {
  return run_main([&](const std::optional<comm::Launch>& launch) {
    if (launching::is_rank(launch)) {
      return run_over_launcher(launch, [&](comm::Communicator& comm) {
        ProgramWords words;
        comm::together(comm, [&] {
          words = words_of(argc, argv);
          if (!words.ranks) return;
          throw ConfigError("--ranks under a launcher, which started " +
                                counted(static_cast<std::uint64_t>(comm.size()), "rank"),
                            "leave it out");
        });
        body(comm, words.others);
      });
    }
    const auto words = words_of(argc, argv);
    if (!words.ranks) launching::require_no_batch_shell(launch, argv[0]);
    launching::run_over_threads(words.ranks.value_or(1), [&](comm::Communicator& comm) {
      run_named([&] { body(comm, words.others); });
    });
    return static_cast<int>(ExitCode::success);
  });
}

int run_replicas(int argc, char** argv, const RankBody& body) noexcept {
  return run_replicas(
      argc, argv, [&](comm::Communicator& comm, const std::vector<std::string>& others) {
        comm::together(comm, [&] {
          if (others.empty()) return;
          throw ConfigError("unknown word '" + others.front() + "'",
                            "this program takes --ranks N alone, for N ranks as threads");
        });
        body(comm);
      });
}

}  // namespace lockstep

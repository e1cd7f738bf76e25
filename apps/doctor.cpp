// `lockstep doctor`: the launch of this job, and what is wrong with it.
// `lockstep doctor RUN`: what the ranks of a run do or did last, and which of them holds up the
// others.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "apps/cli.hpp"
#include "apps/console.hpp"
#include "apps/flag_names.hpp"
#include "apps/library_options.hpp"
#include "apps/subcommands.hpp"
#include "apps/train_job.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/flight_recorder.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/launch_check.hpp"
#include "lockstep/launch/leftovers.hpp"
#include "lockstep/launch/watchdog.hpp"
#include "lockstep/nn/network.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/recorded_run.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

constexpr int something_is_wrong = 1;
constexpr int looks = 50;  // at a job that runs, until one of its ranks has made progress
constexpr auto between_looks = std::chrono::milliseconds(100);

}  // namespace

Syntax doctor_syntax() {
  Syntax syntax;
  syntax.command = "lockstep doctor";
  syntax.does =
      "Without RUN: checks the launch of this job (start it as you start training): binding, "
      "cores, GPUs, builds, clocks, data, network.\nWith RUN: reads the flight recorders of the "
      "run's ranks, and names the rank that others wait for, if for 5 seconds none makes progress, "
      "or why the run was stopped or failed.\nEnds with 0 where nothing is wrong, with 1 where "
      "something is; 2: usage; 65: RUN has no recorder, or one that cannot be read.\n";
  syntax.usage = "[flags] | RUN";
  syntax.operand = "run folder";
  syntax.settings = {"data",    "format",  "classes",    "backend", "device",
                     "threads", "timeout", "test-split", "seed"};
  syntax.take_table_settings();
  syntax.other_help = {
      {"data", "data that all hosts must be able to read, and equally"},
      {"device", "cuda: look for ranks that share a GPU"},
      {"seed", "of the test split"},
      {"threads", "threads of each rank's products in training"},
      {"timeout", "end with code 86 if the checks make no progress for five times N seconds"}};
  syntax.other_default = {{"data", "not checked"}};
  syntax.any_build = true;
  syntax.over_mpi = true;
  return syntax;
}

namespace {

const char* text_of(ProcessState state) {
  switch (state) {
    case ProcessState::unknown: return "other host";
    case ProcessState::running: return "running";
    case ProcessState::stopped: return "stopped";
    case ProcessState::gone: return "ended";
  }
  return "";
}

void print_rank(const Flight& flight, ProcessState state) {
  std::string last = "-";
  if (!flight.operations.empty()) {
    const FlightOperation& operation = flight.operations.back();
    last = fmt::format("{}{}", operation.name.data(), operation.end == 0 ? ", not ended" : "");
  }
  fmt::print("{:>5}  {:<16} {:>8}  {:<10}  {:<18} {:>10}  {}\n", flight.rank, flight.host.data(),
             flight.process, text_of(state), lockstep::text_of(flight.phase), flight.step, last);
}

/// True if both are of the same moment of a rank: it has recorded nothing in between.
bool is_unchanged(const Flight& before, const Flight& now) {
  return before.rank == now.rank && before.process == now.process &&
         last_record(before) == last_record(now);
}

/// Watches running ranks for a while: in a job that makes progress, one rank is nearly always
/// behind. False if a rank has ended or is stopped, or if none records anything.
bool makes_progress(const std::filesystem::path& folder, const std::vector<Flight>& before) {
  const auto runs = [](const Flight& flight) {
    const ProcessState state = state_of(flight);
    return flight.phase == Phase::end || state == ProcessState::running ||
           state == ProcessState::unknown;
  };
  for (int i = 0; i < looks && std::all_of(before.begin(), before.end(), runs); ++i) {
    std::this_thread::sleep_for(between_looks);
    const auto now = launching::read_flights(folder);
    if (!std::equal(before.begin(), before.end(), now.begin(), now.end(), is_unchanged)) {
      return true;
    }
  }
  return false;
}

/// Prints why the run was stopped or failed, unless it may be going on.
void print_cause(const std::filesystem::path& run, const std::vector<Flight>& flights) {
  const bool has_ended = lock_state(run) != LockState::held &&
                         std::none_of(flights.begin(), flights.end(), [](const Flight& flight) {
                           const ProcessState state = state_of(flight);
                           return state == ProcessState::running || state == ProcessState::stopped;
                         });
  if (!has_ended) return;
  if (const auto end = train::recorded_end(run); end && end->exit_code != 0) {
    fmt::print("{}\n",
               presentable(fmt::format("the run {} ({}): {}",
                                       end->status == "stopped" ? "was stopped" : end->status,
                                       end->exit_code, end->cause)));
  }
}

/// Prints what the ranks do or did last, and returns the exit code.
int print_flights(const std::filesystem::path& folder, const std::vector<Flight>& flights) {
  fmt::print("{:>5}  {:<16} {:>8}  {:<10}  {:<18} {:>10}  {}\n", "rank", "host", "process", "state",
             "in", "step", "last collective");
  bool ended = true;
  for (const Flight& flight : flights) {
    print_rank(flight, state_of(flight));
    ended = ended && flight.phase == Phase::end;
  }
  if (ended) {
    // Ranks that were asked to stop reach Phase::end, too: the cause tells the two apart.
    print_cause(folder.parent_path(), flights);
    return static_cast<int>(ExitCode::success);
  }
  std::ifstream written(folder / launching::diagnosis_name);
  if (written) {
    fmt::print("\nwhen the job was ended:\n{}",
               std::string{std::istreambuf_iterator<char>(written), {}});
    return something_is_wrong;
  }
  print_cause(folder.parent_path(), flights);
  if (makes_progress(folder, flights)) {
    fmt::print("the ranks make progress\n");
    return static_cast<int>(ExitCode::success);
  }
  const Diagnosis found = launching::diagnose_now(flights);
  for (const auto& finding : found.findings) fmt::print("{}\n", finding);
  const bool hangs = !found.odd.empty() || found.all_wait;
  return hangs ? something_is_wrong : static_cast<int>(ExitCode::success);
}

int examine_run(const Arguments& arguments) {
  const auto folder = std::filesystem::path(arguments.operand()) / "flight";
  if (!arguments.settings.empty()) {
    throw ConfigError("--" + arguments.settings[0].first + " with a run folder",
                      "give flags without RUN, to check the launch of a job");
  }
  std::vector<std::string> unreadable;
  const auto flights = launching::read_flights(folder, &unreadable);
  if (flights.empty() && unreadable.empty()) {
    std::error_code error;
    list_folder(folder, error);
    if (error == std::errc::permission_denied) {
      throw DataError(folder.string() + ": cannot be listed: " + system_reason(error.value()),
                      "examine it as the user who ran it");
    }
    throw DataError(folder.string() + ": no flight recorder",
                    "give the folder of a run that this version recorded");
  }
  const int code = flights.empty() ? 0 : print_flights(folder, flights);
  if (unreadable.empty()) return code;
  throw DataError(
      fmt::format("{}: damaged, or flight recorders of another version: {}", folder.string(),
                  listed(unreadable)),
      "examine the run with the version of lockstep that recorded it, or restore these files");
}

/// Opens the data, for its identity. Ranks of one build share the work, as in training. Collective.
void open_data(const RunConfig& config, bool same_build, comm::Communicator& comm,
               launching::RankFacts& facts) {
  const auto open = [&](const data::OpeningRanks* ranks) {
    try {
      data::DataSetOptions options = data_options(config);
      options.threads = facts.threads;
      options.ranks = ranks;
      const auto sets = data::open_data_set(config.data, options);
      require_used(config, *sets.train);
      facts.data = to_hex(hash_of(sets.train->identity() + "\n" + sets.test->identity()));
    } catch (const Error& error) {
      facts.data_error = error.problem();
      facts.data_remedy = error.remedy();
    }
  };
  if (!same_build) return open(nullptr);
  comm::together(comm, [&](comm::Exchange& exchange) {
    const data::OpeningRanks ranks = opening_ranks(exchange);
    open(&ranks);
  });
}

/// Name and bus id of the GPU that this rank would train on, also if others use it. Collective.
std::string device_name(comm::Communicator& comm) {
  const auto products = make_strict_products(Simd::automatic);
  nn::Network<float> network(nn::NetworkShape(1, {}, 1), 0, *products);
  train::ReplicaOptions options;
  options.share_device = true;
  options.device_exchange = train::DeviceExchange::staged;
  return train::make_device_replica(network, options, 0, comm)->device();
}

/// A line for ranks with the same facts: of many ranks, each group is a host's.
void print_ranks(const std::vector<launching::RankFacts>& facts) {
  constexpr std::size_t many = 32;
  std::map<std::tuple<int, std::string, int, int, std::string>, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < facts.size(); ++rank) {
    const auto& one = facts[rank];
    groups[{one.node, facts.size() > many ? "" : one.cores, one.bound_cores, one.threads,
            facts.size() > many ? "" : one.device}]
        .push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<std::string>> lines = {
      {"ranks", "host", "cores of a rank", "threads", "GPU", "/dev/shm free", "clock"}};
  for (const auto& [key, ranks] : groups) {
    const auto& first = facts[static_cast<std::size_t>(ranks[0])];
    const auto& [node, cores, bound, threads, device] = key;
    lines.push_back(
        {ranges_text(ranks), first.host,
         fmt::format("{} of {}{}", bound, first.machine_cores, cores.empty() ? "" : ": " + cores),
         std::to_string(threads), device.empty() ? "-" : device,
         bytes_text(static_cast<double>(first.shm_bytes)),
         fmt::format("{:+.3f} s", first.clock - facts[0].clock)});
  }
  print_table(lines);
}

void print_links(const std::vector<launching::Link>& links,
                 const std::vector<launching::RankFacts>& facts) {
  if (links.empty()) return;
  const auto name = [&](int rank) {
    return fmt::format("rank {} on {}", rank, facts[static_cast<std::size_t>(rank)].host);
  };
  std::vector<std::vector<std::string>> lines = {{"network", "", "latency", "bandwidth"}};
  for (const auto& link : links) {
    lines.push_back({name(link.from), name(link.to), fmt::format("{:.1f} us", link.latency * 1e6),
                     bytes_text(link.bandwidth) + "/s"});
  }
  fmt::print("\n");
  print_table(lines);
}

/// Files of MPI jobs that were killed, a text for each host that has some. Collective.
std::vector<std::string> notes_of_leftovers(comm::Communicator& comm) {
  std::string mine;
  if (comm.place().local_rank == 0) mine = launching::text_of(launching::mpi_leftovers());
  if (!mine.empty()) mine = comm.place().host + ": " + mine;
  auto notes = comm::gather_text(comm, mine);
  std::erase(notes, "");
  return notes;
}

/// Prints the findings, and returns the exit code. Notes do not count as something wrong.
int print_findings(const std::vector<launching::Finding>& findings,
                   const std::vector<std::string>& notes) {
  fmt::print("\n");
  for (const std::string& note : notes) fmt::print("note: {}\n", presentable(note));
  for (const launching::Finding& finding : findings) {
    fmt::print("{}: {}\n", finding.level == launching::Level::error ? "error" : "warning",
               presentable(with_flags(finding.text)));
    fmt::print("  remedy: {}\n", presentable(with_flags(finding.remedy)));
  }
  if (findings.empty()) fmt::print("nothing is wrong\n");
  std::fflush(stdout);  // the launcher may kill this rank when another one ends with a code
  return findings.empty() ? 0 : something_is_wrong;
}

/// Throws ConfigError for a setting of data that is not looked at.
void require_data_for_settings(const Arguments& arguments) {
  constexpr std::array of_launch = {"backend", "device", "threads", "timeout"};
  for (const auto& [name, value] : arguments.settings) {
    if (arguments.given("data") || contains(of_launch, name)) continue;
    throw ConfigError("--" + name + " without --data", "give both, or leave it out");
  }
}

/// Throws ConfigError for a backend that training refuses.
void require_device_for_nccl(const RunConfig& config) {
  if (config.backend != "nccl" || config.device == "cuda") return;
  throw ConfigError("backend nccl with device cpu", "use `device=cuda`, or leave it out");
}

/// Checks the launch, and prints on rank 0. Collective; the same exit code on every rank.
int examine_launch(const Arguments& arguments, const RunConfig& config, comm::Communicator& world) {
  Recording recording(config, world);
  const RecordedIn recorded(recording.recorder(), world);  // each collective is progress
  const auto started = comm::detect_launcher();
  std::vector<launching::Finding> findings;
  launching::RankFacts mine = launching::own_facts(world);
  mine.build = fmt::format("{} {}", version, to_hex(executable_hash()));
  comm::together(world, [&] { mine.threads = threads_of(config, world); });
  comm::together(world, [&] {
    require_data_for_settings(arguments);
    require_split_for_seed(arguments, config);
    require_device_for_nccl(config);
  });
  const auto builds = comm::gather_text(world, mine.build);
  const bool same_build = std::count(builds.begin(), builds.end(), mine.build) == world.size();
  const bool has_data = arguments.given("data");
  const bool all_have = world.all_agree(has_data);
  const bool none_has = world.all_agree(!has_data);
  if (!all_have && !none_has) {
    throw comm::AgreedError(ExitCode::usage, "only some ranks have --data",
                            "start all ranks with the same flags");
  }
  if (has_data) open_data(config, same_build, world, mine);
  if (same_build && config.device == "cuda") {
    try {
      mine.device = device_name(world);
    } catch (const comm::AgreedError& error) {
      findings.push_back({launching::Level::error, error.problem(), error.remedy()});
    }
  }
  const auto facts = launching::gather_facts(world, mine);
  std::unique_ptr<comm::Communicator> shared;
  if (auto* mpi = dynamic_cast<comm::MpiCommunicator*>(&world); mpi != nullptr && same_build) {
    shared = launching::share_nodes(config.backend, *mpi);
  }
  comm::Communicator& comm = shared ? *shared : world;
  std::optional<RecordedIn> recorded_shared;
  if (shared) recorded_shared.emplace(recording.recorder(), comm);
  const auto links = launching::measure_links(comm);
  const auto notes = notes_of_leftovers(world);
  const auto found = launching::find_problems(facts, comm.backend());
  findings.insert(findings.end(), found.begin(), found.end());
  if (world.rank() != 0) return findings.empty() ? 0 : something_is_wrong;
  fmt::print("lockstep {}, {}: {} on {}, {}, backend {}\n", mine.build, mine.mpi,
             counted(facts.size(), "rank"),
             counted(static_cast<std::uint64_t>(world.place().nodes), "host"),
             launching::is_rank(started) ? "started by " + started->launcher : "no launcher",
             comm.backend());
  print_ranks(facts);
  print_links(links, facts);
  return print_findings(findings, notes);
}

/// False also for words that cannot be parsed, which run_on_ranks() reports once.
bool names_run(const std::vector<std::string>& words) {
  try {
    return !parse_arguments(doctor_syntax(), words).operands.empty();
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

int doctor_command(const std::vector<std::string>& words) {
  if (names_run(words)) return run_on_rank_0(doctor_syntax(), words, examine_run);
  int found = 0;
  const int code = run_on_ranks(
      doctor_syntax(), words,
      [&](const Arguments& arguments, const RunConfig& config, comm::Communicator& world) {
        found = examine_launch(arguments, config, world);
      });
  return code != 0 ? code : found;
}

}  // namespace lockstep::apps

#include "lockstep/launch/launch_check.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory_resource>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/mpi.hpp"

namespace lockstep::launching {

// Ranks of another build, which may have other facts, must be able to read them.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankFacts, host, node, build, mpi, cores,
                                                bound_cores, machine_cores, threads, device,
                                                shm_bytes, clock, clock_error, slurm_tasks, data,
                                                data_error, data_remedy)

namespace {

constexpr std::size_t max_listed = 8;
constexpr double max_clock_difference = 1;                             // seconds
constexpr std::uint64_t vader_segment_bytes = std::uint64_t{4} << 20;  // of each rank, Open MPI 4.1

std::string allowed_cores() {
  std::ifstream status("/proc/self/status");
  const std::string key = "Cpus_allowed_list:\t";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "unknown";
}

std::uint64_t free_shm_bytes() {
  struct statvfs volume {};
  if (::statvfs("/dev/shm", &volume) != 0) return 0;
  return static_cast<std::uint64_t>(volume.f_bavail) * volume.f_frsize;
}

/// Not in a step: require_promised_world() checks srun's, and on other hosts mpirun's daemons are a
/// step with a number of tasks of its own.
int slurm_tasks() {
  const char* const tasks = std::getenv("SLURM_NTASKS");
  if (tasks == nullptr || std::getenv("SLURM_STEP_ID") != nullptr) return 0;
  return static_cast<int>(std::strtol(tasks, nullptr, 10));
}

/// "a, b, c"; of more than 8 the first ones, and their number.
std::string abridged(const std::vector<std::string>& texts) {
  if (texts.size() <= max_listed) return joined(texts);
  return joined(std::span(texts).first(max_listed)) + ", ... (" + std::to_string(texts.size()) +
         " in all)";
}

/// Adds a problem of a host, or the host to an equal problem of others.
void add(std::vector<Finding>& findings, const std::string& host, const Finding& finding) {
  const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& one) {
    return !one.hosts.empty() && one.text == finding.text;
  });
  auto& entry = same == findings.end() ? findings.emplace_back(finding) : *same;
  if (entry.hosts.empty() || entry.hosts.back() != host) entry.hosts.push_back(host);
}

/// The values of `key`, each with the ranks that have it.
template <class Key>
auto group_by(std::span<const RankFacts> ranks, Key key) {
  std::map<decltype(key(ranks[0])), std::vector<int>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    groups[key(ranks[rank])].push_back(static_cast<int>(rank));
  }
  return groups;
}

void require_same(std::span<const RankFacts> ranks, std::string RankFacts::*text,
                  const std::string& what, const std::string& remedy,
                  std::vector<Finding>& findings) {
  auto groups = group_by(ranks, [&](const RankFacts& rank) { return rank.*text; });
  groups.erase("");
  if (groups.size() <= 1) return;
  std::vector<std::string> values;
  for (const auto& [value, members] : groups) {
    const auto& host = ranks[static_cast<std::size_t>(members[0])].host;
    values.push_back(value + " on " + ranks_text(members) +
                     (members.size() == 1 ? " (" + host + ")" : ""));
  }
  findings.push_back({Level::error, what + ": " + abridged(values), remedy});
}

void check_devices(std::span<const RankFacts> ranks, std::vector<Finding>& findings) {
  const auto groups =
      group_by(ranks, [](const RankFacts& rank) { return std::pair(rank.node, rank.device); });
  for (const auto& [key, members] : groups) {
    const auto& [node, device] = key;
    if (device.empty() || members.size() == 1) continue;
    add(findings, ranks[static_cast<std::size_t>(members[0])].host,
        {Level::error, ranks_text(members) + " use the same GPU, " + device,
         "give each rank a GPU of its own (Slurm: --gpus-per-task=1, not --gres), start "
         "fewer ranks on a host, or pass `share_device`, which is slow"});
  }
}

/// Ranks that may run on the same cores must not have more threads than these.
void check_cores(std::span<const RankFacts> ranks, std::vector<Finding>& findings) {
  const auto groups =
      group_by(ranks, [](const RankFacts& rank) { return std::pair(rank.node, rank.cores); });
  for (const auto& [key, members] : groups) {
    const RankFacts& first = ranks[static_cast<std::size_t>(members[0])];
    int threads = 0;
    for (const int member : members) threads += ranks[static_cast<std::size_t>(member)].threads;
    if (threads <= first.bound_cores) continue;
    const bool is_bound = first.bound_cores < first.machine_cores;
    const std::string cores = (is_bound ? std::to_string(first.bound_cores) + " of " : "") +
                              counted(static_cast<std::uint64_t>(first.machine_cores), "core");
    const auto count = static_cast<int>(members.size());
    const std::string all = counted(static_cast<std::uint64_t>(threads), "thread");
    const std::string text = count == 1 ? "a rank with " + all + " may use " + cores
                                        : std::to_string(count) + " ranks" +
                                              (threads > count ? " with " + all + " in all" : "") +
                                              " share " + cores;
    const std::string each = std::to_string(first.threads);
    const std::string remedy =
        is_bound ? "bind each rank to as many cores as it has threads (`mpirun --map-by slot:PE=" +
                       each + "`, `srun --cpus-per-task=" + each +
                       "`), or to none (`mpirun --bind-to none`)"
                 : "start no more ranks and threads on a host than it has cores";
    add(findings, first.host, {Level::warning, text, remedy});
  }
}

void check_hosts(std::span<const RankFacts> ranks, const std::string& backend,
                 std::vector<Finding>& findings) {
  std::vector<std::string> clocks;
  for (const auto& [node, members] :
       group_by(ranks, [](const RankFacts& rank) { return rank.node; })) {
    const RankFacts& first = ranks[static_cast<std::size_t>(members[0])];
    const std::uint64_t needed = members.size() * vader_segment_bytes;
    if (backend == "mpi" && members.size() > 1 && first.shm_bytes < needed) {
      add(findings, first.host,
          {Level::warning,
           "/dev/shm has " + bytes_text(static_cast<double>(first.shm_bytes)) +
               " free, but MPI needs " + bytes_text(static_cast<double>(vader_segment_bytes)) +
               " for each of " + counted(members.size(), "rank") + ", and is slow without it",
           "enlarge it (`mount -o remount,size=1G /dev/shm`; in a container "
           "--shm-size=1g), or remove old files in it"});
    }
    const double ahead = first.clock - ranks[0].clock;
    const double error = first.clock_error + ranks[0].clock_error;
    if (std::abs(ahead) - error > max_clock_difference) {
      clocks.push_back(first.host + " (" + (ahead > 0 ? "+" : "") + with_decimals(ahead, 1) +
                       " s)");
    }
  }
  if (clocks.empty()) return;
  findings.push_back({Level::warning,
                      "clocks differ from that of " + ranks[0].host + ": " + abridged(clocks),
                      "synchronize the clocks of all hosts, with chrony or another client of NTP"});
}

}  // namespace

RankFacts own_facts(comm::Communicator& comm) {
  RankFacts facts;
  facts.host = comm.place().host;
  facts.node = comm.place().node;
  facts.mpi = comm::mpi_version();
  facts.cores = allowed_cores();
  facts.bound_cores = bound_cores();
  facts.machine_cores = machine_cores();
  facts.shm_bytes = free_shm_bytes();
  facts.slurm_tasks = slurm_tasks();
  comm.all_agree(true);
  const auto begin = std::chrono::steady_clock::now();
  comm.all_agree(true);
  facts.clock = wall_clock();
  facts.clock_error =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return facts;
}

std::vector<RankFacts> gather_facts(comm::Communicator& comm, const RankFacts& mine) {
  using nlohmann::json;
  std::vector<RankFacts> facts;
  const auto replace = json::error_handler_t::replace;  // texts need not be UTF-8
  for (const auto& text : comm::gather_text(comm, json(mine).dump(-1, ' ', false, replace))) {
    facts.push_back(json::parse(text).get<RankFacts>());
  }
  return facts;
}

std::vector<Finding> find_problems(std::span<const RankFacts> ranks, const std::string& backend) {
  std::vector<Finding> findings;
  require_same(ranks, &RankFacts::build, "ranks run different builds",
               "install the same executable on all hosts", findings);
  require_same(ranks, &RankFacts::mpi, "ranks use different MPI libraries",
               "install the same MPI library on all hosts", findings);
  const int tasks = ranks[0].slurm_tasks;
  if (backend != "threads" && tasks > 0 && tasks != static_cast<int>(ranks.size())) {
    findings.push_back({Level::warning,
                        "Slurm allotted " + counted(static_cast<std::uint64_t>(tasks), "task") +
                            ", but the job has " + counted(ranks.size(), "rank"),
                        "start one rank a task: leave out `mpirun -n`, or request other --ntasks"});
  }
  check_devices(ranks, findings);
  check_cores(ranks, findings);
  check_hosts(ranks, backend, findings);
  for (const RankFacts& rank : ranks) {
    if (rank.data_error.empty()) continue;
    add(findings, rank.host, {Level::error, rank.data_error, rank.data_remedy});
  }
  require_same(ranks, &RankFacts::data, "ranks read different data",
               "give all hosts the same files", findings);
  for (Finding& finding : findings) {
    if (!finding.hosts.empty()) finding.text = abridged(finding.hosts) + ": " + finding.text;
  }
  return findings;
}

void warn_of_problems(comm::Communicator& comm) {
  const auto facts = gather_facts(comm, own_facts(comm));
  if (comm.rank() != 0) return;
  for (const Finding& finding : find_problems(facts, comm.backend())) {
    print_warning(finding.text + "\n  remedy: " + finding.remedy);
  }
}

namespace {

/// The median time of `times` exchanges of `bytes` with the other rank of `pair`, in seconds.
double exchange_seconds(comm::Communicator& pair, std::size_t bytes, std::size_t times) {
  using Clock = std::chrono::steady_clock;
  const std::pmr::vector<std::uint8_t> send(bytes, &pair.memory());
  std::pmr::vector<std::uint8_t> receive(bytes, &pair.memory());
  std::vector<double> seconds;
  for (std::size_t i = 0; i < 2 + times; ++i) {
    const auto begin = Clock::now();
    pair.shift(std::span(send), std::span(receive));
    if (i >= 2) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + times / 2, seconds.end());
  return seconds[times / 2];
}

}  // namespace

std::vector<Link> measure_links(comm::Communicator& comm) {
  const comm::Place& place = comm.place();
  const std::uint8_t is_end_here = place.nodes == 1 || place.local_rank == 0 ? 1 : 0;
  const auto is_end = comm::gather_each(comm, is_end_here);
  std::vector<int> ends;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (is_end[static_cast<std::size_t>(rank)] != 0) ends.push_back(rank);
  }
  std::vector<Link> links;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends.size() > max_listed) links.push_back({ends[i], ends[(i + 1) % ends.size()]});
    for (std::size_t j = i + 1; j < ends.size() && ends.size() <= max_listed; ++j) {
      links.push_back({ends[i], ends[j]});
    }
  }
  std::vector<double> measured(2 * links.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    const bool is_mine = comm.rank() == links[i].from || comm.rank() == links[i].to;
    const auto pair = comm.split(is_mine ? 0 : 1 + comm.rank());
    if (!is_mine) continue;
    constexpr std::size_t long_bytes = 4'000'000;
    const double latency = exchange_seconds(*pair, sizeof(std::uint64_t), 50);
    const double bandwidth =
        static_cast<double>(long_bytes) / exchange_seconds(*pair, long_bytes, 5);
    if (comm.rank() != links[i].from) continue;
    measured[2 * i] = latency;
    measured[2 * i + 1] = bandwidth;
  }
  comm.all_reduce(std::span(measured));
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i].latency = measured[2 * i];
    links[i].bandwidth = measured[2 * i + 1];
  }
  return links;
}

}  // namespace lockstep::launching

// `lockstep bench collectives`: the time of collectives over sizes, operations and backends, in the
// columns of nccl-tests, beside those of MPI itself.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench.hpp"
#include "apps/console.hpp"
#include "apps/train_job.hpp"
#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/mpi.hpp"
#include "lockstep/collectives/tcp.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/launch/launch_check.hpp"
#include "lockstep/train/report.hpp"
#include "lockstep/version.hpp"

namespace lockstep::apps {
namespace {

using comm::MpiCall;

/// A collective, of a Communicator and of MPI. Sizes are of the whole buffer: all blocks.
struct Operation {
  const char* name;
  MpiCall call;
  bool is_in_place;  ///< that of a Communicator
  /// busbw / algbw for n ranks. Source: nccl-tests, doc/PERFORMANCE.md, "Bandwidth"; a shift is
  /// its sendrecv.
  double (*bus_factor)(double n);
};

constexpr std::array operations = {
    Operation{"all_reduce", MpiCall::all_reduce, true, [](double n) { return 2 * (n - 1) / n; }},
    Operation{"all_gather", MpiCall::all_gather, true, [](double n) { return (n - 1) / n; }},
    Operation{"broadcast", MpiCall::broadcast, true, [](double) { return 1.0; }},
    Operation{"all_to_all", MpiCall::all_to_all, false, [](double n) { return (n - 1) / n; }},
    Operation{"shift", MpiCall::shift, false, [](double) { return 1.0; }}};

comm::Op op_named(const std::string& name) {
  if (name == "sum") return comm::Op::sum;
  if (name == "min") return comm::Op::min;
  if (name == "max") return comm::Op::max;
  throw ConfigError("--redop: " + in_quotes(name) + " is none of sum|min|max", "give one of these");
}

/// What is measured: the command line.
struct CollectiveSweep {
  std::vector<const Operation*> operations;
  std::vector<std::string> backends;  ///< empty: all that there are
  std::string redop;
  comm::Op op = comm::Op::sum;
  std::vector<std::size_t> counts;  ///< elements of the buffers, multiples of the ranks
  std::uint64_t rounds = 0;
  bool has_private_memory = false;
  bool json = false;
};

/// "64M" -> 67,108,864; K, M and G are powers of 1024.
std::uint64_t bytes_in(const Arguments& arguments, const std::string& flag) {
  std::string text = arguments.value(flag);
  std::uint64_t unit = 1;
  const std::string units = "KMG";
  const auto at = text.empty() ? std::string::npos : units.find(text.back());
  if (at != std::string::npos) {
    unit = std::uint64_t{1} << (10 * (at + 1));
    text.pop_back();
  }
  constexpr std::uint64_t most = std::uint64_t{1} << 32;  // of a call of MPI
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    throw ConfigError("--" + flag + ": " + in_quotes(arguments.value(flag)) + " is not a size",
                      "write digits, and K, M or G behind them for powers of 1024");
  }
  const auto number = whole_number(text);
  if (!number || *number > most / unit) {
    throw ConfigError("--" + flag + ": " + arguments.value(flag) + " is more than 4G",
                      "give at most 4G");
  }
  const std::uint64_t bytes = *number * unit;
  if (bytes >= sizeof(float)) return bytes;
  throw ConfigError("--" + flag + ": less than the 4 bytes of an element", "give at least 4");
}

/// The operations in `text`, a list of names or "all"; each once.
std::vector<const Operation*> operations_in(const std::string& text) {
  std::vector<std::string> names(operations.size());
  std::transform(operations.begin(), operations.end(), names.begin(),
                 [](const Operation& one) { return one.name; });
  std::vector<const Operation*> found;
  for (const std::string& name : text == "all" ? names : split_list(text)) {
    const auto at = index_of(names, name);
    if (!at) {
      throw ConfigError("--operation: " + in_quotes(name) + " is none of " + listed(names),
                        "give some of these with commas between them, or all");
    }
    const Operation* const operation = &operations[*at];
    if (!contains(found, operation)) found.push_back(operation);
  }
  return found;
}

std::vector<std::size_t> counts_of(const Arguments& arguments, std::size_t ranks) {
  const std::uint64_t min = bytes_in(arguments, "min-bytes");
  const std::uint64_t max = bytes_in(arguments, "max-bytes");
  if (min > max) {
    throw ConfigError("--min-bytes is greater than --max-bytes", "exchange the two");
  }
  const std::uint64_t factor = arguments.number("factor", 2, 1024).value();
  std::vector<std::size_t> counts;
  const std::uint64_t multiple = sizeof(float) * ranks;
  for (std::uint64_t bytes = min; bytes <= max; bytes *= factor) {
    std::uint64_t blocks = bytes / multiple;
    if (blocks * multiple < min) ++blocks;
    const std::size_t count = blocks * ranks;
    if (counts.empty() || counts.back() != count) counts.push_back(count);
  }
  if (counts[0] * sizeof(float) <= max) return counts;
  throw ConfigError(
      fmt::format("--min-bytes {} to --max-bytes {}: no size between is a multiple of "
                  "{} bytes, one element for each of {} ranks",
                  min, max, multiple, ranks),
      "give a multiple of that, or sizes farther apart");
}

CollectiveSweep sweep_of(const Arguments& arguments, const comm::Communicator& comm) {
  if (comm.size() == 1) {
    throw ConfigError("one rank alone: collectives need at least 2",
                      "start it with `mpirun -n 2`, or with --ranks 2");
  }
  CollectiveSweep sweep;
  sweep.operations = operations_in(arguments.value("operation"));
  sweep.redop = arguments.value("redop");
  const bool reduces =
      std::any_of(sweep.operations.begin(), sweep.operations.end(),
                  [](const Operation* one) { return std::string_view(one->name) == "all_reduce"; });
  if (arguments.given("redop") && !reduces) {
    throw ConfigError("--redop without all_reduce", "leave it out, or give --operation all_reduce");
  }
  sweep.op = op_named(sweep.redop);
  if (const std::string backends = arguments.value("backend"); backends != "all") {
    sweep.backends = split_list(backends);
  }
  sweep.counts = counts_of(arguments, static_cast<std::size_t>(comm.size()));
  sweep.rounds = arguments.number("rounds", 1, 10'000).value();
  sweep.has_private_memory = arguments.given("private-memory");
  sweep.json = arguments.given("json");
  return sweep;
}

/// The communicators of the launch.
struct Backends {
  std::vector<std::unique_ptr<comm::Communicator>> own;
  std::vector<comm::Communicator*> all;
  bool has_mpi = false;
};

bool needs_mpirun(const std::string& backend) {
  return backend == "shared" || backend == "mpi" || backend == "tcp";
}

/// Of a launch over MPI: shared memory where a host has several ranks, MPI and TCP; else threads.
/// Collective.
Backends backends_of(const CollectiveSweep& sweep, comm::Communicator& comm) {
  Backends found;
  std::vector<std::string> names;
  auto* const mpi = dynamic_cast<comm::MpiCommunicator*>(&comm);
  found.has_mpi = mpi != nullptr;
  if (found.has_mpi) {
    if (mpi->size() > mpi->place().nodes) names.emplace_back("shared");
    names.insert(names.end(), {"mpi", "tcp"});
  } else {
    names.emplace_back(comm.backend());
  }
  comm::together(comm, [&] {
    for (const std::string& asked : sweep.backends) {
      if (contains(names, asked)) continue;
      throw ConfigError(
          "--backend: this launch has no " + in_quotes(asked) + ", but " + listed(names),
          asked == "threads"                      ? "start it without a launcher, with --ranks N"
          : !found.has_mpi && needs_mpirun(asked) ? "start it with mpirun"
                                                  : "give some of these with commas between "
                                                    "them, or all");
    }
  });
  for (const std::string& name : names) {
    const auto& asked = sweep.backends;
    if (!asked.empty() && !contains(asked, name)) continue;
    std::unique_ptr<comm::Communicator> own;
    if (name == "shared") own = launching::share_nodes(name, *mpi);
    if (name == "tcp") own = std::make_unique<comm::TcpCommunicator>(*mpi);
    found.all.push_back(own ? own.get() : &comm);
    if (own) found.own.push_back(std::move(own));
  }
  return found;
}

/// The buffers of one call.
struct Spans {
  std::span<float> send;  ///< empty: in place
  std::span<float> receive;
};

/// One way of doing an operation.
struct Contender {
  std::string name;
  bool is_in_place = false;
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
  std::function<void(const Spans&)> run;
};

void run_ours(const Operation& operation, comm::Op op, comm::Communicator& comm,
              const Spans& spans) {
  const std::span<const float> send = spans.send;
  switch (operation.call) {
    case MpiCall::all_reduce: return comm.all_reduce(spans.receive, op);
    case MpiCall::all_gather: return comm.all_gather(spans.receive);
    case MpiCall::broadcast: return comm.broadcast(spans.receive);
    case MpiCall::all_to_all: return comm.all_to_all(send, spans.receive);
    case MpiCall::shift: return comm.shift(send, spans.receive);
  }
}

std::vector<Contender> contenders_of(const Operation& operation, const CollectiveSweep& sweep,
                                     const Backends& backends) {
  std::vector<Contender> contenders;
  for (comm::Communicator* comm : backends.all) {
    Contender& ours = contenders.emplace_back();
    ours.name = comm->backend();
    ours.is_in_place = operation.is_in_place;
    if (!sweep.has_private_memory) ours.memory = &comm->memory();
    ours.run = [&operation, op = sweep.op, comm](const Spans& spans) {
      run_ours(operation, op, *comm, spans);
    };
  }
  if (!backends.has_mpi) return contenders;
  for (const bool is_in_place : {false, true}) {
    if (!is_in_place && operation.call == MpiCall::broadcast) continue;
    Contender& mpi = contenders.emplace_back();
    mpi.name = comm::name_of(operation.call);
    mpi.is_in_place = is_in_place;
    mpi.run = [call = operation.call, op = sweep.op](const Spans& spans) {
      comm::call_mpi(call, spans.send, spans.receive, op);
    };
  }
  return contenders;
}

/// Whole numbers, so small that their sums are exact in any order.
float value_of(std::size_t rank, std::size_t i) {
  return static_cast<float>((rank + 1) * (i % 7 + 1));
}

constexpr float unset = -1;

/// Fills what `rank` sends, and the rest with `unset`.
void fill(const Operation& operation, std::size_t rank, std::size_t ranks, const Spans& spans) {
  const auto sent = [&](std::span<float> values, std::size_t first) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(rank, first + i);
  };
  const std::size_t block = spans.receive.size() / ranks;
  const bool in_blocks = operation.call == MpiCall::all_gather;
  if (!spans.send.empty()) {
    sent(spans.send, in_blocks ? rank * block : 0);
    std::fill(spans.receive.begin(), spans.receive.end(), unset);
  } else if (in_blocks) {
    std::fill(spans.receive.begin(), spans.receive.end(), unset);
    sent(spans.receive.subspan(rank * block, block), rank * block);
  } else if (operation.call == MpiCall::broadcast && rank > 0) {
    std::fill(spans.receive.begin(), spans.receive.end(), unset);
  } else {
    sent(spans.receive, 0);
  }
}

/// What `rank` has at `i` of `count` afterwards.
float expected(const Operation& operation, comm::Op op, std::size_t rank, std::size_t ranks,
               std::size_t i, std::size_t count) {
  const std::size_t block = count / ranks;
  switch (operation.call) {
    case MpiCall::all_reduce:
      if (op == comm::Op::sum) return value_of(ranks * (ranks + 1) / 2 - 1, i);
      return value_of(op == comm::Op::min ? 0 : ranks - 1, i);
    case MpiCall::all_gather: return value_of(i / block, i);
    case MpiCall::broadcast: return value_of(0, i);
    case MpiCall::all_to_all: return value_of(i / block, rank * block + i % block);
    case MpiCall::shift: return value_of((rank + ranks - 1) % ranks, i);
  }
  return unset;
}

/// What is measured of one contender at one size.
struct CallTimes {
  std::vector<double> seconds;  ///< of a call, each round's
  std::uint64_t wrong = 0;      ///< elements, on all ranks in all rounds
  std::uint64_t calls = 1;      ///< of a round
  double median = 0;            ///< of `seconds`
};

/// Throws ConfigError unless this machine has memory for the buffers of its ranks, of `count`
/// elements.
void require_memory(const std::vector<Contender>& contenders, std::size_t count, int local_ranks) {
  double buffers = 0;
  for (const Contender& one : contenders) buffers += one.is_in_place ? 1 : 2;
  const double needed = buffers * local_ranks * static_cast<double>(count * sizeof(float));
  const auto there = static_cast<double>(memory_limit_bytes());
  if (needed <= there) return;
  throw ConfigError(fmt::format("--max-bytes: the buffers of {} on this host need {}; there are {}",
                                counted(static_cast<std::uint64_t>(local_ranks), "rank"),
                                bytes_text(needed), bytes_text(there)),
                    "give less, or fewer --backend");
}

/// Measures all contenders of an operation, in turn in each round.
class Race {
 public:
  Race(const Operation& operation, const CollectiveSweep& sweep, const Backends& backends,
       FlightRecorder& recorder, comm::Communicator& comm)
      : contenders(contenders_of(operation, sweep, backends)),
        operation_(operation),
        sweep_(sweep),
        recorder_(recorder),
        comm_(comm),
        rank_(static_cast<std::size_t>(comm.rank())),
        ranks_(static_cast<std::size_t>(comm.size())) {
    comm::together(comm, [&] {
      require_memory(contenders, sweep.counts.back(), comm.place().local_ranks);
      for (const Contender& one : contenders) {
        send_.emplace_back(one.is_in_place ? 0 : sweep.counts.back(), *one.memory);
        receive_.emplace_back(sweep.counts.back(), *one.memory);
      }
    });
  }

  /// Collective.
  std::vector<CallTimes> at(std::size_t count) {
    std::vector<CallTimes> measured(contenders.size());
    for (std::uint64_t round = 0; round < sweep_.rounds; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        recorder_.enter(Phase::step, round);
        const Spans spans = spans_of(i, count);
        check(contenders[i], spans, measured[i]);
        time(contenders[i], spans, round == 0, measured[i]);
      }
    }
    for (CallTimes& one : measured) one.median = train::median(one.seconds);
    return measured;
  }

  const std::vector<Contender> contenders;

 private:
  Spans spans_of(std::size_t i, std::size_t count) {
    const std::size_t sent = operation_.call == MpiCall::all_gather ? count / ranks_ : count;
    return {contenders[i].is_in_place ? std::span<float>() : send_[i].span().first(sent),
            receive_[i].span().first(count)};
  }

  void check(const Contender& contender, const Spans& spans, CallTimes& measured) {
    fill(operation_, rank_, ranks_, spans);
    contender.run(spans);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < spans.receive.size(); ++i) {
      const float right = expected(operation_, sweep_.op, rank_, ranks_, i, spans.receive.size());
      wrong += spans.receive[i] == right ? 0 : 1;
    }
    comm_.all_reduce(std::span(&wrong, 1));
    measured.wrong += wrong;
  }

  /// Zeros are sent, so that sums in place stay as they are.
  void time(const Contender& contender, const Spans& spans, bool calibrates, CallTimes& measured) {
    std::fill(spans.send.begin(), spans.send.end(), 0.0F);
    std::fill(spans.receive.begin(), spans.receive.end(), 0.0F);
    constexpr double round_seconds = 4e-3;
    constexpr double most_calls = 2000;
    if (calibrates) {
      seconds_of(contender, spans, 2);
      const double once = seconds_of(contender, spans, 2);
      measured.calls =
          static_cast<std::uint64_t>(std::clamp(round_seconds / once, 1.0, most_calls));
    }
    measured.seconds.push_back(seconds_of(contender, spans, measured.calls));
  }

  /// The time of a call on the slowest rank.
  double seconds_of(const Contender& contender, const Spans& spans, std::uint64_t calls) {
    comm_.barrier();
    train::Lap lap;
    for (std::uint64_t i = 0; i < calls; ++i) contender.run(spans);
    double seconds = lap.take() / static_cast<double>(calls);
    comm_.all_reduce(std::span(&seconds, 1), comm::Op::max);
    return seconds;
  }

  const Operation& operation_;
  const CollectiveSweep& sweep_;
  FlightRecorder& recorder_;
  comm::Communicator& comm_;
  std::size_t rank_;
  std::size_t ranks_;
  std::vector<AlignedBuffer<float>> send_;
  std::vector<AlignedBuffer<float>> receive_;
};

/// A line of the table: a backend at one size, out of place and in place.
struct BackendLine {
  std::string backend;
  const CallTimes* out = nullptr;
  const CallTimes* in = nullptr;
  std::optional<double> of_mpi;  ///< its time over the best of MPI's own

  double best() const {
    if (out == nullptr || in == nullptr) return (out != nullptr ? out : in)->median;
    return std::min(out->median, in->median);
  }
};

std::vector<BackendLine> lines_of(const std::vector<Contender>& contenders,
                                  const std::vector<CallTimes>& measured, bool has_mpi) {
  std::vector<BackendLine> lines;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (lines.empty() || lines.back().backend != contenders[i].name) {
      lines.emplace_back().backend = contenders[i].name;
    }
    (contenders[i].is_in_place ? lines.back().in : lines.back().out) = &measured[i];
  }
  if (has_mpi) {
    for (BackendLine& line : lines) {
      if (&line != &lines.back()) line.of_mpi = line.best() / lines.back().best();
    }
  }
  return lines;
}

struct Bandwidth {
  double algorithm;  ///< bytes of the buffer per second
  double bus;        ///< bytes per second of the wires, as nccl-tests has it
};

Bandwidth bandwidth_of(const Operation& operation, std::size_t count, double ranks,
                       const CallTimes& measured) {
  const double algorithm = static_cast<double>(count * sizeof(float)) / measured.median;
  return {algorithm, algorithm * operation.bus_factor(ranks)};
}

nlohmann::ordered_json json_of(const Operation& operation, std::size_t count, double ranks,
                               const CallTimes* measured) {
  if (measured == nullptr) return nullptr;
  const Bandwidth bandwidth = bandwidth_of(operation, count, ranks, *measured);
  return {{"seconds", measured->median},
          {"algbw", bandwidth.algorithm},
          {"busbw", bandwidth.bus},
          {"wrong", measured->wrong}};
}

void print_heading(const Operation& operation) {
  fmt::print(
      "\n# {}\n#{:>10} {:>11} {:>6} {:>6}  {:<14}{:>36} {:>36}\n"
      "#{:>10} {:>11} {:>6} {:>6}  {:<14}",
      operation.name, "", "", "", "", "", "out of place", "in place", "size", "count", "type",
      "redop", "backend");
  for (int i = 0; i < 2; ++i) {
    fmt::print(" {:>10} {:>8} {:>8} {:>7}", "time", "algbw", "busbw", "#wrong");
  }
  fmt::print(" {:>7}\n#{:>10} {:>11} {:>6} {:>6}  {:<14}", "of MPI", "(B)", "(elements)", "", "",
             "");
  for (int i = 0; i < 2; ++i) {
    fmt::print(" {:>10} {:>8} {:>8} {:>7}", "(us)", "(GB/s)", "(GB/s)", "");
  }
  fmt::print("\n");
}

void print_line(const Operation& operation, const CollectiveSweep& sweep, std::size_t count,
                double ranks, const BackendLine& line) {
  const bool reduces = operation.call == MpiCall::all_reduce;
  fmt::print(" {:>10} {:>11} {:>6} {:>6}  {:<14}", count * sizeof(float), count, "float",
             reduces ? sweep.redop : "none", line.backend);
  for (const CallTimes* measured : {line.out, line.in}) {
    if (measured == nullptr) {
      fmt::print(" {:>10} {:>8} {:>8} {:>7}", "-", "-", "-", "-");
      continue;
    }
    const Bandwidth bandwidth = bandwidth_of(operation, count, ranks, *measured);
    fmt::print(" {:>10.2f} {:>8.2f} {:>8.2f} {:>7}", 1e6 * measured->median,
               1e-9 * bandwidth.algorithm, 1e-9 * bandwidth.bus, measured->wrong);
  }
  fmt::print(" {:>7}\n", line.of_mpi ? fmt::format("{:.2f}", *line.of_mpi) : "");
}

nlohmann::ordered_json json_of(const Operation& operation, const CollectiveSweep& sweep,
                               std::size_t count, double ranks, const BackendLine& line) {
  const bool reduces = operation.call == MpiCall::all_reduce;
  return {{"operation", operation.name},
          {"backend", line.backend},
          {"bytes", count * sizeof(float)},
          {"count", count},
          {"type", "float"},
          {"redop", reduces ? sweep.redop : "none"},
          {"out_of_place", json_of(operation, count, ranks, line.out)},
          {"in_place", json_of(operation, count, ranks, line.in)},
          {"of_mpi", line.of_mpi ? nlohmann::ordered_json(*line.of_mpi) : nullptr}};
}

/// Measures all and prints the table, or appends to `results`. Returns the number of wrong
/// elements. Collective.
std::uint64_t race_all(const CollectiveSweep& sweep, const Backends& backends,
                       comm::Communicator& comm, FlightRecorder& recorder,
                       nlohmann::ordered_json& results) {
  const auto ranks = static_cast<double>(comm.size());
  const bool prints = comm.rank() == 0 && !sweep.json;
  std::uint64_t wrong = 0;
  for (const Operation* operation : sweep.operations) {
    Race race(*operation, sweep, backends, recorder, comm);
    if (prints) print_heading(*operation);
    for (const std::size_t count : sweep.counts) {
      const auto measured = race.at(count);
      for (const CallTimes& one : measured) wrong += one.wrong;
      for (const BackendLine& line : lines_of(race.contenders, measured, backends.has_mpi)) {
        if (prints) print_line(*operation, sweep, count, ranks, line);
        if (sweep.json) results.push_back(json_of(*operation, sweep, count, ranks, line));
      }
    }
  }
  return wrong;
}

}  // namespace

Syntax bench_collectives_syntax() {
  Syntax syntax;
  syntax.command = "lockstep bench collectives";
  syntax.does =
      "Measures collectives between the ranks of this job, beside those of MPI itself, in the "
      "columns of nccl-tests.";
  syntax.usage = "[flags]";
  syntax.example = "mpirun -n 2 lockstep bench collectives --operation all_reduce";
  syntax.operand = "operand";
  syntax.operands = 0;
  syntax.over_mpi = true;
  syntax.settings = {"ranks", "timeout"};
  syntax.flags = {
      {"operation", "all|NAME,...", joined(operations, ", ", &Operation::name), "all"},
      {"backend", "all|threads|shared|mpi|tcp|NAME,...",
       "all: shared, mpi and tcp under a launcher, else threads", "all"},
      {"redop", "sum|min|max", "of all_reduce", "sum"},
      {"min-bytes", "N", "least size of a buffer, such as 1K (1024)", "1K"},
      {"max-bytes", "N", "greatest size of a buffer, such as 64M", "64M"},
      {"factor", "N", "each size is N times the one before", "4"},
      {"rounds", "N", "rounds to run: every backend once in each; times are medians", "7"},
      {"private-memory", "", "buffers that peers cannot read in place, as of a plain program"},
      {"json", "", "print one line of JSON instead"}};
  return syntax;
}

void bench_collectives(const Arguments& arguments, const RunConfig& config,
                       comm::Communicator& comm) {
  Recording recording(config, comm);
  CollectiveSweep sweep;
  comm::together(comm, [&] { sweep = sweep_of(arguments, comm); });
  if (comm.size() > 1) launching::warn_of_problems(comm);
  const Backends backends = backends_of(sweep, comm);
  const std::string where = ranks_text(comm);
  const bool is_root = comm.rank() == 0;
  if (is_root && !sweep.json) {
    fmt::print(
        "# lockstep {}: {}; medians of {}, of the slowest rank's time\n"
        "# of MPI: time over the least of MPI's own; buffers {}\n",
        version, where, counted(sweep.rounds, "round"),
        sweep.has_private_memory ? "in ordinary memory"
                                 : "in memory that peers can read, but MPI's in ordinary memory");
  }
  auto results = nlohmann::ordered_json::array();
  const std::uint64_t wrong = race_all(sweep, backends, comm, recording.recorder(), results);
  if (is_root && sweep.json) {
    const nlohmann::ordered_json json = {{"version", version},
                                         {"ranks", comm.size()},
                                         {"rounds", sweep.rounds},
                                         {"private_memory", sweep.has_private_memory},
                                         {"results", std::move(results)}};
    fmt::print("{}\n", json.dump());
  }
  if (wrong == 0) return;
  throw comm::AgreedError(ExitCode::invariant, counted(wrong, "element") + " wrong",
                          "see the column #wrong");
}

}  // namespace lockstep::apps

#include "apps/ranks.hpp"

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <optional>

#include "collectives/agreement.hpp"
#include "collectives/launcher.hpp"
#include "collectives/self_communicator.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/process.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/world.hpp"

namespace lockstep::apps {
namespace {

/// Throws comm::AgreedError (2) on every rank where one cannot read its words, or where they
/// differ. Collective.
train::RunConfig agreed_config(const Syntax& syntax, const Arguments& arguments,
                               comm::Communicator& comm) {
  std::string text;
  const std::string run_file = syntax.run_file ? arguments.operand : "";
  comm::together(comm, [&] {
    if (comm.rank() == 0) text = read_run_file(run_file);
  });
  text = comm::broadcast_text(comm, text);
  train::RunConfig config;
  comm::together(comm, [&] {
    train::apply_run_file(config, run_file, text);
    for (const auto& [key, value] : arguments.settings) {
      train::set_value(config, "--" + key, key, value);
    }
  });
  auto mine = train::key_values(config);
  mine.emplace_back("the " + syntax.operand, arguments.operand);
  for (const auto& flag : syntax.flags) {
    const bool given = arguments.given(flag.name);
    mine.emplace_back("--" + flag.name,
                      given ? "given " + arguments.value(flag.name, "") : "not given");
  }
  mine.emplace_back("the lockstep binary", to_hex(executable_hash()));
  comm::require_equal(comm, "the configuration", mine,
                      "start all ranks with the same flags, " + syntax.operand + " and binary");
  return config;
}

/// Settings that contradict the way this process was started; the same on every rank.
void require_fitting_launch(const train::RunConfig& config, const comm::Communicator& comm) {
  const bool asks_for_threads = config.backend == "threads" || config.ranks != 1;
  if (!asks_for_threads) return;
  throw comm::AgreedError(
      ExitCode::usage,
      fmt::format("ranks as threads (--ranks, --backend threads) under a launcher, which started "
                  "{}",
                  counted(static_cast<std::uint64_t>(comm.size()), "rank")),
      "leave --ranks out (or say --ranks 1, where a run file has more): the launcher says how many "
      "there are; or start without it");
}

/// As processes without a launcher there is one rank, whatever was asked for.
void require_one_rank(const train::RunConfig& config) {
  if (config.ranks == 1) return;
  throw ConfigError(
      fmt::format("backend {} with ranks = {}, but no launcher", config.backend, config.ranks),
      fmt::format("start it with `mpirun -n {}`, or leave --backend out to use threads",
                  config.ranks));
}

}  // namespace

int run_on_ranks(const Syntax& syntax, const std::vector<std::string>& words,
                 const RankCommand& command) {
  const auto launch = comm::detect_launcher();
  Arguments arguments;
  std::exception_ptr parse_error;
  try {
    arguments = parse_arguments(syntax, words);
  } catch (const ConfigError&) {
    parse_error = std::current_exception();
  }
  if (arguments.help) {
    if (!launch || launch->rank == 0) fmt::print("{}", help_text(syntax));
    return static_cast<int>(ExitCode::success);
  }
  if (launch::is_rank(launch)) {
    return launch::run_over_mpi(launch, [&](comm::MpiCommunicator& mpi) {
      comm::together(mpi, [&] {
        if (parse_error) std::rethrow_exception(parse_error);
      });
      const auto config = agreed_config(syntax, arguments, mpi);
      require_fitting_launch(config, mpi);
      const auto shared = launch::share_nodes(config.backend, mpi);
      command(arguments, config, shared ? *shared : mpi);
    });
  }
  if (parse_error) std::rethrow_exception(parse_error);
  comm::SelfCommunicator self;
  const auto config = agreed_config(syntax, arguments, self);
  if (!arguments.given("ranks")) launch::require_no_batch_shell(launch, syntax.command);
  if (config.backend == "mpi" || config.backend == "shared") {
    require_one_rank(config);
    return launch::run_over_mpi(std::nullopt, [&](comm::MpiCommunicator& mpi) {
      const auto shared = launch::share_nodes(config.backend, mpi);
      command(arguments, config, shared ? *shared : mpi);
    });
  }
  launch::run_over_threads(config.ranks,
                           [&](comm::Communicator& comm) { command(arguments, config, comm); });
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps

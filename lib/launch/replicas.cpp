#include "lib/launch/replicas.hpp"

#include <cstdio>
#include <optional>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/failure.hpp"

namespace lockstep {
namespace {

/// N of "--ranks N" or "--ranks=N"; nothing where there are no words.
std::optional<std::uint64_t> ranks_of(const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  const std::string flag = "--ranks";
  const bool joined = words.size() == 1 && words[0].starts_with(flag + "=");
  if (!joined && (words.size() != 2 || words[0] != flag)) {
    throw ConfigError("unknown words, from '" + words[0] + "' on",
                      "this program takes --ranks N alone, for N ranks as threads");
  }
  try {
    return parse_count(joined ? words[0].substr(flag.size() + 1) : words[1], 1);
  } catch (const ConfigError& error) {
    throw ConfigError(flag + ": " + error.what());
  }
}

int run_over_launcher(const std::optional<comm::Launch>& launch, const RankBody& body) {
  return launch::run_over_mpi(launch, [&](comm::MpiCommunicator& mpi) {
    const auto shared = launch::share_nodes("auto", mpi);
    body(shared ? *shared : static_cast<comm::Communicator&>(mpi));
  });
}

void require_written_output() {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written) throw OutputError("stdout: cannot be written");
}

/// `work(launch)` gives the exit code.
template <class Work>
int run_main(Work work) noexcept {
  try {
    const int code = work(comm::detect_launcher());
    require_written_output();
    return code;
  } catch (const std::exception& error) {
    launch::print_error(launch::what_of(error));
    return launch::exit_code(error);
  }
}

}  // namespace

int run_replicas(std::uint64_t threads, const RankBody& body) noexcept {
  return run_main([&](const std::optional<comm::Launch>& launch) {
    if (launch::is_rank(launch)) return run_over_launcher(launch, body);
    launch::run_over_threads(threads, body);
    return static_cast<int>(ExitCode::success);
  });
}

int run_replicas(int argc, char** argv, const RankBody& body) noexcept {
  return run_main([&](const std::optional<comm::Launch>& launch) {
    const auto ranks = [&] { return ranks_of({argv + 1, argv + argc}); };
    if (launch::is_rank(launch)) {
      return run_over_launcher(launch, [&](comm::Communicator& comm) {
        comm::together(comm, [&] {
          if (!ranks()) return;
          throw ConfigError("--ranks under a launcher, which started " +
                                counted(static_cast<std::uint64_t>(comm.size()), "rank"),
                            "leave it out");
        });
        body(comm);
      });
    }
    const auto threads = ranks();
    if (!threads) launch::require_no_batch_shell(launch, argv[0]);
    launch::run_over_threads(threads.value_or(1), body);
    return static_cast<int>(ExitCode::success);
  });
}

}  // namespace lockstep

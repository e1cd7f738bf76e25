#include "apps/recording.hpp"

#include <set>
#include <string>
#include <system_error>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/launch/launch.hpp"

namespace lockstep::apps {

Recording::Recording(const RunConfig& config, comm::Communicator& comm)
    : recorder_(comm.world_rank(comm.rank()), comm.size()) {
  comm::together(comm, [&] {
    watchdog_.emplace(recorder_, comm.world_rank(comm.rank()), static_cast<double>(config.timeout),
                      launching::is_rank(comm::detect_launcher()), config.survive);
  });
}

void Recording::write_to(const std::filesystem::path& run, const comm::Communicator& comm) {
  const auto folder = run / "flight";
  if (comm.rank() == 0) {
    std::set<std::string> names;
    for (const int rank : comm.world_ranks()) names.insert(flight_name(rank));
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (names.count(entry.path().filename().string()) != 0) continue;
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  if (is_written_) return;
  try {
    recorder_.write_to(folder / flight_name(comm.world_rank(comm.rank())));
  } catch (const OutputError&) {  // a host that does not share the folder records in memory
  }
  is_written_ = true;
  watchdog_->read_recorders_in(folder);
}

std::vector<std::uint64_t> bytes_read(const data::Source& train, comm::Communicator& comm) {
  std::vector<std::uint64_t> bytes(static_cast<std::size_t>(comm.size()));
  bytes[static_cast<std::size_t>(comm.rank())] = train.bytes_read();
  comm.all_gather(std::span(bytes));
  return bytes;
}

}  // namespace lockstep::apps

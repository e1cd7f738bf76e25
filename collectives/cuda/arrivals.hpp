// How far each rank of a host has come, readable by the others without its help.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/shared_region.hpp"

namespace lockstep::comm {

/// Counts, one a rank, on memory that the ranks of a host share: threads and processes alike.
///
/// Ranks of other hosts are not seen. Where the ranks of a host cannot share memory, nobody's count
/// is seen and lagging() says so.
class Arrivals {
 public:
  /// Ranks    collective over `host`.
  explicit Arrivals(Communicator& host);
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// Says that this rank has left.
  ~Arrivals();

  /// This rank has come to its `count`-th wait. Local.
  void come(std::uint64_t count) noexcept;

  /// What a rank that waits in vain knows: "rank 3 on h1 lags: it came to wait 11, this is 12".
  /// Local.
  std::string lagging(std::uint64_t count) const;

 private:
  struct Entry;
  Entry& entry(std::size_t local_rank) const noexcept;
  bool map(Communicator& host, const std::string& leaders_address);

  std::optional<SharedRegion> region_;  // none where it cannot be shared
  std::string host_;
  std::vector<int> ranks_;  // of this host, as messages call them
  std::size_t mine_ = 0;    // this rank's place among them
  bool alone_ = true;       // no other host
};

}  // namespace lockstep::comm

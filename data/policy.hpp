// Sharding policies: how the records of a data set are dealt to workers, and which one is meant.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::data {

// clang-format off
/// How records are dealt to workers. A worker is a rank.
enum class ShardPolicy {
  automatic,  ///< FILE where there are files for all workers; see choose_policy()
  file,       ///< whole files, dealt round-robin: worker w of N reads files w, w + N, ...
  data,       ///< a piece of every global batch for each worker
  off,        ///< every worker reads all records
};

/// How a worker's batch is cut into pieces (rebatch.hpp).
enum class Rebatch { ceil, balanced };
// clang-format on

/// "auto", "file", "data", "off"; "ceil", "balanced": what settings and reports say.
const char* name_of(ShardPolicy policy) noexcept;
const char* name_of(Rebatch rule) noexcept;

/// Their inverse. Throws ConfigError for other words.
ShardPolicy policy_named(std::string_view name);
Rebatch rebatch_named(std::string_view name);

/// The policy that a plan follows, and what to tell about it.
struct PolicyChoice {
  ShardPolicy policy = ShardPolicy::data;  ///< never automatic
  std::string reason;                      ///< what it means here, in a sentence's words
  std::string warning;                     ///< to be shown once; empty: none
};

/// What `asked` means for data in `files` files (0: it does not come from files).
///
/// AUTO means FILE where there are at least as many files as workers, and DATA, with a warning,
/// where the data does not come from files. OFF warns. With one worker sharding does nothing:
/// nothing is refused and nothing warned of.
///
/// Errors   throws ConfigError for no workers; for AUTO and FILE with fewer files than workers;
///          for FILE where the data does not come from files.
PolicyChoice choose_policy(ShardPolicy asked, std::uint64_t files, std::uint64_t workers);

/// Throws ConfigError unless 0 <= worker < workers.
void require_worker(std::uint64_t worker, std::uint64_t workers);

}  // namespace lockstep::data

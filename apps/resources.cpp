#include "apps/resources.hpp"

#include <spdlog/fmt/fmt.h>

#include <string>

#include "lib/base/errors.hpp"
#include "lib/base/process.hpp"
#include "lib/base/text.hpp"
#include "lib/launch/launch.hpp"
#include "lib/train/replica.hpp"

namespace lockstep::apps {
namespace {

double weights_a_rank(const nn::NetworkShape& shape, std::uint64_t model_ranks) {
  const auto sizes = shape.sizes();
  double weights = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool shared_out = std::holds_alternative<nn::Dense>(shape.layers[i]);
    weights += sizes[i].weights / (shared_out ? static_cast<double>(model_ranks) : 1);
  }
  return weights;
}

/// In double, so that no width overflows it. Rows count as if no layer were shared out.
double replica_bytes(const nn::NetworkShape& shape, const Buffers& buffers) {
  // Weights, gradients and Adam's two moments.
  const double blocks = 4 + static_cast<double>(buffers.sum_blocks);
  return sizeof(float) *
         (blocks * weights_a_rank(shape, buffers.model_ranks) +
          static_cast<double>(buffers.rows) * shape.row_values() +
          static_cast<double>(buffers.prefetched_rows) * static_cast<double>(shape.features));
}

}  // namespace

int threads_of(const RunConfig& config, const comm::Communicator& comm) {
  const int own = train::own_cores(comm);
  if (!config.threads) return own;
  constexpr std::uint64_t most = 1024;
  if (*config.threads > most) {
    throw ConfigError("threads: " + std::to_string(*config.threads) + " is more than " +
                      std::to_string(most));
  }
  const int threads = static_cast<int>(*config.threads);
  if (threads > own && comm.rank() == 0) {
    launch::print_warning(
        fmt::format("{} threads a rank on {} core{}: oversubscribed; `mpirun --bind-to none` "
                    "unbinds ranks from their cores",
                    threads, own, own == 1 ? "" : "s"));
  }
  return threads;
}

bool wants_strict(const RunConfig& config, const char* library) {
  const bool canonical = config.reduction == "canonical";
  if (canonical && config.products == "library") {
    throw ConfigError("products library with reduction canonical: " + std::string(library) +
                          " does not promise that rows are the same bits whatever their number",
                      "use --products strict, or --reduction allreduce");
  }
  return config.products == "strict" || (config.products == "auto" && canonical);
}

Simd simd_of(const RunConfig& config) {
  return config.simd == "scalar"   ? Simd::scalar
         : config.simd == "avx2"   ? Simd::avx2
         : config.simd == "avx512" ? Simd::avx512
                                   : Simd::automatic;
}

void require_memory(const nn::NetworkShape& shape, const Buffers& buffers, const comm::Place& place,
                    const char* remedy) {
  const double needed = replica_bytes(shape, buffers) * place.local_ranks;
  const auto there = static_cast<double>(memory_limit_bytes());
  if (needed <= there) return;
  throw ConfigError("layers: " + std::to_string(place.local_ranks) + " replica(s) on " +
                        place.host + " need " + bytes_text(needed) + " of memory; there are " +
                        bytes_text(there),
                    remedy);
}

}  // namespace lockstep::apps

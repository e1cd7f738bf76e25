// How long a step would take on more ranks than it was measured on: a model of latency and
// bandwidth.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::train {

/// A message of b bytes takes latency + b / bandwidth; one leaves a host at a time, and one
/// arrives.
struct Link {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes per second
};

/// Seconds in which `hosts` hosts gather `bytes` bytes, an equal part of each, on all of them: the
/// less of a ring, (H - 1) (latency + bytes / H / bandwidth), and of recursive doubling, ceil(log2
/// H) latency + (1 - 1 / H) bytes / bandwidth, which for other numbers than powers of two is that
/// of the dissemination of Bruck et al. 1997, doi:10.1109/71.642949. Local.
double all_gather_seconds(double hosts, double bytes, const Link& link);

/// Seconds in which each of `hosts` hosts sends `bytes` bytes to every other: H - 1 rounds of a
/// message. Local.
double all_to_all_seconds(double hosts, double bytes, const Link& link);

inline constexpr std::uint64_t max_ranks = std::uint64_t{1} << 20;  ///< of a prediction
inline constexpr std::uint64_t max_batch = std::uint64_t{1} << 40;  ///< examples

/// A step as `lockstep bench step --json` has measured it on one host, with the canonical
/// reduction.
struct MeasuredStep {
  std::string backend = {};  ///< Communicator::backend()
  double ranks = 1;
  double batch = 0;        ///< examples
  double leaf = 1;         ///< examples
  double weights = 0;      ///< of the network
  double exchanged = 0;    ///< values of an example: NetworkShape::exchanged_values()
  bool only_sums = false;  ///< partial sums were exchanged where activations would be fewer bytes
  double data = 0;         ///< seconds of each phase, of a rank
  double rows = 0;         ///< of forward and of dX, which are computed for a rank's own examples
  double slices = 0;       ///< of dW, which is computed for a rank's slice of the weights
  double update = 0;
  double other = 0;
  double copies = 0;     ///< seconds to read or write a byte that another rank of the host has
  double bandwidth = 0;  ///< bytes per second of a rank's memory
};

/// Reads one.
///
/// Errors   throws DataError, with the file and the key that is missing, or no number in its range;
///          for another reduction; for several hosts; for ranks that share a network.
MeasuredStep read_measured_step(const std::filesystem::path& file);

/// The ranks of a prediction.
struct Layout {
  double ranks = 1;
  double ranks_a_host = 1;
  double batch = 0;  ///< examples of the global batch
};

/// Seconds of a step.
struct PredictedStep {
  double compute = 0;        ///< data, forward, backward, update, and what lies between
  double communication = 0;  ///< exchange and publish, within and between hosts
  bool by_activations = true;

  double total() const noexcept { return compute + communication; }
  double share() const noexcept { return communication / total(); }
};

// clang-format off
/// The step of `measured` on other ranks, of which those of a host share memory.
///
/// N ranks of H hosts, B examples in leaves of L, W weights, X exchanged values of an example; a
/// rank has at most r = ceil(ceil(B / L) / N) L examples. Index 0: as measured.
///
///   data                 in proportion to r
///   forward, dX          in proportion to r, at least 4 W / memory bandwidth each: a rank reads all
///                        weights
///   dW                   in proportion to B / N
///   update               in proportion to 1 / N
///   exchange             the activations of all, B X values, if they are at most 2 W (step.hpp)
///                        and the measured step would have had them, too; else sums of each rank, W
///                        values for every other
///   publish              the weights of all, W values
///   within a host        each byte that a rank needs from others, read and written once
///   between hosts        all_gather_seconds(), or all_to_all_seconds() of the ranks' sums
///
/// It leaves out: the additions of partial sums, and that a rank may have several of them; another
/// leaf of other batches (measure at the batch that is asked for); waiting for the slowest rank,
/// contention in the network, overlap of communication and computation, and limits of a host's
/// memory beyond those measured. Local.
// clang-format on
PredictedStep predicted_step(const MeasuredStep& measured, const Layout& layout,
                             const Link& between_hosts);

}  // namespace lockstep::train

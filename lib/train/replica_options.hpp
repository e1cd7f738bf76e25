// Options of a replica, which train::Replica documents.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/collectives/communicator.hpp"
#include "lockstep/nn/initialisers.hpp"
#include "lockstep/nn/loss.hpp"
#include "lockstep/numerics/products.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::data {
class Plan;
}

namespace lockstep::train {

class DeviceReplica;

/// Where a replica computes.
enum class Device { cpu, cuda };

/// How gradients are summed over ranks. canonical: every sum of a step is one fixed expression, by
/// leaves of the global batch (data::PlanOptions::leaf) that are added as a tree
/// (numerics/leaf_tree.hpp), so the weights have the same bits on any number of ranks. allreduce:
/// each rank sums its examples, then the ranks' sums are added; the bits depend on their number.
enum class Reduction { canonical, allreduce };

/// The implementation of matrix products; automatic: strict for canonical, the library's for
/// allreduce.
enum class ProductsChoice { automatic, strict, library };

/// What to do with a step whose loss or gradient is not finite: end training, or leave weights and
/// optimizer state as they are and go on with the next step.
enum class OnNonfinite { stop, skip };

/// The data that canonical ranks exchange; does not affect results.
enum class Exchange {
  automatic,
  /// Ranks all-gather the activations of all rows and their gradients; each computes its slice of
  /// the weight gradients over all leaves. Less data if the batch is small relative to the layers.
  activations,
  /// Ranks sum their own leaves, as far as the tree allows (numerics/leaf_tree.hpp), and exchange
  /// slices of these sums. The data does not grow with the batch, and a rank stores only its own
  /// rows.
  partial_sums,
};

/// How ranks' devices exchange data.
enum class DeviceExchange {
  automatic,  ///< nccl if this build has it and each rank has a device of its own, else staged
  nccl,
  staged,  ///< through host memory, with the ranks' communicator
};

// The words for the values of these options, in their order: those of messages and of flags.

inline constexpr std::array reduction_words = {"canonical", "allreduce"};
inline constexpr std::array exchange_words = {"auto", "activations", "sums"};
inline constexpr std::array products_words = {"auto", "strict", "library"};
inline constexpr std::array nonfinite_words = {"stop", "skip"};

/// Options of a replica. The defaults are those of `lockstep train` but for nccl_timeout and
/// prefetch, so the same data gives the same weights.
///
/// Ranks may differ in simd, zeros, threads and prefetch; in products and device unless the
/// reduction is allreduce; and in micro_batch, unless the mesh has "model", if all have one, or
/// with `exchange = partial_sums` or reduction allreduce. Ranks with a device have the same
/// share_device and device_exchange. All other values must be the same on all ranks; functions are
/// not compared.
struct ReplicaOptions {
  nn::SeedPair seed = {22, 23};  ///< of the initial weights, and of random layers
  /// `lockstep train` rounds the learning rate to float32: a program that wants the weights of its
  /// run does so, too.
  optim::OptimizerOptions optimizer = {.learning_rate = static_cast<double>(0.001F)};
  const nn::Loss<float>* loss = nullptr;  ///< must outlive the replica; null: cross-entropy
  /// Weights of each class in the training loss, which multiply those of examples; the loss is
  /// divided by the sum of the weights. Empty: none.
  std::vector<float> class_weights = {};
  Reduction reduction = Reduction::canonical;
  Exchange exchange = Exchange::automatic;        ///< of the canonical reduction
  std::optional<std::uint64_t> audit_every = {};  ///< audit interval in steps; none: no audits
  std::uint64_t sentinel_steps = 16;  ///< steps in which all weights are compared: Sentinel
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  ProductsChoice products = ProductsChoice::automatic;
  /// bf16 and tf32: see products.hpp. Does not change the plan: for bf16 `lockstep train` sets
  /// data::PlanOptions::max_leaf to data::bf16_leaf.
  Precision precision = Precision::float32;
  Simd simd = Simd::automatic;     ///< of strict products on the CPU
  Zeros zeros = Zeros::automatic;  ///< of strict products on the CPU
  /// make_shared_snapshot() will be called, for ranks that go on without lost ones. Not in a mesh
  /// with "model", on a device, with the all-reduce reduction, or with a plan that depends on the
  /// number of ranks.
  bool keeps_snapshots = false;
  /// Threads of this rank's products, which all its replicas share: the last one that is made sets
  /// them. 0: Communicator::own_cores().
  int threads = 0;
  /// Gradient accumulation: the most examples of a rank that are computed at a time, so that memory
  /// is needed for their activations only; 0: all of its piece of the batch. With strict products
  /// it does not affect results. Not less than a leaf, not on a device, and not with a layer that
  /// sums over the batch.
  std::size_t micro_batch = 0;
  std::size_t prefetch = 0;  ///< batches that Replica::prefetch() reads ahead; 0 without it

  Device device = Device::cpu;
  bool share_device = false;  ///< ranks of a host may share a device; not on the CPU
  DeviceExchange device_exchange = DeviceExchange::automatic;  ///< not staged or nccl on the CPU
  /// The most time that NCCL may take to start and to end an exchange (else CommError, 86), from a
  /// second on. `lockstep train` gives five times its `--timeout` and a minute, so that its
  /// watchdog finds a hang first.
  std::chrono::seconds nccl_timeout = std::chrono::minutes(2);
  /// The ranks with a device, if the others compute on the CPU; null: all ranks.
  comm::Communicator* devices = nullptr;

  /// Functions that wrap the products and the device replica: for tests that inject faults.
  std::function<std::unique_ptr<Products<float>>(std::unique_ptr<Products<float>>)> wrap_products =
      {};
  std::function<std::unique_ptr<DeviceReplica>(std::unique_ptr<DeviceReplica>)> wrap_device = {};
};

/// Throws unless a replica can train on `plan` with these options, where `model_ranks` ranks share
/// its network. Replica's constructor calls it, too.
///
/// Errors   throws ConfigError for options that do not go together, with the plan or with such
///          ranks, and for a plan without a step; DataError where the plan has no records.
/// Ranks    local.
void require_trainable(const data::Plan& plan, const ReplicaOptions& options,
                       std::uint64_t model_ranks = 1);

}  // namespace lockstep::train

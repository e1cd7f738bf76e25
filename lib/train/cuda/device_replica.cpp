#include "lockstep/collectives/agreement.hpp"
#include "lockstep/collectives/cuda/device.hpp"
#include "lockstep/train/cuda/device_step.hpp"
#include "lockstep/train/device.hpp"
#include "lockstep/train/replica_parts.hpp"

namespace lockstep::train {
namespace {

std::unique_ptr<DeviceProducts> make_products(const ReplicaOptions& options, std::size_t rows) {
  return is_strict(options, "cuBLAS") ? make_strict_device_products(rows)
                                      : make_library_device_products(rows, options.precision);
}

void require_device_loss(const nn::Loss<float>& loss) {
  if (nn::formula_of(loss)) return;
  throw ConfigError("device cuda: the loss '" + std::string(loss.name()) +
                        "' is not built in, and others have no device code",
                    "use `device=cpu`, or a built-in loss");
}

/// Has the same result on every rank.
void require_nccl(const comm::DeviceOfRank& device) {
  if (!comm::nccl_built_in()) {
    throw comm::AgreedError(ExitCode::usage, "backend nccl: this build has no NCCL",
                            "leave `backend` out, or build with -DLOCKSTEP_NCCL=ON");
  }
  if (device.shared) {
    throw comm::AgreedError(ExitCode::usage,
                            "backend nccl: ranks share a device, and NCCL serves one rank on each",
                            "leave `backend` out to exchange through the host's memory");
  }
}

/// Returns null with one rank, unless NCCL was requested. NCCL needs a device on every rank.
std::unique_ptr<comm::DeviceCommunicator> make_exchange(const ReplicaOptions& options,
                                                        const comm::DeviceOfRank& device,
                                                        const cuda::Stream& stream,
                                                        comm::Communicator& comm) {
  const bool asked = options.device_exchange == DeviceExchange::nccl;
  if (asked) require_nccl(device);
  if (!asked && comm.size() == 1) return nullptr;
  const bool can_nccl = comm::nccl_built_in() && !device.shared && options.devices == nullptr;
  if (asked || (options.device_exchange == DeviceExchange::automatic && can_nccl)) {
    return comm::make_nccl_communicator(comm, stream, options.nccl_timeout);
  }
  return comm::make_staged_communicator(comm, stream);
}

class CudaReplica final : public DeviceReplica {
 public:
  /// The device must be selected before. Local.
  CudaReplica(nn::Network<float>& network, const ReplicaOptions& options, std::size_t rows,
              const comm::DeviceOfRank& device, comm::Communicator& comm)
      : host_(network),
        comm_(comm),
        device_text_(device.name + " (" + device.bus_id + ")"),
        shared_(device.shared),
        products_(make_products(options, rows)),
        network_(network, rows, *products_, compute_),
        batches_(network_, rows),
        inputs_(rows * network.shape().features),
        logits_(rows * network.shape().classes) {}

  /// Collective.
  void connect(const ReplicaOptions& options, const comm::DeviceOfRank& device) {
    device_ = make_exchange(options, device, exchange_, comm_);
    if (device_) exchange_text_ = device_->backend();
  }

  const nn::NetworkShape& shape() const noexcept override { return host_.shape(); }

  Matrix<float> inputs(std::size_t rows) override {
    return {inputs_.data(), rows, shape().features};
  }

  Matrix<const float> forward(std::size_t rows) override {
    cuda::copy(std::span<const float>(inputs(rows).flat()), network_.inputs(rows).flat(), compute_);
    const auto logits = network_.forward(rows, compute_);
    cuda::copy(logits.flat(), logits_.span(), compute_);
    compute_.synchronise();
    return {logits_.data(), rows, shape().classes};
  }

  std::unique_ptr<Step> make_step(bool canonical, const StepOptions& options,
                                  Sentinel& sentinel) override {
    require_device_loss(host_.loss_function());
    const DeviceParts parts = {network_, batches_, comm_, device_.get(), compute_, exchange_};
    return canonical ? make_device_canonical_step(parts, options, sentinel)
                     : make_device_allreduce_step(parts, options, sentinel);
  }

  std::pmr::memory_resource& staging_memory() noexcept override { return cuda::pinned_memory(); }
  void stage(const data::StagedBatch& staged, float divisor) override {
    batches_.stage(staged, divisor);
  }
  void drop_staged() noexcept override { batches_.drop(); }
  std::uint64_t hash_of_weights(Range slice) override { return network_.hash(slice, compute_); }
  void copy_weights_to_host(Range slice) override {
    network_.copy_weights_to_host(slice, compute_);
  }
  void copy_weights_from_host() override { network_.copy_weights_from_host(compute_); }
  Matrix<const float> copy_activation(std::size_t i, std::size_t rows) override {
    return copy_to_host(network_.activation(i, {0, rows}));
  }
  Matrix<const float> copy_gradient(std::size_t i, std::size_t rows) override {
    return copy_to_host(network_.gradient(i, {0, rows}));
  }

  const std::string& device() const noexcept override { return device_text_; }
  const std::string& exchange() const noexcept override { return exchange_text_; }
  const char* products() const noexcept override { return products_->name(); }
  bool shares_device() const noexcept override { return shared_; }

 private:
  Matrix<const float> copy_to_host(Matrix<const float> values) {
    copied_.resize(values.flat().size());
    cuda::copy(values.flat(), std::span(copied_), compute_);
    compute_.synchronise();
    return {copied_.data(), values.rows, values.cols};
  }

  nn::Network<float>& host_;
  comm::Communicator& comm_;
  std::string device_text_;
  std::string exchange_text_;
  bool shared_;
  cuda::Stream compute_;
  cuda::Stream exchange_;
  std::unique_ptr<DeviceProducts> products_;
  nn::DeviceNetwork network_;
  DeviceBatches batches_;
  cuda::PinnedBuffer<float> inputs_;  // of evaluation and prediction
  cuda::PinnedBuffer<float> logits_;
  std::vector<float> copied_;
  std::unique_ptr<comm::DeviceCommunicator> device_;
};

}  // namespace

std::unique_ptr<DeviceReplica> make_device_replica(nn::Network<float>& network,
                                                   const ReplicaOptions& options, std::size_t rows,
                                                   comm::Communicator& comm) {
  comm::Communicator& takers = options.devices != nullptr ? *options.devices : comm;
  const comm::DeviceOfRank device = comm::choose_device(takers, options.share_device);
  std::unique_ptr<CudaReplica> replica;
  comm::together(takers, [&] {
    replica = std::make_unique<CudaReplica>(network, options, rows, device, comm);
  });
  replica->connect(options, device);
  return replica;
}

}  // namespace lockstep::train

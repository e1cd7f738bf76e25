#include "apps/device.hpp"

#include <spdlog/fmt/fmt.h>

#include "apps/resources.hpp"
#include "lib/base/errors.hpp"
#include "lib/launch/launch.hpp"
#include "lib/train/tensor_parallel.hpp"

namespace lockstep::apps {
namespace {

/// What a processor cannot honour.
void require_fits_processor(const RunConfig& config) {
  const auto refuse = [](const std::string& setting) {
    throw ConfigError(setting + " with device cpu", "use --device cuda, or leave it out");
  };
  if (config.precision != "float32") refuse("precision " + config.precision);
  if (config.backend == "nccl") refuse("backend nccl");
  if (config.share_device) refuse("share-device");
}

/// What replicas on devices cannot honour.
void require_fits_device(const RunConfig& config) {
  const auto refuse = [](const std::string& setting, const char* remedy) {
    throw ConfigError(setting + " with device cuda", remedy);
  };
  if (config.simd != "auto") refuse("simd " + config.simd, "leave --simd out");
  if (config.threads) refuse("threads", "leave --threads out");
  if (config.exchange == "activations") {
    refuse("exchange activations", "use --exchange sums, or leave it out");
  }
  if (config.audit_every) refuse("audit-every", "use --device cpu, or leave the audit out");
}

}  // namespace

std::optional<train::DeviceOptions> device_options(const RunConfig& config, std::uint64_t ranks) {
  if (config.device != "cuda") {
    require_fits_processor(config);
    return std::nullopt;
  }
  require_fits_device(config);
  if (mesh_of(config, ranks).model > 1) {
    throw ConfigError("mesh " + config.mesh + " with device cuda: a device holds whole layers",
                      "use a mesh of batch alone, or --device cpu");
  }
  train::DeviceOptions options;
  options.strict = wants_strict(config, "cuBLAS");
  if (options.strict && config.precision != "float32") {
    throw ConfigError("precision " + config.precision + " with products strict",
                      "use --reduction allreduce --products library, or --precision float32");
  }
  options.precision = config.precision == "tf32"   ? Precision::tf32
                      : config.precision == "bf16" ? Precision::bf16
                                                   : Precision::float32;
  options.share = config.share_device;
  options.exchange = config.backend == "nccl"   ? train::DeviceExchange::nccl
                     : config.backend == "auto" ? train::DeviceExchange::automatic
                                                : train::DeviceExchange::staged;
  return options;
}

void warn_of_staging(const train::DeviceReplica& replica, const comm::Communicator& comm) {
  if (comm.rank() != 0 || replica.exchange().rfind("staged", 0) != 0) return;
  launch::print_warning(fmt::format(
      "devices exchange through memory of the host ({}){}: each step copies gradients and weights "
      "out and in, at the speed of PCI Express",
      replica.exchange(), replica.shares_device() ? ", for ranks share a device" : ""));
}

}  // namespace lockstep::apps

// Which options of a replica go together, and what all ranks must have the same.
#include "lockstep/train/replica_options.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>

#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/replica_parts.hpp"

namespace lockstep::train {

bool is_canonical(const ReplicaOptions& options) {
  return options.reduction == Reduction::canonical;
}

bool is_strict(const ReplicaOptions& options, const char* library) {
  const bool canonical = is_canonical(options);
  if (canonical && options.products == ProductsChoice::library) {
    throw ConfigError("products library with reduction canonical: " + std::string(library) +
                          " does not promise that rows are the same bits whatever their number",
                      "use `products=strict`, or `reduction=allreduce`");
  }
  return options.products == ProductsChoice::strict ||
         (options.products == ProductsChoice::automatic && canonical);
}

namespace {

template <class Enum, std::size_t N>
std::string word_for(const std::array<const char*, N>& words, Enum value) {
  return words.at(static_cast<std::size_t>(value));
}

std::string mesh_text(std::uint64_t model_ranks) {
  return "mesh model=" + std::to_string(model_ranks);
}

/// Throws if an option is not supported on the CPU.
void require_fits_processor(const ReplicaOptions& options, std::uint64_t model_ranks) {
  const auto refuse = [](const std::string& option) {
    throw ConfigError(option + " with device cpu", "use `device=cuda`, or leave it out");
  };
  if (options.precision == Precision::tf32) refuse("precision tf32");
  if (options.device_exchange == DeviceExchange::nccl) refuse("backend nccl");
  if (options.device_exchange == DeviceExchange::staged) refuse("device_exchange staged");
  if (options.share_device) refuse("`share_device`");
  if (options.simd != Simd::automatic && !is_strict(options, library_products_name())) {
    throw ConfigError("simd " + word_for(simd_words, options.simd) + " with products library: " +
                          library_products_name() + " chooses for itself",
                      "use `products=strict`");
  }
  if (options.precision != Precision::bf16) return;
  if (!is_strict(options, library_products_name())) {
    throw ConfigError("precision bf16 with products library and device cpu",
                      "use `products=strict`");
  }
  if (model_ranks > 1) {
    throw ConfigError(
        mesh_text(model_ranks) + " with precision bf16: chunks of 32 inputs stay together",
        "use a mesh of batch alone, or `precision=float32`");
  }
}

/// Throws if an option is not supported on a device.
void require_fits_device(const ReplicaOptions& options, std::uint64_t model_ranks) {
  const auto refuse = [](const std::string& option, const char* remedy) {
    throw ConfigError(option + " with device cuda", remedy);
  };
  if (options.simd != Simd::automatic) {
    refuse("simd " + word_for(simd_words, options.simd), "leave `simd` out");
  }
  if (options.threads > 0) refuse("threads", "leave `threads` out");
  if (options.exchange == Exchange::activations) {
    refuse("exchange activations", "use `exchange=sums`, or leave it out");
  }
  if (options.micro_batch > 0) refuse("`micro_batch`", "use `device=cpu`, or leave it out");
  if (options.audit_every) refuse("`audit_every`", "use `device=cpu`, or leave the audit out");
  if (options.devices != nullptr && options.device_exchange == DeviceExchange::nccl) {
    throw ConfigError("device_exchange nccl with `devices`: NCCL needs a device on every rank",
                      "leave `device_exchange` out");
  }
  if (model_ranks > 1) {
    throw ConfigError(mesh_text(model_ranks) + " with device cuda: a device holds whole layers",
                      "use a mesh of batch alone, or `device=cpu`");
  }
  if (is_strict(options, "cuBLAS") && options.precision != Precision::float32) {
    throw ConfigError("precision " + word_for(precision_words, options.precision) +
                          " with products strict and device cuda",
                      "use `reduction=allreduce` with `products=library`, or `precision=float32`");
  }
}

/// Throws if an option is supported only by the canonical reduction.
void require_fits_allreduce(const ReplicaOptions& options, std::uint64_t model_ranks) {
  const char* const remedy = "use `reduction=canonical`, or leave it out";
  if (model_ranks > 1) {
    throw ConfigError(
        mesh_text(model_ranks) +
            " with reduction allreduce: its sums have no fixed order, so the ranks of model would "
            "drift apart in what they hold in common",
        remedy);
  }
  if (options.audit_every) {
    throw ConfigError(
        "`audit_every` with reduction allreduce: its ranks see their own examples alone", remedy);
  }
  if (options.exchange != Exchange::automatic) {
    throw ConfigError(
        "exchange " + word_for(exchange_words, options.exchange) + " with reduction allreduce",
        remedy);
  }
}

}  // namespace

void require_consistent(const ReplicaOptions& options, std::uint64_t model_ranks) {
  constexpr std::chrono::seconds max_timeout{6'000'000'000};  // nanoseconds in 64 bits
  if (options.nccl_timeout < std::chrono::seconds(1) || options.nccl_timeout > max_timeout) {
    throw ConfigError(
        "`nccl_timeout` of " + std::to_string(options.nccl_timeout.count()) + " seconds",
        "give 1 to " + std::to_string(max_timeout.count()));
  }
  if (options.threads < 0) {
    throw ConfigError("`threads=" + std::to_string(options.threads) + "`: below 0",
                      "give their number, or 0 for all cores of the rank");
  }
  if (options.sentinel_steps == 0 || options.audit_every == 0U) {
    throw ConfigError(
        std::string(options.sentinel_steps == 0 ? "`sentinel_steps" : "`audit_every") +
            "=0`: every 0 steps",
        "give at least 1");
  }
  if (options.device == Device::cuda) {
    require_fits_device(options, model_ranks);
  } else {
    require_fits_processor(options, model_ranks);
  }
  if (!is_canonical(options)) require_fits_allreduce(options, model_ranks);
  if (options.audit_every && model_ranks > 1) {
    throw ConfigError(
        "`audit_every` with " + mesh_text(model_ranks) + ": an auditor needs whole layers",
        "use a mesh of batch alone, or leave the audit out");
  }
}

namespace {

/// Throws if other ranks could not continue the state of a replica.
void require_survivable(const data::Plan& plan, const ReplicaOptions& options,
                        std::uint64_t model_ranks) {
  const auto refuse = [](const std::string& what) {
    throw ConfigError("`survive` with " + what +
                          ": the ranks that are left could not go on with the same results",
                      "leave `survive` out, and save checkpoints");
  };
  if (model_ranks > 1) refuse(mesh_text(model_ranks));
  if (options.device == Device::cuda) refuse("device cuda");
  if (!is_canonical(options)) refuse("reduction allreduce");
  if (plan.options().policy != data::ShardPolicy::data) refuse("a shard policy of files");
}

}  // namespace

void require_trainable(const data::Plan& plan, const ReplicaOptions& options,
                       std::uint64_t model_ranks) {
  optim::require_valid(options.optimizer);
  if (plan.steps() == 0) {
    if (plan.options().records == 0) {
      throw DataError("a plan without a step: the data set has no examples",
                      "train on a data set with at least one");
    }
    throw ConfigError("a plan without a step: drop_remainder leaves no batch",
                      "use smaller batches, or keep the remainder");
  }
  if (plan.options().balance && !is_canonical(options)) {
    throw ConfigError("balance with reduction allreduce: its sums depend on the examples of ranks",
                      "use `reduction=canonical`, or leave `balance` out");
  }
  require_consistent(options, model_ranks);
  if (options.keeps_snapshots) require_survivable(plan, options, model_ranks);
}

namespace {

std::string text_of(const std::optional<double>& value) {
  return value ? shortest(*value) : "none";
}

void add(const nn::NetworkShape& shape, comm::KeyValues& settings) {
  settings.emplace_back("input", nn::text_of(shape.input));
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    settings.emplace_back("layer " + std::to_string(i + 1),
                          joined(nn::fields_of(shape.layers[i]), ", ", [](const auto& field) {
                            return field.first + " = " + nn::literal_of(field.second);
                          }));
  }
}

void add(const optim::OptimizerOptions& options, comm::KeyValues& settings) {
  const optim::Schedule& schedule = options.schedule;
  settings.insert(settings.end(), {{"optimizer", optim::name_of(options.kind)},
                                   {"learning_rate", shortest(options.learning_rate)},
                                   {"schedule", optim::name_of(schedule.kind)},
                                   {"warmup", std::to_string(schedule.warmup)},
                                   {"steps of the schedule", std::to_string(schedule.steps)},
                                   {"last factor of the schedule", shortest(schedule.last)},
                                   {"decay of the schedule", shortest(schedule.decay)},
                                   {"steps of a decay", std::to_string(schedule.every)},
                                   {"beta1", shortest(options.beta1)},
                                   {"beta2", shortest(options.beta2)},
                                   {"epsilon", shortest(options.epsilon)},
                                   {"momentum", shortest(options.momentum)},
                                   {"nesterov", options.nesterov ? "yes" : "no"},
                                   {"weight_decay", shortest(options.weight_decay)},
                                   {"trust", shortest(options.trust)},
                                   {"clip_norm", text_of(options.clip_norm)},
                                   {"clip_value", text_of(options.clip_value)}});
}

/// What ranks with a device must have in common to choose their devices and to exchange.
std::string device_options_text(const ReplicaOptions& options) {
  constexpr std::array exchanges = {"automatic", "nccl", "staged"};
  return std::string("share_device ") + (options.share_device ? "true" : "false") +
         ", device_exchange " + exchanges.at(static_cast<std::size_t>(options.device_exchange)) +
         ", devices " + (options.devices != nullptr ? "set" : "null");
}

/// Throws unless all ranks with a device have the same options of devices, and `devices`, or the
/// replica's ranks without it, are exactly these ranks. Collective.
void require_equal_devices(const ReplicaOptions& options, comm::Communicator& comm) {
  const bool has_device = options.device == Device::cuda;
  const auto texts = comm::gather_text(comm, has_device ? device_options_text(options) : "");
  const auto is_set = [](const std::string& text) { return !text.empty(); };
  const auto first = std::find_if(texts.begin(), texts.end(), is_set);
  const auto other = std::find_if(
      first, texts.end(), [&](const std::string& text) { return is_set(text) && text != *first; });
  if (other != texts.end()) {
    const auto rank = [&](auto at) { return " on rank " + std::to_string(at - texts.begin()); };
    throw comm::AgreedError(ExitCode::usage,
                            "the replica has " + *first + rank(first) + ", " + *other + rank(other),
                            "give all ranks with a device the same");
  }
  comm::together(comm, [&] {
    if (!has_device) return;
    const int named = options.devices != nullptr ? options.devices->size() : comm.size();
    const auto count = std::count_if(texts.begin(), texts.end(), is_set);
    if (count == named) return;
    throw ConfigError("device cuda on " + std::to_string(count) + " ranks, but `devices` has " +
                          std::to_string(named),
                      "set `devices` on the ranks with a device to a communicator of exactly them");
  });
}

}  // namespace

void require_equal_settings(const nn::NetworkShape& shape, const data::Plan* plan,
                            const ReplicaOptions& options, const Groups& groups) {
  const std::string loss = options.loss != nullptr ? options.loss->name() : nn::default_loss;
  comm::KeyValues settings = {{"loss", loss},
                              {"precision", word_for(precision_words, options.precision)}};
  add(shape, settings);
  if (plan != nullptr) {
    const auto number = [](auto value) {
      return std::to_string(static_cast<std::uint64_t>(value));
    };
    settings.insert(
        settings.end(),
        {{"plan", to_hex(plan->digest())},
         {"balance", plan->options().balance ? "leaves " + joined(plan->shares(), ", ", number)
                                             : std::string("no")},
         {"seed", number(options.seed.first) + ", " + number(options.seed.second)},
         {"class_weights",
          joined(options.class_weights, ", ", [](float weight) { return shortest(weight); })},
         {"reduction", word_for(reduction_words, options.reduction)},
         {"device", is_canonical(options)            ? "any"
                    : options.device == Device::cuda ? "cuda"
                                                     : "cpu"},
         {"products",
          is_canonical(options) || is_strict(options, "the library") ? "strict" : "library"},
         {"audit_every", number(options.audit_every.value_or(0))},
         {"sentinel_steps", number(options.sentinel_steps)},
         {"on_nonfinite", word_for(nonfinite_words, options.on_nonfinite)}});
    add(options.optimizer, settings);
  }
  if (groups.model != nullptr) {  // ranks that share a network exchange its activations by parts
    settings.emplace_back("micro_batch", std::to_string(options.micro_batch));
  }
  comm::require_equal(groups.all, "the replica", settings, "give all ranks the same");
  require_equal_devices(options, groups.all);
}

}  // namespace lockstep::train

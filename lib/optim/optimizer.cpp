// The arithmetic of the optimizers in vectors: SGD, Adam, AdamW, LARS and LAMB.
#include "lockstep/optim/optimizer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/exact_squares.hpp"
#include "lockstep/numerics/threads.hpp"
#include "lockstep/optim/update_passes.hpp"

#ifndef LOCKSTEP_OPTIMIZER_KERNELS  // once, not per target
#define LOCKSTEP_OPTIMIZER_KERNELS
namespace lockstep::optim {
namespace {

/// The arrays of one update: four of `count` floats. Moments that the optimizer has not are null.
struct Spans {
  float* values;
  const float* gradient_sums;
  float* first;
  float* second;
  std::size_t count;
};

}  // namespace
}  // namespace lockstep::optim
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/optim/optimizer.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Zero where |value| < limit.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V flush_small_to_zero(D d, V value, float limit) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(value), hn::Set(d, limit)), value);
}

/// The mean gradients from i on, before they are clipped.
template <class D>
HWY_INLINE hn::Vec<D> mean_at(D d, const PassFactors& f, const Spans& s, std::size_t i) {
  const auto mean = hn::Mul(hn::LoadU(d, s.gradient_sums + i), hn::Set(d, f.inverse_weight));
  return flush_small_to_zero(d, mean, min_gradient);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V clipped(D d, const PassFactors& f, V g) {
  const auto scaled = hn::Mul(g, hn::Set(d, f.clip_scale));
  return hn::Min(hn::Max(scaled, hn::Set(d, -f.clip_value)), hn::Set(d, f.clip_value));
}

/// g + decay * w.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V decayed(D d, const PassFactors& f, V g, V w) {
  return hn::Add(g, hn::Mul(hn::Set(d, f.decay), w));
}

/// Updates both of Adam's moments with the gradient g. Sets `first` to m, and returns
/// v / (1 - beta2^t).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V update_moments(D d, const PassFactors& f, const Spans& s, std::size_t i, V g,
                            V& first) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  const auto m =
      hn::Add(hn::Mul(constant(f.beta1), hn::LoadU(d, s.first + i)), hn::Mul(constant(f.rest1), g));
  const auto v = hn::Add(hn::Mul(constant(f.beta2), hn::LoadU(d, s.second + i)),
                         hn::Mul(constant(f.rest2), hn::Mul(g, g)));
  const auto kept_v = flush_small_to_zero(d, v, min_second_moment);
  first = flush_small_to_zero(d, m, min_first_moment);
  hn::StoreU(first, d, s.first + i);
  hn::StoreU(kept_v, d, s.second + i);
  return hn::Mul(kept_v, constant(f.inverse_correction2));
}

/// lamb's r.
template <class D>
HWY_INLINE hn::Vec<D> direction_at(D d, const PassFactors& f, const Spans& s, std::size_t i) {
  const auto m = hn::Mul(hn::LoadU(d, s.first + i), hn::Set(d, f.inverse_correction1));
  const auto v = hn::Mul(hn::LoadU(d, s.second + i), hn::Set(d, f.inverse_correction2));
  const auto r = hn::Div(m, hn::Add(hn::Sqrt(v), hn::Set(d, f.epsilon)));
  return decayed(d, f, r, hn::LoadU(d, s.values + i));
}

/// zeros + 0 * a, lane by lane: zero where `zeros` is and `a` is finite, else NaN. Unlike masks
/// these can be summed at the speed of all else.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V add_zero_times(D d, V a, V zeros) {
  return hn::MulAdd(a, hn::Zero(d), zeros);
}

/// Writes the new weights; returns `zeros` plus zero times them.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V store_weights(D d, V w, V zeros, const Spans& s, std::size_t i) {
  hn::StoreU(w, d, s.values + i);
  return add_zero_times(d, w, zeros);
}

/// Does `pass` to Lanes(d) weights from i on. Returns zero where the gradient and its square,
/// Adam's second moment and the new weight are finite, else NaN.
template <Pass pass, class D>
HWY_INLINE hn::Vec<D> update_at(D d, const PassFactors& f, const Spans& s, std::size_t i) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  auto w = hn::LoadU(d, s.values + i);
  auto zeros = hn::Zero(d);
  if constexpr (pass == Pass::lamb_weights) {
    const auto step = hn::Mul(constant(f.scale), direction_at(d, f, s, i));
    return store_weights(d, hn::Sub(w, step), zeros, s, i);
  } else {
    const auto mean = mean_at(d, f, s, i);
    auto g = f.clips ? clipped(d, f, mean) : mean;
    // Else v, which is checked below, is not finite, either: it has the square of the mean, unless
    // that was clipped or decay was added.
    if (pass == Pass::sgd || pass == Pass::lars || f.clips ||
        (pass == Pass::adam && f.decay != 0)) {
      zeros = add_zero_times(d, hn::Mul(mean, mean), zeros);
    }
    if constexpr (pass == Pass::sgd) {
      if (f.decay != 0) g = decayed(d, f, g, w);
      if (f.momentum != 0) {
        const auto sum = hn::Add(hn::Mul(constant(f.momentum), hn::LoadU(d, s.first + i)), g);
        const auto b = flush_small_to_zero(d, sum, min_first_moment);
        hn::StoreU(b, d, s.first + i);
        g = f.nesterov ? hn::Add(g, hn::Mul(constant(f.momentum), b)) : b;
      }
      return store_weights(d, hn::Sub(w, hn::Mul(constant(f.rate), g)), zeros, s, i);
    } else if constexpr (pass == Pass::lars) {
      const auto sum = hn::Add(hn::Mul(constant(f.momentum), hn::LoadU(d, s.first + i)),
                               hn::Mul(constant(f.scale), decayed(d, f, g, w)));
      const auto b = flush_small_to_zero(d, sum, min_first_moment);
      hn::StoreU(b, d, s.first + i);
      return store_weights(d, hn::Sub(w, b), zeros, s, i);
    } else {
      if constexpr (pass == Pass::adam) {
        if (f.decay != 0) g = decayed(d, f, g, w);
      }
      auto m = g;
      const auto corrected_v = update_moments(d, f, s, i, g, m);
      zeros = add_zero_times(d, corrected_v, zeros);
      if constexpr (pass == Pass::lamb_moments) {
        return add_zero_times(d, w, zeros);
      } else {
        if constexpr (pass == Pass::adamw) w = hn::Mul(w, constant(f.kept));
        const auto step = hn::Div(hn::Mul(m, constant(f.corrected_rate)),
                                  hn::Add(hn::Sqrt(corrected_v), constant(f.epsilon)));
        return store_weights(d, hn::Sub(w, step), zeros, s, i);
      }
    }
  }
}

/// Calls at(d, i) for all of [0, count), in whole vectors and then one by one; true if all lanes of
/// all vectors that it returns are zero, and none NaN.
template <class At>
HWY_INLINE bool for_each(std::size_t count, At at) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(wide);
  auto sum = hn::Zero(wide);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::Add(sum, at(wide, i));
  auto rest = hn::Zero(single);
  for (; i < count; ++i) rest = hn::Add(rest, at(single, i));
  return hn::AllTrue(wide, hn::Eq(sum, hn::Zero(wide))) &&
         hn::AllTrue(single, hn::Eq(rest, hn::Zero(single)));
}

/// Prefetches a cache line that will be written, so that other cores' copies of it end early.
HWY_INLINE void prefetch_to_write(const float* at) {
#if HWY_ARCH_X86
  asm volatile("prefetchw %0" : : "m"(*at));  // compilers write it for few targets
#else
  __builtin_prefetch(at, 1);
#endif
}

/// Prefetches what an update needs a page of memory further on: arithmetic of long latency lets the
/// processor itself look ahead by less than the latency of memory.
HWY_INLINE void prefetch(const Spans& s, std::size_t i) {
  constexpr std::size_t ahead = 4096 / sizeof(float);
  prefetch_to_write(s.values + i + ahead);  // which other ranks or threads have read
  hwy::Prefetch(s.gradient_sums + i + ahead);
  if (s.first != nullptr) hwy::Prefetch(s.first + i + ahead);
  if (s.second != nullptr) hwy::Prefetch(s.second + i + ahead);
}

/// Takes copies: as far as a compiler knows, what is stored might change the caller's, so that it
/// would load them again for every vector.
template <Pass pass>
bool update_all(const PassFactors f, const Spans s) {
  return for_each(s.count, [&](auto d, std::size_t i) {
    prefetch(s, i);
    return update_at<pass>(d, f, s, i);
  });
}

bool update(Pass pass, const PassFactors& f, const Spans& s) {
  switch (pass) {
    case Pass::sgd: return update_all<Pass::sgd>(f, s);
    case Pass::adam: return update_all<Pass::adam>(f, s);
    case Pass::adamw: return update_all<Pass::adamw>(f, s);
    case Pass::lars: return update_all<Pass::lars>(f, s);
    case Pass::lamb_moments: return update_all<Pass::lamb_moments>(f, s);
    case Pass::lamb_weights: return update_all<Pass::lamb_weights>(f, s);
  }
  return false;
}

/// Writes the mean gradients, clipped.
void write_gradients(const PassFactors& f, const Spans& s, float* out) {
  for_each(s.count, [&](auto d, std::size_t i) {
    const auto mean = mean_at(d, f, s, i);
    hn::StoreU(f.clips ? clipped(d, f, mean) : mean, d, out + i);
    return hn::Zero(d);
  });
}

/// Writes lamb's r.
void write_directions(const PassFactors& f, const Spans& s, float* out) {
  for_each(s.count, [&](auto d, std::size_t i) {
    hn::StoreU(direction_at(d, f, s, i), d, out + i);
    return hn::Zero(d);
  });
}

}  // namespace lockstep::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::optim {
namespace {

HWY_EXPORT(update);
HWY_EXPORT(write_gradients);
HWY_EXPORT(write_directions);

constexpr std::array<const char*, 5> optimizer_names = {"sgd", "adam", "adamw", "lars", "lamb"};

bool is_adaptive(OptimizerKind kind) {
  return kind == OptimizerKind::adam || kind == OptimizerKind::adamw || kind == OptimizerKind::lamb;
}

Spans part_of(const Spans& spans, Range range) {
  const auto at = [&](auto* pointer) {
    return pointer == nullptr ? pointer : pointer + range.begin;
  };
  return {at(spans.values), at(spans.gradient_sums), at(spans.first), at(spans.second),
          range.size()};
}

/// Calls write(part, out) for pieces of `spans`, and adds the squares of what it writes.
template <class Write>
void add_squares(const Spans& spans, ExactSquares& squares, Write write) {
  constexpr std::size_t piece = 4096;
  std::array<float, piece> out;
  for (std::size_t first = 0; first < spans.count; first += piece) {
    const std::size_t last = std::min(spans.count, first + piece);
    write(part_of(spans, {first, last}), out.data());
    squares.add(std::span(out).first(last - first));
  }
}

/// Code of the passes on the processor.
class ProcessorKernels final : public UpdateKernels {
 public:
  /// `gradients`: see Optimizer::update(). `ends` of tensors: of each the threads get the parts of
  /// which they computed gradient and product, which are in their caches.
  ProcessorKernels(std::span<float> values, std::span<const GradientSums> gradients, float* first,
                   float* second, std::span<const std::size_t> ends)
      : values_(values), gradients_(gradients), first_(first), second_(second), ends_(ends) {}

  bool run(const RangePass& pass) override {
    std::atomic<bool> all = true;
    for (std::size_t i = 0, first = pass.range.begin; first < pass.range.end; ++i) {
      const std::size_t end = i < ends_.size() ? ends_[i] : pass.range.end;
      if (end <= first) continue;
      const std::size_t count = std::min(end, pass.range.end) - first;
      share(count, unit, operations, [&](Range mine, std::size_t /*thread*/) {
        for_each_part({first + mine.begin, first + mine.end}, [&](const Spans& part) {
          if (!HWY_DYNAMIC_DISPATCH(update)(pass.pass, pass.factors, part)) all = false;
        });
      });
      first += count;
    }
    return all;
  }

  std::vector<ExactSquares::Words> squares(std::span<const Squares> asked,
                                           const PassFactors& factors) override {
    std::vector<ExactSquares::Words> all;
    for (const Squares& ask : asked) {
      const std::uint64_t first = ask.range.begin;
      std::vector<ExactSquares> each(product_threads());
      share(ask.range.size(), unit, operations, [&](Range mine, std::size_t thread) {
        for_each_part({first + mine.begin, first + mine.end},
                      [&](const Spans& part) { add(ask.what, part, factors, each[thread]); });
      });
      ExactSquares::Words& sum = all.emplace_back();
      for (const ExactSquares& part : each) {
        std::transform(sum.begin(), sum.end(), part.sum().begin(), sum.begin(), std::plus<>());
      }
    }
    return all;
  }

 private:
  static constexpr std::size_t unit = 256;       // weights that threads do not divide: cache lines
  static constexpr std::size_t operations = 20;  // for a weight, about: see share()

  static void add(Squared what, const Spans& part, const PassFactors& factors,
                  ExactSquares& squares) {
    switch (what) {
      case Squared::weights: squares.add({part.values, part.count}); break;
      case Squared::gradients:
        add_squares(part, squares, [&](const Spans& piece, float* out) {
          HWY_DYNAMIC_DISPATCH(write_gradients)(factors, piece, out);
        });
        break;
      case Squared::directions:
        add_squares(part, squares, [&](const Spans& piece, float* out) {
          HWY_DYNAMIC_DISPATCH(write_directions)(factors, piece, out);
        });
    }
  }

  /// Calls visit(spans) for the parts of `asked`, among the elements of all ranges, each of which
  /// is contiguous in the block.
  template <class Visit>
  void for_each_part(Range asked, Visit visit) const {
    std::size_t start = 0;  // of a range, among the elements of all
    for (const auto& [sums, first] : gradients_) {
      const Spans range = {values_.data() + first, sums.data(), moment(first_, start),
                           moment(second_, start), sums.size()};
      const std::size_t end = start + sums.size();
      const std::size_t from = std::clamp<std::size_t>(asked.begin, start, end);
      const std::size_t to = std::clamp<std::size_t>(asked.end, from, end);
      if (from < to) visit(part_of(range, {from - start, to - start}));
      start = end;
    }
  }

  static float* moment(float* all, std::size_t start) {
    return all == nullptr ? nullptr : all + start;
  }

  std::span<float> values_;
  std::span<const GradientSums> gradients_;
  float* first_;
  float* second_;
  std::span<const std::size_t> ends_;
};

}  // namespace

const char* name_of(OptimizerKind kind) noexcept {
  return optimizer_names[static_cast<std::size_t>(kind)];
}

std::optional<OptimizerKind> optimizer_named(std::string_view name) noexcept {
  return named<OptimizerKind>(optimizer_names, name);
}

void require_valid(const OptimizerOptions& options) {
  const auto refuse = [](const std::string& problem, const std::string& remedy) {
    throw ConfigError(problem, remedy);
  };
  const auto require_share = [&](const char* name, double value) {
    if (!(value >= 0 && value < 1)) {
      refuse(std::string("`") + name + "=" + shortest(value) + "`: outside [0, 1)",
             "give at least 0 and less than 1");
    }
  };
  const auto require_positive = [&](const char* name, double value, double example) {
    const auto used = static_cast<float>(value);
    if (!(used > 0 && std::isfinite(used))) {
      refuse(std::string("`") + name + "=" + shortest(value) + "`: not a finite float32 above 0",
             "give one, such as " + shortest(example));
    }
  };
  const std::string with = std::string(" with `optimizer=") + name_of(options.kind) + "`";
  const bool has_momentum =
      options.kind == OptimizerKind::sgd || options.kind == OptimizerKind::lars;
  require_positive("learning_rate", options.learning_rate, 1e-3);
  if (options.momentum != 0 && !has_momentum) {
    refuse("`momentum`" + with, "use `beta1`, or `optimizer=sgd`");
  }
  const OptimizerOptions defaults;
  const bool adapts = is_adaptive(options.kind);
  const std::string where = std::string("optimizer=") + name_of(options.kind);
  const char* const adaptive = "adam, adamw or lamb";
  require_used("beta1", adapts, options.beta1 == defaults.beta1, where, adaptive);
  require_used("beta2", adapts, options.beta2 == defaults.beta2, where, adaptive);
  require_used("epsilon", adapts, options.epsilon == defaults.epsilon, where, adaptive);
  require_used("trust", options.kind == OptimizerKind::lars, options.trust == defaults.trust, where,
               "lars");
  require_share("beta1", options.beta1);
  require_share("beta2", options.beta2);
  require_share("momentum", options.momentum);
  if (!(options.epsilon >= 1e-12 && std::isfinite(static_cast<float>(options.epsilon)))) {
    refuse("`epsilon=" + shortest(options.epsilon) + "`: not a finite float32 of at least 1e-12",
           "give one, such as 1e-07");
  }
  require_positive("trust", options.trust, 1e-3);
  const auto decay = static_cast<float>(options.weight_decay);
  if (!(decay >= 0 && std::isfinite(decay))) {
    refuse(
        "`weight_decay=" + shortest(options.weight_decay) + "`: not a finite float32 of at least 0",
        "give 0, or such as 1e-2");
  }
  if (options.clip_norm) require_positive("clip_norm", *options.clip_norm, 1);
  if (options.clip_value) require_positive("clip_value", *options.clip_value, 1);
  if (options.clip_norm && options.clip_value) {
    refuse("`clip_norm` and `clip_value`: one would change what the other is compared with",
           "use one of them");
  }
  if (options.nesterov && (options.kind != OptimizerKind::sgd || options.momentum == 0)) {
    refuse("`nesterov`" + with + (options.momentum == 0 ? ", without momentum" : ""),
           "use `optimizer=sgd` and `momentum`");
  }
  require_valid(options.schedule);
}

bool needs_norms(const OptimizerOptions& options) noexcept {
  return options.clip_norm || options.kind == OptimizerKind::lars ||
         options.kind == OptimizerKind::lamb;
}

std::vector<std::string> moment_names(const OptimizerOptions& options) {
  if (is_adaptive(options.kind)) return {"m", "v"};
  if (options.kind == OptimizerKind::sgd && options.momentum == 0) return {};
  return {"momentum"};
}

bool is_finite(std::span<const float> gradient_sums, double weight) {
  const auto inverse_weight = static_cast<float>(1 / weight);
  bool all = true;
  for (const float sum : gradient_sums) {
    const float mean = sum * inverse_weight;
    all &= mean * mean <= std::numeric_limits<float>::max();
  }
  return all;
}

OptimizerState::OptimizerState(const OptimizerOptions& options,
                               const std::vector<UpdatedTensor>& tensors)
    : update_passes_(std::make_unique<UpdatePasses>(options, tensors)) {}

OptimizerState::~OptimizerState() = default;

const OptimizerScalars& OptimizerState::scalars() const noexcept {
  return update_passes_->scalars();
}

void OptimizerState::set_scalars(const OptimizerScalars& scalars) noexcept {
  update_passes_->set_scalars(scalars);
}

std::optional<double> OptimizerState::gradient_norm() const noexcept {
  return update_passes_->gradient_norm();
}

Optimizer::Optimizer(std::size_t weights, const OptimizerOptions& options,
                     const std::vector<UpdatedTensor>& tensors)
    : OptimizerState(options, tensors), weights_(weights) {
  const std::size_t moments = moment_names(options).size();
  if (moments > 0) first_ = AlignedBuffer<float>(weights);
  if (moments > 1) second_ = AlignedBuffer<float>(weights);
  for (const UpdatedTensor& tensor : tensors) ends_.push_back(tensor.range.end);
  std::sort(ends_.begin(), ends_.end());
}

bool Optimizer::update(std::span<float> values, std::span<const GradientSums> gradients,
                       double weight, std::uint64_t step, const RankSums& sums) {
  std::size_t count = 0;
  bool fits = weight > 0;
  for (const auto& [some, first] : gradients) {
    count += some.size();
    fits = fits && first + some.size() <= values.size();
  }
  if (!fits || count != weights_) {
    throw std::invalid_argument("Optimizer::update: ranges of another length, or no weight");
  }
  ProcessorKernels kernels(values, gradients, first_.data(), second_.data(), ends_);
  return update_passes_->update(kernels, weights_, weight, step, sums);
}

void Optimizer::copy(Moment moment, std::span<float> into) {
  const auto& from = moment == Moment::first ? first_ : second_;
  std::copy_n(from.data(), from.size(), into.begin());
}

void Optimizer::restore(Moment moment, std::span<const float> from) {
  auto& into = moment == Moment::first ? first_ : second_;
  std::copy_n(from.begin(), into.size(), into.data());
}

}  // namespace lockstep::optim
#endif

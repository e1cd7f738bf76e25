#include "lockstep/optim/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/numerics/exact_squares.hpp"

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

/// The constants of one update, of a tensor or of all weights.
struct Factors {
  AdamFactors adam;
  float inverse_correction1;  ///< 1 / (1 - beta1^t)
  float rate;
  float momentum;
  bool nesterov;
  float decay;
  float kept;  ///< 1 - rate * decay
  bool clips = false;
  float clip_scale = 1;
  float clip_value = std::numeric_limits<float>::infinity();
  float scale = 0;  ///< of lars and lamb: the rate times the ratio of a tensor's norms
};

/// What a kernel does to each weight. lamb does it in two passes, with norms between them.
enum class Pass { sgd, adam, adamw, lars, lamb_moments, lamb_weights };

}  // namespace
}  // namespace lockstep::optim
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/optim/optimizer.cpp"
#include <hwy/foreach_target.h>
// Highway includes this file once more for every target, so foreach_target.h must come first.
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
HWY_INLINE hn::Vec<D> mean_at(D d, const Factors& f, const Spans& s, std::size_t i) {
  const auto mean = hn::Mul(hn::LoadU(d, s.gradient_sums + i), hn::Set(d, f.adam.inverse_examples));
  return flush_small_to_zero(d, mean, min_gradient);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V clipped(D d, const Factors& f, V g) {
  const auto scaled = hn::Mul(g, hn::Set(d, f.clip_scale));
  return hn::Min(hn::Max(scaled, hn::Set(d, -f.clip_value)), hn::Set(d, f.clip_value));
}

/// g + decay * w.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V decayed(D d, const Factors& f, V g, V w) {
  return hn::Add(g, hn::Mul(hn::Set(d, f.decay), w));
}

/// Updates both of Adam's moments with the gradient g. Sets `first` to m, and returns
/// v / (1 - beta2^t).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V update_moments(D d, const Factors& f, const Spans& s, std::size_t i, V g, V& first) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  const auto m = hn::Add(hn::Mul(constant(f.adam.beta1), hn::LoadU(d, s.first + i)),
                         hn::Mul(constant(f.adam.rest1), g));
  const auto v = hn::Add(hn::Mul(constant(f.adam.beta2), hn::LoadU(d, s.second + i)),
                         hn::Mul(constant(f.adam.rest2), hn::Mul(g, g)));
  const auto kept_v = flush_small_to_zero(d, v, min_second_moment);
  first = flush_small_to_zero(d, m, min_first_moment);
  hn::StoreU(first, d, s.first + i);
  hn::StoreU(kept_v, d, s.second + i);
  return hn::Mul(kept_v, constant(f.adam.inverse_correction2));
}

/// lamb's r.
template <class D>
HWY_INLINE hn::Vec<D> direction_at(D d, const Factors& f, const Spans& s, std::size_t i) {
  const auto m = hn::Mul(hn::LoadU(d, s.first + i), hn::Set(d, f.inverse_correction1));
  const auto v = hn::Mul(hn::LoadU(d, s.second + i), hn::Set(d, f.adam.inverse_correction2));
  const auto r = hn::Div(m, hn::Add(hn::Sqrt(v), hn::Set(d, f.adam.epsilon)));
  return decayed(d, f, r, hn::LoadU(d, s.values + i));
}

/// Does `pass` to Lanes(d) weights from i on. Returns all-ones where the gradient and its square,
/// and Adam's second moment, are finite.
template <Pass pass, class D>
HWY_INLINE hn::Mask<D> update_at(D d, const Factors& f, const Spans& s, std::size_t i) {
  const auto constant = [d](float value) { return hn::Set(d, value); };
  if constexpr (pass == Pass::lamb_weights) {
    const auto step = hn::Mul(constant(f.scale), direction_at(d, f, s, i));
    hn::StoreU(hn::Sub(hn::LoadU(d, s.values + i), step), d, s.values + i);
    return hn::FirstN(d, hn::Lanes(d));
  } else {
    const auto mean = mean_at(d, f, s, i);
    auto g = f.clips ? clipped(d, f, mean) : mean;
    auto w = hn::LoadU(d, s.values + i);
    auto finite = hn::FirstN(d, hn::Lanes(d));
    // Without clipping, a second moment is not finite, either.
    if (pass == Pass::sgd || pass == Pass::lars || f.clips) {
      finite = hn::IsFinite(hn::Mul(mean, mean));
    }
    if constexpr (pass == Pass::sgd) {
      if (f.decay != 0) g = decayed(d, f, g, w);
      if (f.momentum != 0) {
        const auto sum = hn::Add(hn::Mul(constant(f.momentum), hn::LoadU(d, s.first + i)), g);
        const auto b = flush_small_to_zero(d, sum, min_first_moment);
        hn::StoreU(b, d, s.first + i);
        g = f.nesterov ? hn::Add(g, hn::Mul(constant(f.momentum), b)) : b;
      }
      hn::StoreU(hn::Sub(w, hn::Mul(constant(f.rate), g)), d, s.values + i);
      return finite;
    } else if constexpr (pass == Pass::lars) {
      const auto sum = hn::Add(hn::Mul(constant(f.momentum), hn::LoadU(d, s.first + i)),
                               hn::Mul(constant(f.scale), decayed(d, f, g, w)));
      const auto b = flush_small_to_zero(d, sum, min_first_moment);
      hn::StoreU(b, d, s.first + i);
      hn::StoreU(hn::Sub(w, b), d, s.values + i);
      return finite;
    } else {
      if constexpr (pass == Pass::adam) {
        if (f.decay != 0) g = decayed(d, f, g, w);
      }
      auto m = g;
      const auto corrected_v = update_moments(d, f, s, i, g, m);
      if constexpr (pass != Pass::lamb_moments) {
        if constexpr (pass == Pass::adamw) w = hn::Mul(w, constant(f.kept));
        const auto step = hn::Div(hn::Mul(m, constant(f.adam.corrected_rate)),
                                  hn::Add(hn::Sqrt(corrected_v), constant(f.adam.epsilon)));
        hn::StoreU(hn::Sub(w, step), d, s.values + i);
      }
      return hn::And(finite, hn::IsFinite(corrected_v));
    }
  }
}

/// Calls at(d, i) for all of [0, count), in whole vectors and then one by one; true if all lanes of
/// all masks that it returns are set.
template <class At>
HWY_INLINE bool for_each(std::size_t count, At at) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> single;
  const std::size_t lanes = hn::Lanes(wide);
  auto finite = hn::FirstN(wide, lanes);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) finite = hn::And(finite, at(wide, i));
  bool all = hn::AllTrue(wide, finite);
  for (; i < count; ++i) all = hn::AllTrue(single, at(single, i)) && all;
  return all;
}

template <Pass pass>
bool update_all(const Factors& f, const Spans& s) {
  return for_each(s.count, [&](auto d, std::size_t i) { return update_at<pass>(d, f, s, i); });
}

bool update(Pass pass, const Factors& f, const Spans& s) {
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
void write_gradients(const Factors& f, const Spans& s, float* out) {
  for_each(s.count, [&](auto d, std::size_t i) {
    const auto mean = mean_at(d, f, s, i);
    hn::StoreU(f.clips ? clipped(d, f, mean) : mean, d, out + i);
    return hn::FirstN(d, hn::Lanes(d));
  });
}

/// Writes lamb's r.
void write_directions(const Factors& f, const Spans& s, float* out) {
  for_each(s.count, [&](auto d, std::size_t i) {
    hn::StoreU(direction_at(d, f, s, i), d, out + i);
    return hn::FirstN(d, hn::Lanes(d));
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

bool has_tensor_norms(OptimizerKind kind) {
  return kind == OptimizerKind::lars || kind == OptimizerKind::lamb;
}

Factors factors_of(const OptimizerOptions& options, double rate, const OptimizerScalars& state,
                   std::uint64_t examples) {
  Factors factors = {.adam = adam_factors(options, rate, state, examples),
                     .inverse_correction1 = static_cast<float>(1 / (1 - state.beta1_power)),
                     .rate = static_cast<float>(rate),
                     .momentum = static_cast<float>(options.momentum),
                     .nesterov = options.nesterov,
                     .decay = static_cast<float>(options.weight_decay),
                     .kept = static_cast<float>(1 - rate * options.weight_decay)};
  if (options.clip_value) {
    factors.clips = true;
    factors.clip_value = static_cast<float>(*options.clip_value);
  }
  return factors;
}

/// The factors for a vector, which does not decay.
Factors without_decay(Factors factors) {
  factors.decay = 0;
  factors.kept = 1;
  return factors;
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

/// The sums of squares that ranks add up: `count` of each tensor.
class SharedSquares {
 public:
  SharedSquares(std::size_t tensors, std::size_t count)
      : count_(count), words_(tensors * count * ExactSquares::words) {}

  void put(std::size_t tensor, std::size_t index, const ExactSquares& squares) {
    std::copy(squares.sum().begin(), squares.sum().end(), at(tensor, index).begin());
  }

  /// `cut`: the number of tensors that are cut, which are the first. Collective.
  void add_up(const RankSums& sums, std::size_t cut) {
    if (sums.over_batch) sums.over_batch(words_);
    const auto first = std::span(words_).first(cut * count_ * ExactSquares::words);
    if (sums.over_model && !first.empty()) sums.over_model(first);
  }

  std::span<std::uint64_t, ExactSquares::words> at(std::size_t tensor, std::size_t index) {
    const std::size_t first = (tensor * count_ + index) * ExactSquares::words;
    return std::span(words_).subspan(first).first<ExactSquares::words>();
  }

  double norm(std::size_t tensor, std::size_t index) {
    return std::sqrt(ExactSquares::value(at(tensor, index)));
  }

 private:
  std::size_t count_;
  std::vector<std::uint64_t> words_;
};

/// The rate of a tensor with these norms, of its weights and of its gradient or direction.
double scaled_rate(const OptimizerOptions& options, double rate, double weights, double step) {
  if (weights == 0 || step == 0) return rate;
  if (options.kind == OptimizerKind::lamb) return rate * (weights / step);
  return rate * (options.trust * weights / (step + options.weight_decay * weights));
}

bool run(Pass pass, const Factors& factors, const Spans& spans) {
  return HWY_DYNAMIC_DISPATCH(update)(pass, factors, spans);
}

/// Adds the squares of mean gradients, clipped.
void add_gradients(const Factors& factors, const Spans& spans, ExactSquares& squares) {
  add_squares(spans, squares, [&](const Spans& part, float* out) {
    HWY_DYNAMIC_DISPATCH(write_gradients)(factors, part, out);
  });
}

/// The norm of the mean gradient of all weights. Collective.
double norm_of_gradients(const std::vector<UpdatedTensor>& tensors, const Factors& factors,
                         const Spans& spans, const RankSums& sums) {
  std::array<ExactSquares, 2> squares;  // of tensors that are cut, and of the others
  for (const auto& tensor : tensors) {
    add_gradients(factors, part_of(spans, tensor.range), squares[tensor.cut ? 0 : 1]);
  }
  SharedSquares shared(2, 1);
  shared.put(0, 0, squares[0]);
  shared.put(1, 0, squares[1]);
  shared.add_up(sums, 1);
  const auto cut = shared.at(0, 0);
  const auto whole = shared.at(1, 0);
  std::transform(cut.begin(), cut.end(), whole.begin(), whole.begin(), std::plus<>());
  return shared.norm(1, 0);
}

/// The rate of lars or lamb for each tensor: for vectors `rate`. Those that are cut come first.
/// Collective.
std::vector<double> tensor_rates(const OptimizerOptions& options, double rate,
                                 const std::vector<UpdatedTensor>& tensors, const Factors& factors,
                                 const Spans& spans, const RankSums& sums) {
  SharedSquares norms(tensors.size(), 2);  // of weights, and of gradients or directions
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].vector) continue;
    const Spans part = part_of(spans, tensors[i].range);
    std::array<ExactSquares, 2> squares;
    squares[0].add({part.values, part.count});
    if (options.kind == OptimizerKind::lamb) {
      add_squares(part, squares[1], [&](const Spans& piece, float* out) {
        HWY_DYNAMIC_DISPATCH(write_directions)(factors, piece, out);
      });
    } else {
      add_gradients(factors, part, squares[1]);
    }
    norms.put(i, 0, squares[0]);
    norms.put(i, 1, squares[1]);
  }
  const auto is_cut = [](const UpdatedTensor& tensor) { return tensor.cut; };
  norms.add_up(sums,
               static_cast<std::size_t>(std::count_if(tensors.begin(), tensors.end(), is_cut)));
  std::vector<double> rates(tensors.size(), rate);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].vector) continue;
    rates[i] = scaled_rate(options, rate, norms.norm(i, 0), norms.norm(i, 1));
  }
  return rates;
}

Pass pass_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd: return Pass::sgd;
    case OptimizerKind::adam: return Pass::adam;
    case OptimizerKind::adamw: return Pass::adamw;
    case OptimizerKind::lars: return Pass::lars;
    case OptimizerKind::lamb: return Pass::lamb_weights;
  }
  return Pass::sgd;
}

}  // namespace

const char* name_of(OptimizerKind kind) noexcept {
  return optimizer_names[static_cast<std::size_t>(kind)];
}

std::optional<OptimizerKind> optimizer_named(std::string_view name) noexcept {
  const auto* const found = std::find(optimizer_names.begin(), optimizer_names.end(), name);
  if (found == optimizer_names.end()) return std::nullopt;
  return static_cast<OptimizerKind>(found - optimizer_names.begin());
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
  const auto require_positive = [&](const char* name, double value) {
    if (!(value > 0 && std::isfinite(value))) {
      refuse(std::string("`") + name + "=" + shortest(value) + "`: not above 0", "give more");
    }
  };
  const std::string with = std::string(" with `optimizer=") + name_of(options.kind) + "`";
  const bool has_momentum =
      options.kind == OptimizerKind::sgd || options.kind == OptimizerKind::lars;
  require_positive("learning_rate", options.learning_rate);
  require_share("beta1", options.beta1);
  require_share("beta2", options.beta2);
  require_share("momentum", options.momentum);
  require_positive("epsilon", options.epsilon);
  require_positive("trust", options.trust);
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay))) {
    refuse("`weight_decay=" + shortest(options.weight_decay) + "`: below 0", "give at least 0");
  }
  if (options.clip_norm) require_positive("clip_norm", *options.clip_norm);
  if (options.clip_value) require_positive("clip_value", *options.clip_value);
  if (options.clip_norm && options.clip_value) {
    refuse("`clip_norm` and `clip_value`: one would change what the other is compared with",
           "use one of them");
  }
  if (options.momentum != 0 && !has_momentum) {
    refuse("`momentum`" + with, "use `beta1`, or `optimizer=sgd`");
  }
  if (options.nesterov && (options.kind != OptimizerKind::sgd || options.momentum == 0)) {
    refuse("`nesterov`" + with + (options.momentum == 0 ? ", without momentum" : ""),
           "use `optimizer=sgd` and `momentum`");
  }
  require_valid(options.schedule);
}

bool needs_norms(const OptimizerOptions& options) noexcept {
  return options.clip_norm || has_tensor_norms(options.kind);
}

std::vector<std::string> moment_names(const OptimizerOptions& options) {
  if (is_adaptive(options.kind)) return {"m", "v"};
  if (options.kind == OptimizerKind::sgd && options.momentum == 0) return {};
  return {"momentum"};
}

AdamFactors adam_factors(const OptimizerOptions& options, double rate,
                         const OptimizerScalars& state, std::uint64_t examples) {
  return {.inverse_examples = static_cast<float>(1 / static_cast<double>(examples)),
          .beta1 = static_cast<float>(options.beta1),
          .rest1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .rest2 = static_cast<float>(1 - options.beta2),
          .corrected_rate = static_cast<float>(rate / (1 - state.beta1_power)),
          .inverse_correction2 = static_cast<float>(1 / (1 - state.beta2_power)),
          .epsilon = static_cast<float>(options.epsilon)};
}

bool is_finite(std::span<const float> gradient_sums, std::uint64_t examples) {
  const auto inverse_examples = static_cast<float>(1 / static_cast<double>(examples));
  bool all = true;
  for (const float sum : gradient_sums) {
    const float mean = sum * inverse_examples;
    all &= mean * mean <= std::numeric_limits<float>::max();
  }
  return all;
}

Optimizer::Optimizer(std::size_t weights, const OptimizerOptions& options,
                     const std::vector<UpdatedTensor>& tensors)
    : options_(options), weights_(weights), tensors_(tensors) {
  require_valid(options);
  has_frozen_ =
      std::erase_if(tensors_, [](const UpdatedTensor& tensor) { return tensor.frozen; }) > 0;
  std::stable_partition(tensors_.begin(), tensors_.end(),
                        [](const UpdatedTensor& tensor) { return tensor.cut; });
  const std::size_t moments = moment_names(options).size();
  if (moments > 0) first_ = AlignedBuffer<float>(weights);
  if (moments > 1) second_ = AlignedBuffer<float>(weights);
}

bool Optimizer::update(std::span<float> values, std::span<const float> gradient_sums,
                       std::uint64_t examples, std::uint64_t step, const RankSums& sums) {
  if (values.size() != weights_ || gradient_sums.size() != weights_ || examples == 0) {
    throw std::invalid_argument("Optimizer::update: spans of other lengths, or no examples");
  }
  state_.advance(options_);
  const double rate = options_.learning_rate * options_.schedule.factor(step);
  Factors factors = factors_of(options_, rate, state_, examples);
  const Spans all = {values.data(), gradient_sums.data(), first_.data(), second_.data(), weights_};
  if (options_.clip_norm) {
    gradient_norm_ = norm_of_gradients(tensors_, factors, all, sums);
    if (!std::isfinite(*gradient_norm_)) return false;
    if (*gradient_norm_ > *options_.clip_norm) {
      factors.clips = true;
      factors.clip_scale = static_cast<float>(*options_.clip_norm / *gradient_norm_);
    }
  }
  bool finite = true;
  std::vector<double> rates(tensors_.size(), rate);
  if (has_tensor_norms(options_.kind)) {
    if (options_.kind == OptimizerKind::lamb) finite = run(Pass::lamb_moments, factors, all);
    rates = tensor_rates(options_, rate, tensors_, factors, all, sums);
  } else if (options_.weight_decay == 0 && !has_frozen_) {
    return run(pass_of(options_.kind), factors, all);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!std::isfinite(rates[i])) return false;
    Factors own = tensors_[i].vector ? without_decay(factors) : factors;
    own.scale = static_cast<float>(rates[i]);
    finite = run(pass_of(options_.kind), own, part_of(all, tensors_[i].range)) && finite;
  }
  return finite;
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

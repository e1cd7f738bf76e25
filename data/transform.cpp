#include "lockstep/data/transform.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

/// A named augmentation.
struct Change {
  const char* name;
  double Augmentation::*amount;
  double max;
};

constexpr std::array changes = {Change{"shift", &Augmentation::shift, 1000},
                                Change{"rotate", &Augmentation::rotate, 180},
                                Change{"noise", &Augmentation::noise, 1e6}};

const Change& change_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Change& change : changes) {
    if (name == change.name) return change;
    names.emplace_back(change.name);
  }
  throw ConfigError("'" + name + "' is none of shift, rotate, noise",
                    did_you_mean(nearest(name, names), "write none, or shift=2,rotate=10"));
}

double amount_of(const Change& change, const std::string& text) {
  const auto amount = number_in<double>(text);
  if (amount && *amount >= 0 && *amount <= change.max) return *amount;
  throw ConfigError(
      "'" + text + "' is not a number from 0 to " + shortest(change.max) + " for " + change.name,
      std::string("write one such as ") + change.name + "=0.5, or none");
}

Philox::Block draws(std::uint64_t seed, std::uint32_t epoch, std::uint64_t id,
                    std::uint32_t count) noexcept {
  return Philox::at({count, epoch, low_word(id), high_word(id)},
                    philox_key(seed_for(RandomUse::augmentation, seed)));
}

/// Uniform over [-1, 1), exact in double.
double both_ways(std::uint32_t word) noexcept {
  return static_cast<double>(static_cast<std::int32_t>(word)) * 0x1p-31;
}

/// Approximately normal with standard deviation 1: the sum of four 16-bit uniforms.
double bell(std::uint32_t a, std::uint32_t b) noexcept {
  constexpr double root_three = 0x1.bb67ae8584caap+0;  // four variances of 1/12 sum to 1/3
  const std::uint32_t sum = (a & 0xFFFFU) + (a >> 16) + (b & 0xFFFFU) + (b >> 16);
  constexpr double middle = 2 * 65535;
  return (static_cast<double>(sum) - middle) * (root_three / 65536);
}

/// Inline std::floor.
std::ptrdiff_t floor_of(double value) noexcept {
  const auto whole = static_cast<std::ptrdiff_t>(value);
  return value < static_cast<double>(whole) ? whole - 1 : whole;
}

struct Direction {
  double cosine;
  double sine;
};

/// By Taylor series up to x^25; error below 1e-13 for angles up to pi.
Direction direction(double angle) noexcept {
  const double square = angle * angle;
  double cosine = 1;
  double sine = 1;
  for (int n = 24; n > 0; n -= 2) {
    cosine = 1 - cosine * square / (n * (n - 1));
    sine = 1 - sine * square / (n * (n + 1));
  }
  return {cosine, sine * angle};
}

}  // namespace

Augmentation parse_augmentation(std::string_view text) {
  Augmentation augmentation;
  if (text == "none") return augmentation;
  if (text.empty()) throw ConfigError("the value is empty", "write none, or shift=2,rotate=10");
  std::vector<std::string> seen;
  for (const std::string& part : split_list(text)) {
    const auto equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const Change& change = change_named(name);
    if (equals == part.size()) throw ConfigError(name + " has no amount", "write " + name + "=X");
    if (contains(seen, name)) {
      throw ConfigError(name + " stands twice", "give it once");
    }
    seen.push_back(name);
    augmentation.*change.amount = amount_of(change, part.substr(equals + 1));
  }
  return augmentation;
}

Transform::Transform(const Augmentation& augmentation, std::uint64_t seed,
                     const std::vector<std::size_t>& dims)
    : augmentation_(augmentation),
      seed_(seed),
      features_(std::accumulate(dims.begin(), dims.end(), std::size_t{1}, std::multiplies<>())) {
  if (!augmentation.moves()) return;
  if (dims.size() != 2 && dims.size() != 3) {
    throw ConfigError("shift and rotate move images, but this data has records of " +
                          std::to_string(features_) + " features without rows and columns",
                      "use noise alone, or data that says its images' size");
  }
  rows_ = dims[0];
  columns_ = dims[1];
  if (dims.size() == 3) channels_ = dims[2];
  if (const auto size = std::min(rows_, columns_);
      augmentation.shift >= static_cast<double>(size)) {
    throw ConfigError("the shift is too large for images of " + std::to_string(rows_) + "x" +
                          std::to_string(columns_),
                      "give a shift below " + std::to_string(size));
  }
  before_.resize(features_);
}

void Transform::apply(std::uint64_t epoch, std::span<const std::uint64_t> ids, std::span<float> x) {
  const auto low = static_cast<std::uint32_t>(epoch);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto image = x.subspan(i * features_, features_);
    if (augmentation_.moves()) move(low, ids[i], image);
    if (augmentation_.noise > 0) add_noise(low, ids[i], image);
  }
}

void Transform::move(std::uint32_t epoch, std::uint64_t id, std::span<float> image) {
  std::copy(image.begin(), image.end(), before_.begin());
  const Philox::Block random = draws(seed_, epoch, id, 0);
  constexpr double radians = 0x1.1df46a2529d39p-6;  // pi / 180
  const Direction turn = direction(both_ways(random[0]) * augmentation_.rotate * radians);
  const double down = both_ways(random[1]) * augmentation_.shift;
  const double right = both_ways(random[2]) * augmentation_.shift;
  const double middle_row = static_cast<double>(rows_ - 1) / 2;
  const double middle_column = static_cast<double>(columns_ - 1) / 2;
  std::size_t at = 0;
  for (std::size_t r = 0; r < rows_; ++r) {
    for (std::size_t c = 0; c < columns_; ++c, at += channels_) {
      const double y = static_cast<double>(r) - middle_row - down;
      const double x = static_cast<double>(c) - middle_column - right;
      sample(middle_row + (turn.cosine * y - turn.sine * x),
             middle_column + (turn.sine * y + turn.cosine * x), image.subspan(at, channels_));
    }
  }
}

/// Bilinear interpolation of the four nearest pixels; pixels outside the image are 0.
void Transform::sample(double row, double column, std::span<float> channels) const {
  const std::ptrdiff_t top = floor_of(row);
  const std::ptrdiff_t left = floor_of(column);
  const auto below = static_cast<float>(row - static_cast<double>(top));
  const auto beside = static_cast<float>(column - static_cast<double>(left));
  const auto pixel = [&](std::ptrdiff_t at_row, std::ptrdiff_t at_column, std::size_t channel) {
    const auto r = static_cast<std::size_t>(at_row);  // a negative value wraps to above every size
    const auto c = static_cast<std::size_t>(at_column);
    return r < rows_ && c < columns_ ? before_[(r * columns_ + c) * channels_ + channel] : 0.0F;
  };
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const float above_left = pixel(top, left, i);
    const float below_left = pixel(top + 1, left, i);
    const float upper = above_left + beside * (pixel(top, left + 1, i) - above_left);
    const float lower = below_left + beside * (pixel(top + 1, left + 1, i) - below_left);
    channels[i] = upper + below * (lower - upper);
  }
}

void Transform::add_noise(std::uint32_t epoch, std::uint64_t id, std::span<float> image) const {
  std::uint32_t count = 1;  // 0 is used by move()
  for (std::size_t i = 0; i < image.size(); i += 2, ++count) {
    const Philox::Block random = draws(seed_, epoch, id, count);
    image[i] += static_cast<float>(augmentation_.noise * bell(random[0], random[1]));
    if (i + 1 == image.size()) break;
    image[i + 1] += static_cast<float>(augmentation_.noise * bell(random[2], random[3]));
  }
}

}  // namespace lockstep::data

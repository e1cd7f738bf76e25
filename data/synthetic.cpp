#include "lockstep/data/synthetic.hpp"

#include <algorithm>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {

SyntheticSource::SyntheticSource(Part part, const ReadOptions& options, std::uint64_t seed)
    : part_(part),
      seed_(seed),
      records_(std::min(synthetic_records(part),
                        checked_limit(options).value_or(synthetic_records(part)))),
      classes_(options.classes.value_or(10)),
      scale_(options.divide_by),
      blocks_(static_cast<std::size_t>((records_ + block_records - 1) / block_records)) {
  if (classes_ < 10) {
    throw ConfigError("the built-in data set has 10 classes, not " + std::to_string(classes_),
                      "give `classes=10` or more, or other data with `data`");
  }
}

std::string SyntheticSource::identity() const {
  return std::string("drawn digits, ") + (part_ == Part::train ? "train" : "test") +
         ", version 1, seed " + std::to_string(seed_) + ": " + std::to_string(records_) +
         " records, 28x28 = 784 features";
}

SyntheticSource::Digit SyntheticSource::drawn(std::uint64_t index) {
  Block& block = blocks_[static_cast<std::size_t>(index / block_records)];
  if (block.labels.empty()) {
    block.pixels.resize(block_records * drawing_pixels);
    block.labels.assign(block_records, not_drawn);
  }
  const auto slot = static_cast<std::size_t>(index % block_records);
  const auto pixels =
      std::span(block.pixels).subspan(slot * drawing_pixels).first<drawing_pixels>();
  if (block.labels[slot] == not_drawn) {
    const DrawingId id{seed_, static_cast<std::uint32_t>(part_), index};
    draw(id, pixels);
    block.labels[slot] = static_cast<std::uint8_t>(drawn_label(id));
  }
  return {pixels, block.labels[slot]};
}

void SyntheticSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                           std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Digit digit = drawn(ids[i]);
    scale_.apply(digit.pixels, x.subspan(i * drawing_pixels, drawing_pixels));
    labels[i] = digit.label;
  }
}

void SyntheticSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                                 std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Digit digit = drawn(ids[i]);
    std::copy(digit.pixels.begin(), digit.pixels.end(),
              x.subspan(i * drawing_pixels, drawing_pixels).begin());
    labels[i] = digit.label;
  }
}

}  // namespace lockstep::data

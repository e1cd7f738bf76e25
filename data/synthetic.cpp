#include "lockstep/data/synthetic.hpp"

#include <algorithm>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

std::vector<std::uint64_t> DrawnSet::shape() const {
  if (channels == 1) return {side, side};
  return {side, side, channels};
}

std::array<const DrawnSet*, 2> drawn_sets() noexcept { return {&drawn_digits, &drawn_objects}; }

const DrawnSet* drawn_set(std::string_view name) noexcept {
  for (const DrawnSet* set : drawn_sets()) {
    if (name == set->name) return set;
  }
  return nullptr;
}

SyntheticSource::SyntheticSource(const DrawnSet& set, Part part, const ReadOptions& options)
    : set_(set),
      part_(part),
      records_(std::min(set.records(part), checked_limit(options).value_or(set.records(part)))),
      classes_(options.classes.value_or(10)),
      scale_(options.divide_by),
      blocks_(ceil_divide(records_, block_records)) {
  if (classes_ < 10) {
    throw ConfigError("the built-in data set has 10 classes, not " + std::to_string(classes_),
                      "give `classes=10` or more, or other data with `data`");
  }
}

std::string SyntheticSource::identity() const {
  return std::string(set_.title) + ", " + (part_ == Part::train ? "train" : "test") + ", version " +
         std::to_string(set_.version) + ", seed " + std::to_string(synthetic_seed) + ": " +
         std::to_string(records_) + " records, " + shape_text(shape()) + " = " +
         std::to_string(features()) + " features";
}

SyntheticSource::Image SyntheticSource::drawn(std::uint64_t index) {
  Block& block = blocks_[static_cast<std::size_t>(index / block_records)];
  if (block.labels.empty()) {
    block.pixels.resize(block_records * features());
    block.labels.assign(block_records, not_drawn);
  }
  const auto slot = static_cast<std::size_t>(index % block_records);
  const auto pixels = std::span(block.pixels).subspan(slot * features(), features());
  if (block.labels[slot] == not_drawn) {
    const DrawingId id{synthetic_seed, static_cast<std::uint32_t>(part_), index};
    set_.draw(id, pixels);
    block.labels[slot] = static_cast<std::uint8_t>(set_.label_of(id));
  }
  return {pixels, block.labels[slot]};
}

void SyntheticSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                           std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Image image = drawn(ids[i]);
    scale_.apply(image.pixels, x.subspan(i * features(), features()));
    labels[i] = image.label;
  }
}

void SyntheticSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                                 std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Image image = drawn(ids[i]);
    std::copy(image.pixels.begin(), image.pixels.end(),
              x.subspan(i * features(), features()).begin());
    labels[i] = image.label;
  }
}

}  // namespace lockstep::data

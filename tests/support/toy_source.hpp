// A small data set in memory, for tests of what consumes one.
#pragma once

#include <algorithm>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "lockstep/data/source.hpp"

namespace lockstep {

/// Gaussian features; the label is the index of the greatest of the first `classes` of them.
class ToySource final : public data::Source {
 public:
  ToySource(std::uint64_t records, std::size_t features, int classes, unsigned seed = 1)
      : records_(records), features_(features), x_(records * features) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : x_) value = normal(random);
    for (std::uint64_t i = 0; i < records; ++i) {
      const float* row = x_.data() + i * features;
      labels_.push_back(static_cast<std::int32_t>(std::max_element(row, row + classes) - row));
    }
  }

  std::uint64_t records() const noexcept override { return records_; }
  std::size_t features() const noexcept override { return features_; }
  float divisor() const noexcept override { return 1; }
  std::string identity() const override { return "toy"; }
  bool has_weights() const noexcept override { return !weights_.empty(); }
  float weight(std::uint64_t id) const noexcept override {
    return weights_.empty() ? 1.0F : weights_[id];
  }

  std::size_t targets() const noexcept override { return values_.size() / records_; }
  void target_values(std::uint64_t id, std::span<float> values) const noexcept override {
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(id * values.size()), values.size(),
                values.begin());
  }

  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override {
    if (on_read) on_read(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(x_.begin() + static_cast<std::ptrdiff_t>(ids[i] * features_), features_,
                  x.begin() + static_cast<std::ptrdiff_t>(i * features_));
      labels[i] = labels_[ids[i]];
    }
  }

  /// Multiplies the features of a record.
  void scale(std::uint64_t record, float factor) {
    const auto row = std::span(x_).subspan(record * features_, features_);
    for (float& value : row) value *= factor;
  }

  /// Gives each record a weight.
  void set_weights(const std::function<float(std::uint64_t record)>& weight) {
    weights_.clear();
    for (std::uint64_t i = 0; i < records_; ++i) weights_.push_back(weight(i));
  }

  /// Gives each record `width` values to predict.
  void set_values(std::size_t width,
                  const std::function<float(std::uint64_t record, std::size_t output)>& value) {
    values_.clear();
    for (std::uint64_t i = 0; i < records_; ++i) {
      for (std::size_t j = 0; j < width; ++j) values_.push_back(value(i, j));
    }
  }

  /// Called at every read with the number of records: where a test disturbs a run.
  std::function<void(std::size_t)> on_read;

 private:
  std::uint64_t records_;
  std::size_t features_;
  std::vector<float> x_;
  std::vector<std::int32_t> labels_;
  std::vector<float> weights_;
  std::vector<float> values_;
};

}  // namespace lockstep

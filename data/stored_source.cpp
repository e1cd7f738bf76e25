#include "data/stored_source.hpp"

#include <algorithm>
#include <utility>

#include "data/checks.hpp"
#include "lib/base/hash.hpp"

namespace lockstep::data {
namespace {

/// Consecutive records that one read of the disk may fetch.
constexpr std::uint64_t most_bytes_at_once = std::uint64_t{1} << 20;

}  // namespace

StoredSource::StoredSource(const char* format, std::filesystem::path path,
                           const ReadOptions& options)
    : content_(std::move(path)),
      limit_(checked_limit(options)),
      classes_(options.classes),
      format_(format),
      divide_by_(options.divide_by) {
  checked_divisor(divide_by_, 1.0F);
}

void StoredSource::describe(Element element, std::vector<std::uint64_t> shape) {
  element_ = element;
  features_ = 1;
  for (const std::uint64_t dim : shape) features_ *= static_cast<std::size_t>(dim);
  shape_ = std::move(shape);
  if (element == Element::byte) scale_.emplace(divide_by_);
  divisor_ = scale_ ? scale_->divisor() : checked_divisor(divide_by_, 1.0F);
}

std::string StoredSource::identity() const {
  Hash hash;
  hash.add_bytes(std::as_bytes(std::span(labels_)));
  return std::string(format_) + " " + bare_name(path()) +
         (labels_name_.empty() ? "" : " + " + labels_name_) + ": " + std::to_string(records()) +
         " records, " + shape_text(shape_) + " = " + std::to_string(features_) +
         (element_ == Element::byte ? " bytes" : " numbers") + ", labels " + to_hex(hash.value());
}

void StoredSource::scale_bytes(std::span<const std::uint8_t> bytes,
                               std::span<float> x) const noexcept {
  scale_->apply(bytes, x);
}

void StoredSource::divide(std::span<float> x) const noexcept {
  if (divisor_ != 1.0F) data::divide(x, divisor_);
}

void StoredSource::decode_bytes(std::uint64_t, std::size_t, std::span<const std::uint8_t> bytes,
                                std::span<std::uint8_t> x) {
  std::copy(bytes.begin(), bytes.end(), x.begin());
}

template <class Take>
void StoredSource::each_run(std::span<const std::uint64_t> ids, std::span<std::int32_t> labels,
                            Take take) {
  for (std::size_t i = 0; i < ids.size();) {
    const std::uint64_t first = ids[i];
    const std::uint64_t begin = offset(first);
    std::size_t run = 1;  // ids that follow one another come in one read
    while (i + run < ids.size() && ids[i + run] == first + run &&
           offset(first + run + 1) - begin <= most_bytes_at_once) {
      ++run;
    }
    const auto size = static_cast<std::size_t>(offset(first + run) - begin);
    if (scratch_.size() < size) scratch_.resize(size);
    const auto bytes = std::span(scratch_).first(size);
    content_.read_at(begin, bytes);
    bytes_read_ += size;
    take(i, first, run, bytes);
    for (std::size_t k = 0; k < run; ++k) labels[i + k] = labels_[first + k];
    i += run;
  }
}

void StoredSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  each_run(ids, labels, [&](std::size_t row, std::uint64_t first, std::size_t run, auto bytes) {
    decode(first, run, bytes, x.subspan(row * features_, run * features_));
  });
}

void StoredSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                              std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  each_run(ids, labels, [&](std::size_t row, std::uint64_t first, std::size_t run, auto bytes) {
    decode_bytes(first, run, bytes, x.subspan(row * features_, run * features_));
  });
}

}  // namespace lockstep::data

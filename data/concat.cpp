#include "data/concat.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "data/checks.hpp"

namespace lockstep::data {

ConcatSource::ConcatSource(std::vector<std::unique_ptr<Source>> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) throw std::invalid_argument("ConcatSource: no parts");
  std::uint64_t records = 0;
  for (const auto& part : parts_) {
    if (part->features() != parts_.front()->features()) {
      throw std::invalid_argument("ConcatSource: parts of " + std::to_string(features()) +
                                  " and of " + std::to_string(part->features()) + " features");
    }
    if (part->divisor() != divisor()) {
      throw std::invalid_argument("ConcatSource: parts divided by " + std::to_string(divisor()) +
                                  " and by " + std::to_string(part->divisor()));
    }
    if (part->element() != Element::byte) element_ = Element::number;
    records += part->records();
    ends_.push_back(records);
  }
}

std::string ConcatSource::identity() const {
  std::string text =
      std::to_string(records()) + " records in " + std::to_string(parts_.size()) + " parts";
  for (const auto& part : parts_) text += "; " + part->identity();
  return text;
}

std::uint64_t ConcatSource::bytes_read() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->bytes_read();
  return bytes;
}

std::vector<std::uint64_t> ConcatSource::file_records() const {
  std::vector<std::uint64_t> records;
  for (const auto& part : parts_) {
    const auto files = part->file_records();
    if (files.empty()) return {};
    records.insert(records.end(), files.begin(), files.end());
  }
  return records;
}

template <class Read>
void ConcatSource::each_run(std::span<const std::uint64_t> ids, Read read) {
  for (std::size_t i = 0; i < ids.size();) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), ids[i]);
    const auto part = static_cast<std::size_t>(end - ends_.begin());
    const std::uint64_t begin = part == 0 ? 0 : ends_[part - 1];
    const std::size_t row = i;
    local_ids_.clear();
    for (; i < ids.size() && ids[i] >= begin && ids[i] < *end; ++i) {
      local_ids_.push_back(ids[i] - begin);
    }
    read(*parts_[part], row, i - row);
  }
}

void ConcatSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  each_run(ids, [&](Source& part, std::size_t row, std::size_t count) {
    part.read(local_ids_, x.subspan(row * features(), count * features()),
              labels.subspan(row, count));
  });
}

void ConcatSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                              std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  each_run(ids, [&](Source& part, std::size_t row, std::size_t count) {
    part.read_bytes(local_ids_, x.subspan(row * features(), count * features()),
                    labels.subspan(row, count));
  });
}

}  // namespace lockstep::data

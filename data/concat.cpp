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

void ConcatSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x, labels);
  for (std::size_t i = 0; i < ids.size();) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), ids[i]);
    const auto part = static_cast<std::size_t>(end - ends_.begin());
    const std::uint64_t begin = part == 0 ? 0 : ends_[part - 1];
    const std::size_t first = i;
    local_ids_.clear();
    for (; i < ids.size() && ids[i] >= begin && ids[i] < *end; ++i) {
      local_ids_.push_back(ids[i] - begin);
    }
    const std::size_t count = i - first;
    parts_[part]->read(local_ids_, x.subspan(first * features(), count * features()),
                       labels.subspan(first, count));
  }
}

}  // namespace lockstep::data

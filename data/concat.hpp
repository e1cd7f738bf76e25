// Several sources one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/source.hpp"

namespace lockstep::data {

/// Sources one after the other as one: record 0 of the second follows the last of the first.
///
/// Owns them. Local; not thread-safe.
class ConcatSource final : public Source {
 public:
  /// Throws std::invalid_argument for no parts, or parts with different numbers of features or
  /// different divisors.
  explicit ConcatSource(std::vector<std::unique_ptr<Source>> parts);

  std::uint64_t records() const noexcept override { return ends_.back(); }
  std::size_t features() const noexcept override { return parts_.front()->features(); }
  float divisor() const noexcept override { return parts_.front()->divisor(); }
  std::vector<std::uint64_t> file_records() const override;
  /// Bytes where all parts are.
  Element element() const noexcept override { return element_; }
  std::vector<std::uint64_t> shape() const override { return parts_.front()->shape(); }
  std::vector<std::string> columns() const override { return parts_.front()->columns(); }
  std::uint64_t bytes_read() const noexcept override;
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  /// Calls `read(part, row, count)` for ids[row, row + count), which are local_ids_ of one part.
  template <class Read>
  void each_run(std::span<const std::uint64_t> ids, Read read);

  Element element_ = Element::byte;
  std::vector<std::unique_ptr<Source>> parts_;
  std::vector<std::uint64_t> ends_;  // ends_[i]: records of parts 0 to i
  std::vector<std::uint64_t> local_ids_;
};

}  // namespace lockstep::data

// How ranks that open the same table share the work: each scans a part of its records.
//
// The parts' results, in the order of the file, equal those of one scan of the whole file. Where
// that may not be so (a part has an error, ranks have different files), every rank scans the whole
// file, which finds the same error, or none, as on one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
class Content;

/// This rank's part of `content`, about 1 / ranks of its bytes; it may be empty. Nullopt, on all
/// ranks: each is to scan all. `what` names the scan.
///
/// Counts the quotes and lines of 1 / ranks of the bytes, the first time: whether a newline is in
/// quotes depends on all that precede it.
/// Errors   throws what Content::read_at throws.
/// Ranks    collective. `content` must be finished (Content::finish).
std::optional<CsvPart> part_to_scan(Content& content, const char* what, const OpeningRanks* ranks);

/// What `scan(part)` returned on each rank, in rank order, valid until ranks->gather is called
/// again. Nullopt, on all ranks: each is to scan all, because it threw an Error on some rank, or
/// part_to_scan() returned nullopt. Collective.
template <class Scan>
std::optional<std::vector<std::string_view>> scan_parts(Content& content, const char* what,
                                                        const OpeningRanks* ranks, Scan scan) {
  const auto part = part_to_scan(content, what, ranks);
  if (!part) return std::nullopt;
  std::string mine;
  try {
    mine = scan(*part);
    mine += '+';
  } catch (const Error&) {
    mine = '-';
  }
  auto all = ranks->gather(mine);
  if (!all) return std::nullopt;
  for (std::string_view& one : *all) {
    if (one.back() == '-') return std::nullopt;
    one.remove_suffix(1);
  }
  return all;
}

/// Writes what a rank found, for others of the same program.
class Findings {
 public:
  template <class T>
  void add(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::uint64_t count = values.size();
    text_.append(reinterpret_cast<const char*>(&count), sizeof count);
    text_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  void add(std::uint64_t number) { add(std::span<const std::uint64_t>(&number, 1)); }
  void add(std::string_view text) { add(std::span<const char>(text.data(), text.size())); }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Reads them, in the order in which they were added.
class FindingsReader {
 public:
  explicit FindingsReader(std::string_view text) : text_(text) {}

  /// Appends to `values`.
  template <class T>
  void append_to(std::vector<T>& values) {
    const std::size_t bytes = take_count() * sizeof(T);
    const std::size_t before = values.size();
    values.resize(before + bytes / sizeof(T));
    if (bytes > 0) std::memcpy(values.data() + before, text_.data() + at_, bytes);
    at_ += bytes;
  }
  std::uint64_t number() {
    take_count();
    std::uint64_t number = 0;
    std::memcpy(&number, text_.data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  std::string_view text() {
    const std::size_t size = take_count();
    at_ += size;
    return text_.substr(at_ - size, size);
  }

 private:
  std::size_t take_count() {
    std::uint64_t count = 0;
    std::memcpy(&count, text_.data() + at_, sizeof count);
    at_ += sizeof count;
    return static_cast<std::size_t>(count);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace lockstep::data

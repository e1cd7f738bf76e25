#include "lockstep/data/opening.hpp"

#include <algorithm>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/packing.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
namespace {

constexpr std::uint64_t sampled_blocks = 64;

/// Calls `take(bytes)` for the bytes from `begin` to `end`, until it returns false.
template <class Take>
void each_chunk(Content& content, std::uint64_t begin, std::uint64_t end, std::uint64_t chunk,
                Take take) {
  std::vector<std::uint8_t> bytes;
  while (begin < end) {
    bytes.resize(static_cast<std::size_t>(std::min(chunk, end - begin)));
    content.read_at(begin, bytes);
    if (!take(std::span<const std::uint8_t>(bytes))) return;
    begin += bytes.size();
  }
}

struct Counts {
  std::uint64_t quotes = 0;
  std::uint64_t lines = 0;
};

/// The number of bytes that are `wanted`.
std::uint64_t count(std::span<const std::uint8_t> bytes, std::uint8_t wanted) noexcept {
  constexpr std::size_t block =
      128;  // their count fits a byte: compilers count 16 and more at once
  std::uint64_t all = 0;
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(block, bytes.size()));
    std::uint8_t found = 0;
    for (const std::uint8_t byte : some)
      found = static_cast<std::uint8_t>(found + (byte == wanted));
    all += found;
    bytes = bytes.subspan(some.size());
  }
  return all;
}

Counts count(Content& content, std::uint64_t begin, std::uint64_t end) {
  Counts counts;
  each_chunk(content, begin, end, std::uint64_t{1} << 16, [&](auto bytes) {
    counts.quotes += count(bytes, '"');
    counts.lines += count(bytes, '\n');
    return true;
  });
  return counts;
}

/// The first record that begins at `from` or behind it; `before`: what precedes `from`.
CsvPart first_record(Content& content, std::uint64_t from, Counts before) {
  if (from == 0) return {};
  CsvPart part{.begin = content.size(), .line = before.lines + 1};
  std::uint64_t at = from - 1;  // a newline there ends the record before
  bool is_first = true;
  bool quoted = before.quotes % 2 != 0;
  each_chunk(content, at, content.size(), std::uint64_t{1} << 12, [&](auto bytes) {
    for (const std::uint8_t byte : bytes) {
      ++at;
      if (byte == '"' && !is_first) quoted = !quoted;
      if (byte == '\n' && !is_first) ++part.line;
      is_first = false;
      if (byte != '\n' || quoted) continue;
      part.begin = at;
      return false;
    }
    return true;
  });
  return part;
}

}  // namespace

std::optional<CsvPart> part_to_scan(Content& content, std::string_view what,
                                    const OpeningRanks* ranks) {
  if (ranks == nullptr || ranks->ranks == 1) return std::nullopt;
  const auto all = static_cast<std::uint64_t>(ranks->ranks);
  const auto me = static_cast<std::uint64_t>(ranks->rank);
  const std::uint64_t size = content.size();
  const auto begin_of = [&](std::uint64_t rank) { return share_begin(size, rank, all); };
  const bool is_large = size >= std::max(ranks->least_bytes, all);
  Hash of_file;  // ranks on other hosts may have another one
  of_file.add(bare_name(content.path()));
  of_file.add(size);
  if (is_large) content.add_sample(of_file, size, sampled_blocks);
  Hash key;
  key.add(content.path().string());
  key.add(of_file.value());
  const auto known = ranks->parts.find(key.value());
  const bool is_known = known != ranks->parts.end();
  Counts mine;
  if (is_large && !is_known) mine = count(content, begin_of(me), begin_of(me + 1));
  Hash hash;
  hash.add(what);
  hash.add(of_file.value());
  hash.add(std::uint64_t{is_known});
  Packer findings;
  for (const std::uint64_t number : {hash.value(), mine.quotes, mine.lines}) findings.add(number);
  const auto found = ranks->gather(findings.take());
  if (!found) return std::nullopt;
  bool are_equal = true;
  std::vector<Counts> before(all + 1);  // the parts of ranks
  for (std::size_t rank = 0; rank < found->size(); ++rank) {
    Unpacker reader((*found)[rank]);
    are_equal = reader.number() == hash.value() && are_equal;
    before[rank + 1].quotes = before[rank].quotes + reader.number();
    before[rank + 1].lines = before[rank].lines + reader.number();
  }
  if (!is_large || !are_equal) return std::nullopt;
  if (is_known) return known->second;
  CsvPart part = first_record(content, begin_of(me), before[me]);
  part.end = me + 1 == all ? size : first_record(content, begin_of(me + 1), before[me + 1]).begin;
  ranks->parts[key.value()] = part;
  return part;
}

}  // namespace lockstep::data

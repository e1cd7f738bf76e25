// How ranks that open the same table share the work: each scans a part of its records.
//
// The parts' results, in the order of the file, equal those of one scan of the whole file. Where
// that may not be so (a part has an error, ranks have different files or columns), every rank scans
// the whole file, which finds the same error, or none, as on one rank.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/source.hpp"

namespace lockstep::data {
class Content;

/// This rank's part of `content`, about 1 / ranks of its bytes; it may be empty. Nullopt, on all
/// ranks: each is to scan all. `what` names the scan and all that its result depends on besides the
/// file, such as a hash of the columns.
///
/// Counts the quotes and lines of 1 / ranks of the bytes, the first time: whether a newline is in
/// quotes depends on all that precede it.
/// Errors   throws what Content::read_at throws.
/// Ranks    collective. `content` must be finished (Content::finish).
std::optional<CsvPart> part_to_scan(Content& content, std::string_view what,
                                    const OpeningRanks* ranks);

/// What `scan(part)` returned on each rank, in rank order, valid until ranks->gather is called
/// again. Nullopt, on all ranks: each is to scan all, because it threw an Error on some rank, or
/// part_to_scan() returned nullopt. Collective.
template <class Scan>
std::optional<std::vector<std::string_view>> scan_parts(Content& content, std::string_view what,
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

}  // namespace lockstep::data

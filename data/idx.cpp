#include "lockstep/data/idx.hpp"

#include <algorithm>
#include <array>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
IdxSource::IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels,
                     const ReadOptions& options)
    : StoredSource("idx", images, options),
      header_(read_idx_header(content_, IdxKind::images, limit_.value_or(Content::all))) {
  describe(Element::byte, header_.dims);
  if (options.needs_labels) {
    load_labels(labels);
  } else {
    lack_labels(header_.records);
  }
  content_.map();
}

void IdxSource::load_labels(const std::filesystem::path& path) {
  Content content(path);
  const std::uint64_t wanted = std::min(header_.records, limit_.value_or(header_.records));
  const IdxHeader header = read_idx_header(content, IdxKind::labels, wanted);
  if (header.records != header_.records) {
    throw DataError(place(path, 4) + ": holds " + std::to_string(header.records) + " labels, but " +
                        content_.path().string() + " holds " + std::to_string(header_.records) +
                        " images",
                    "use two files that were published together");
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(wanted));
  content.read_at(header.header_bytes, bytes);
  labels_.reserve(bytes.size());
  for (std::uint64_t record = 0; record < wanted; ++record) {
    labels_.push_back(checked_label(bytes[static_cast<std::size_t>(record)], classes_, record,
                                    [&] { return content.place(header.header_bytes + record); }));
  }
  labels_path_ = path;
}

std::uint64_t IdxSource::offset(std::uint64_t index) const noexcept {
  return header_.header_bytes + index * header_.record_bytes;
}

void IdxSource::decode(std::uint64_t, std::size_t, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  scale_bytes(bytes, x);
}

namespace {

constexpr std::uint32_t labels_magic = 0x801;
constexpr std::uint32_t min_images_magic = 0x802;
constexpr std::uint32_t max_images_magic = 0x804;

std::string hex(std::uint32_t value) { return "0x" + to_hex(value).substr(8); }

void check_magic(std::uint32_t magic, IdxKind kind, const std::filesystem::path& path) {
  const bool images = magic >= min_images_magic && magic <= max_images_magic;
  const bool labels = magic == labels_magic;
  if (kind == IdxKind::images ? images : labels) return;
  const std::string what = images   ? " (IDX images)"
                           : labels ? " (IDX labels)"
                                    : " (not an IDX file of bytes)";
  const std::string expected = kind == IdxKind::images
                                   ? "0x00000803 (IDX images; 0x00000802 and 0x00000804 also do)"
                                   : "0x00000801 (IDX labels)";
  throw DataError(
      place(path, 0) + ": the magic number is " + hex(magic) + what + ", expected " + expected,
      images || labels ? "check whether images and labels are exchanged" : fetch_again);
}

/// The header, but for its `record_bytes`.
IdxHeader parse_header(Content& content, IdxKind kind) {
  const auto number = [&content](std::uint64_t offset) {
    std::array<std::uint8_t, 4> bytes{};
    content.read_at(offset, bytes);
    return big_endian(bytes);
  };
  const std::uint32_t magic = number(0);
  check_magic(magic, kind, content.path());
  IdxHeader header;
  header.header_bytes = 4 + std::uint64_t{4} * (magic & 0xFFU);
  header.records = number(4);
  for (std::uint64_t at = 8; at < header.header_bytes; at += 4) header.dims.push_back(number(at));
  return header;
}

}  // namespace

IdxHeader read_idx_header(Content& content, IdxKind kind, std::uint64_t keep) {
  IdxHeader header = parse_header(content, kind);
  if (header.records == 0) {
    throw DataError(place(content.path(), 4) + ": holds 0 records", "give it at least one");
  }
  const std::string shape = shape_text(header.dims);
  if (contains(header.dims, 0U)) {
    throw DataError(place(content.path(), 8) + ": images are " + shape + ", without a pixel",
                    fetch_again);
  }
  const std::string array = std::to_string(header.records) + " records of " + shape + " bytes";
  const auto bytes = record_bytes(header.records, header.dims, 1);
  if (!bytes) {
    throw DataError(place(content.path(), 4) + ": " + array + " are more than any file holds",
                    fetch_again);
  }
  header.record_bytes = *bytes;
  const auto end = [&header](std::uint64_t records) {
    return header.header_bytes + records * header.record_bytes;
  };
  finish_array(content, end(header.records), end(std::min(keep, header.records)), array + " make",
               content.place(4) + ": " + array + " cannot come from so short a file");
  return header;
}

}  // namespace lockstep::data

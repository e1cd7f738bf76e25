#include "lockstep/data/idx.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
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

constexpr std::size_t max_idx_dims = 4;
constexpr std::uint32_t labels_magic = 0x801;
constexpr std::uint32_t min_images_magic = 0x802;
constexpr std::uint32_t max_images_magic = 0x804;

std::string hex(std::uint32_t value) { return "0x" + to_hex(value).substr(8); }

/// Reads the fields of a header in order.
class HeaderParser {
 public:
  HeaderParser(Content& content, IdxKind kind) : content_(content), kind_(kind) {}

  IdxHeader parse() {
    std::array<std::uint8_t, 4> bytes{};
    content_.read_at(0, bytes);
    const std::uint32_t magic = big_endian(bytes);
    check_magic(magic);
    const std::size_t dims = magic & 0xFFU;
    std::array<std::uint64_t, max_idx_dims> values{};
    for (std::size_t i = 0; i < dims; ++i) {
      content_.read_at(4 * (i + 1), bytes);
      values[i] = big_endian(bytes);
    }
    return header(std::span(values).first(dims));
  }

 private:
  void check_magic(std::uint32_t magic) const {
    const bool images = magic >= min_images_magic && magic <= max_images_magic;
    const bool labels = magic == labels_magic;
    if (kind_ == IdxKind::images ? images : labels) return;
    const std::string what = images   ? " (IDX images)"
                             : labels ? " (IDX labels)"
                                      : " (not an IDX file of bytes)";
    const std::string expected = kind_ == IdxKind::images
                                     ? "0x00000803 (IDX images; 0x00000802 and 0x00000804 also do)"
                                     : "0x00000801 (IDX labels)";
    throw DataError(
        place(content_.path(), 0) + ": the magic number is " + hex(magic) + what + ", expected " +
            expected,
        images || labels ? "check whether images and labels are exchanged" : fetch_again);
  }

  IdxHeader header(std::span<const std::uint64_t> values) const {
    IdxHeader header;
    header.records = values[0];
    header.dims.assign(values.begin() + 1, values.end());
    header.header_bytes = 4 + 4 * values.size();
    if (header.records == 0) {
      throw DataError(place(content_.path(), 4) + ": holds 0 records", "give it at least one");
    }
    std::optional<std::uint64_t> each = 1;
    for (const std::uint64_t dim : header.dims) each = each ? product(*each, dim) : each;
    if (each == 0U) {
      throw DataError(place(content_.path(), 8) + ": images are " + shape_text(header.dims) +
                          ", without a pixel",
                      fetch_again);
    }
    const auto total = each ? product(*each, header.records) : each;
    if (!total || *total > max_stored_bytes) {
      throw DataError(place(content_.path(), 4) + ": " + std::to_string(header.records) +
                          " records of " + shape_text(header.dims) +
                          " bytes are more than any file holds",
                      fetch_again);
    }
    header.record_bytes = *each;
    return header;
  }

  Content& content_;
  IdxKind kind_;
};

void check_length(const IdxHeader& header, const Content& content) {
  const std::uint64_t expected = header.header_bytes + header.records * header.record_bytes;
  const std::uint64_t size = content.size();
  if (size == expected) return;
  throw DataError(content.place(std::min(size, expected)) + ": " + std::to_string(header.records) +
                      " records of " + shape_text(header.dims) + " bytes make a file of " +
                      std::to_string(expected) + " bytes, but it has " + std::to_string(size),
                  fetch_again);
}

void inflate_all(const IdxHeader& header, Content& content, std::uint64_t keep) {
  const std::uint64_t expected = header.header_bytes + header.records * header.record_bytes;
  if (expected > content.max_bytes()) {
    throw DataError(place(content.path(), 4) +
                        " (decompressed): " + std::to_string(header.records) + " records of " +
                        shape_text(header.dims) + " bytes cannot come from so short a file",
                    fetch_again);
  }
  content.finish(expected,
                 header.header_bytes + std::min(keep, header.records) * header.record_bytes);
}

}  // namespace

IdxHeader read_idx_header(Content& content, IdxKind kind, std::uint64_t keep) {
  const IdxHeader header = HeaderParser(content, kind).parse();
  if (content.compressed()) inflate_all(header, content, keep);
  check_length(header, content);
  return header;
}

}  // namespace lockstep::data

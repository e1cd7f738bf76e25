#include <algorithm>
#include <array>
#include <limits>

#include "data/gzip.hpp"
#include "data/idx.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::size_t most_dims = 4;
constexpr std::uint32_t labels_magic = 0x801;
constexpr std::uint32_t least_images_magic = 0x802;
constexpr std::uint32_t most_images_magic = 0x804;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 62;  // with a header still an off_t
const char* const fetch_again = "fetch the file again: this copy is incomplete or damaged";

std::uint32_t big_endian(std::span<const std::uint8_t, 4> bytes) noexcept {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

std::string hex(std::uint32_t value) {
  const char* const digits = "0123456789abcdef";
  std::string text = "0x00000000";
  for (std::size_t i = 0; i < 8; ++i) text[9 - i] = digits[value >> (4 * i) & 15];
  return text;
}

/// a * b, or nothing where that does not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

/// Reads a header piece by piece with `fill(offset, bytes)`.
class HeaderParser {
 public:
  HeaderParser(const std::filesystem::path& path, IdxKind kind) : path_(path), kind_(kind) {}

  template <class Fill>
  IdxHeader parse(Fill fill) {
    std::array<std::uint8_t, 4> bytes{};
    fill(std::uint64_t{0}, bytes);
    const std::uint32_t magic = big_endian(bytes);
    check_magic(magic);
    const std::size_t dims = magic & 0xFFU;
    std::array<std::uint64_t, most_dims> values{};
    for (std::size_t i = 0; i < dims; ++i) {
      fill(4 * (i + 1), bytes);
      values[i] = big_endian(bytes);
    }
    return header(std::span(values).first(dims));
  }

 private:
  void check_magic(std::uint32_t magic) const {
    const bool images = magic >= least_images_magic && magic <= most_images_magic;
    const bool labels = magic == labels_magic;
    if (kind_ == IdxKind::images ? images : labels) return;
    const std::string what = images   ? " (IDX images)"
                             : labels ? " (IDX labels)"
                                      : " (not an IDX file of bytes)";
    const std::string expected = kind_ == IdxKind::images
                                     ? "0x00000803 (IDX images; 0x00000802 and 0x00000804 also do)"
                                     : "0x00000801 (IDX labels)";
    throw DataError(
        place(path_, 0) + ": the magic number is " + hex(magic) + what + ", expected " + expected,
        images || labels ? "check whether images and labels are exchanged" : fetch_again);
  }

  IdxHeader header(std::span<const std::uint64_t> values) const {
    IdxHeader header;
    header.records = values[0];
    header.dims.assign(values.begin() + 1, values.end());
    header.header_bytes = 4 + 4 * values.size();
    if (header.records == 0) {
      throw DataError(place(path_, 4) + ": holds 0 records", "give it at least one");
    }
    std::optional<std::uint64_t> each = 1;
    for (const std::uint64_t dim : header.dims) each = each ? product(*each, dim) : each;
    if (each == 0U) {
      throw DataError(place(path_, 8) + ": images are " + header.shape() + ", without a pixel",
                      fetch_again);
    }
    const auto total = each ? product(*each, header.records) : each;
    if (!total || *total > most_bytes) {
      throw DataError(place(path_, 4) + ": " + std::to_string(header.records) + " records of " +
                          header.shape() + " bytes are more than any file holds",
                      fetch_again);
    }
    header.record_bytes = *each;
    return header;
  }

  const std::filesystem::path& path_;
  IdxKind kind_;
};

}  // namespace

std::string IdxHeader::shape() const {
  if (dims.empty()) return "1";
  std::string text;
  for (const std::uint64_t dim : dims) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

IdxFile::IdxFile(const std::filesystem::path& path, IdxKind kind, std::optional<std::uint64_t> keep)
    : file_(path) {
  HeaderParser parser(file_.path(), kind);
  const bool compressed = is_gzip(file_);
  if (compressed) {
    GzipReader reader(file_);
    header_ =
        parser.parse([&](std::uint64_t, std::span<std::uint8_t> bytes) { reader.read(bytes); });
  } else {
    header_ = parser.parse(
        [&](std::uint64_t offset, std::span<std::uint8_t> bytes) { file_.read_at(offset, bytes); });
  }
  kept_ = std::min(header_.records, keep.value_or(header_.records));
  if (compressed) {
    inflate_all();
  } else {
    check_plain_size();
  }
}

void IdxFile::check_plain_size() const {
  const std::uint64_t expected = header_.header_bytes + header_.records * header_.record_bytes;
  if (file_.size() == expected) return;
  throw DataError(place(file_.path(), std::min(file_.size(), expected)) + ": " +
                      std::to_string(header_.records) + " records of " + header_.shape() +
                      " bytes make a file of " + std::to_string(expected) + " bytes, but it has " +
                      std::to_string(file_.size()),
                  fetch_again);
}

void IdxFile::inflate_all() {
  const std::uint64_t expected = header_.header_bytes + header_.records * header_.record_bytes;
  if (expected > most_inflated(file_.size())) {
    throw DataError(place(file_.path(), file_.size()) +
                        " (compressed): " + std::to_string(header_.records) + " records of " +
                        header_.shape() + " bytes cannot come from so short a file",
                    fetch_again);
  }
  GzipReader reader(file_);
  std::array<std::uint8_t, 4 * (most_dims + 1)> skipped{};
  reader.read(std::span(skipped).first(static_cast<std::size_t>(header_.header_bytes)));
  const auto bytes = static_cast<std::size_t>(kept_ * header_.record_bytes);
  inflated_ = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
  reader.read({inflated_.get(), bytes});
  std::vector<std::uint8_t> rest(std::size_t{1} << 16);
  std::uint64_t left = (header_.records - kept_) * header_.record_bytes;
  while (left > 0) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, rest.size()));
    reader.read(std::span(rest).first(count));
    left -= count;
  }
  reader.expect_end();
}

std::span<const std::uint8_t> IdxFile::view(std::uint64_t first, std::uint64_t count,
                                            std::vector<std::uint8_t>& scratch) const {
  const std::uint64_t offset = first * header_.record_bytes;
  const auto bytes = static_cast<std::size_t>(count * header_.record_bytes);
  if (inflated_) return {inflated_.get() + offset, bytes};
  if (scratch.size() < bytes) scratch.resize(bytes);
  const auto filled = std::span(scratch).first(bytes);
  file_.read_at(header_.header_bytes + offset, filled);
  return filled;
}

}  // namespace lockstep::data

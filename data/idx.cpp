#include "data/idx.hpp"

#include <algorithm>

#include "data/checks.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {

IdxSource::IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels,
                     const ReadOptions& options)
    : StoredSource("idx", images, options),
      header_(read_idx_header(content_, IdxKind::images, limit_.value_or(Content::all))) {
  describe(Element::byte, header_.dims);
  load_labels(labels);
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
    const std::uint8_t label = bytes[static_cast<std::size_t>(record)];
    const bool good = label < classes_;
    labels_.push_back(
        good ? label
             : checked_label(label, classes_, record, content.place(header.header_bytes + record)));
  }
  labels_name_ = bare_name(path);
}

std::uint64_t IdxSource::offset(std::uint64_t index) const noexcept {
  return header_.header_bytes + index * header_.record_bytes;
}

void IdxSource::decode(std::uint64_t, std::size_t, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  scale_bytes(bytes, x);
}

}  // namespace lockstep::data

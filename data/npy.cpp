#include "data/npy.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "data/checks.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

/// Calls `take(index, value)` for every element of `bytes`, each as a T.
template <class T, class Take>
void each_of(std::span<const std::uint8_t> bytes, bool swapped, Take take) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    std::uint8_t raw[sizeof(T)];
    std::memcpy(raw, bytes.data() + i * sizeof(T), sizeof(T));
    if (swapped) std::reverse(raw, raw + sizeof(T));
    T value;
    std::memcpy(&value, raw, sizeof value);
    take(i, value);
  }
}

template <class Take>
void each_element(const NpyType& type, std::span<const std::uint8_t> bytes, Take take) {
  const bool is_signed = type.kind == 'i';
  if (type.kind == 'f') {
    return type.bytes == 4 ? each_of<float>(bytes, type.swapped, take)
                           : each_of<double>(bytes, type.swapped, take);
  }
  switch (type.bytes) {
    case 1:
      return is_signed ? each_of<std::int8_t>(bytes, false, take)
                       : each_of<std::uint8_t>(bytes, false, take);
    case 2:
      return is_signed ? each_of<std::int16_t>(bytes, type.swapped, take)
                       : each_of<std::uint16_t>(bytes, type.swapped, take);
    case 4:
      return is_signed ? each_of<std::int32_t>(bytes, type.swapped, take)
                       : each_of<std::uint32_t>(bytes, type.swapped, take);
    default:
      return is_signed ? each_of<std::int64_t>(bytes, type.swapped, take)
                       : each_of<std::uint64_t>(bytes, type.swapped, take);
  }
}

bool is_bytes(const NpyType& type) noexcept { return type.kind == 'u' && type.bytes == 1; }

}  // namespace

NpySource::NpySource(const std::filesystem::path& images, const std::filesystem::path& labels,
                     const ReadOptions& options)
    : StoredSource("npy", images, options),
      header_(read_npy_header(content_, limit_.value_or(Content::all))) {
  if (header_.shape.size() < 2) {
    throw DataError(content_.place(10) + ": images have one dimension, expected (records, ...)",
                    "check whether images and labels are exchanged");
  }
  describe(is_bytes(header_.type) ? Element::byte : Element::number,
           {header_.shape.begin() + 1, header_.shape.end()});
  load_labels(labels);
}

void NpySource::load_labels(const std::filesystem::path& path) {
  Content content(path);
  const std::uint64_t wanted = std::min(header_.shape[0], limit_.value_or(header_.shape[0]));
  const NpyHeader header = read_npy_header(content, wanted);
  if (header.record_elements != 1 || header.shape.size() > 2) {
    throw DataError(content.place(10) + ": labels of shape (" + shape_text(header.shape) +
                        "), expected one number a record",
                    "check whether images and labels are exchanged");
  }
  if (!header.type.is_integer()) {
    throw DataError(content.place(10) + ": labels of type '" + header.descr + "' are no integers",
                    "save them so: numpy.save(path, labels.astype('int64'))");
  }
  if (header.shape[0] != header_.shape[0]) {
    throw DataError(content.place(10) + ": holds " + std::to_string(header.shape[0]) +
                        " labels, but " + content_.path().string() + " holds " +
                        std::to_string(header_.shape[0]) + " images",
                    "use two files that were published together");
  }
  labels_.reserve(static_cast<std::size_t>(wanted));
  constexpr std::uint64_t chunk = 1 << 16;
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t first = 0; first < wanted; first += chunk) {
    bytes.resize(static_cast<std::size_t>(std::min(chunk, wanted - first)) * header.type.bytes);
    const std::uint64_t offset = header.header_bytes + first * header.type.bytes;
    content.read_at(offset, bytes);
    each_element(header.type, bytes, [&](std::size_t i, auto value) {
      const auto label = value > decltype(value){0} && static_cast<std::uint64_t>(value) >> 63 != 0
                             ? std::numeric_limits<std::int64_t>::max()  // more than any class
                             : static_cast<std::int64_t>(value);
      const bool good = label >= 0 && label < classes_;
      labels_.push_back(good ? static_cast<std::int32_t>(label)
                             : checked_label(label, classes_, first + i,
                                             content.place(offset + i * header.type.bytes)));
    });
  }
  labels_name_ = bare_name(path);
}

std::uint64_t NpySource::offset(std::uint64_t index) const noexcept {
  return header_.header_bytes + index * header_.record_bytes();
}

void NpySource::decode(std::uint64_t first, std::size_t, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  if (is_bytes(header_.type)) return scale_bytes(bytes, x);
  const auto check = [&](std::size_t i, float value) {
    if (std::isfinite(value)) return;
    throw DataError(content_.place(offset(first) + i * header_.type.bytes) +
                        ": a feature of record " + std::to_string(first + i / features()) +
                        " is not finite (in float32)",
                    "mend the array: numpy.isfinite finds such elements");
  };
  each_element(header_.type, bytes, [&](std::size_t i, auto value) {
    x[i] = static_cast<float>(value);
    check(i, x[i]);
  });
  divide(x);
}

}  // namespace lockstep::data

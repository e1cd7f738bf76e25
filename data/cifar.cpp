#include "lockstep/data/cifar.hpp"

#include <algorithm>
#include <string>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

constexpr std::size_t side = 32;
constexpr std::size_t pixels = side * side;
constexpr std::size_t channels = 3;
constexpr std::size_t picture_bytes = channels * pixels;

/// True for train.bin and test.bin, which may be compressed.
bool is_cifar_100(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("train.") || name.starts_with("test.");
}

}  // namespace

CifarSource::CifarSource(const std::filesystem::path& path, const ReadOptions& options)
    : StoredSource("cifar", path, options), label_bytes_(is_cifar_100(path) ? 2 : 1) {
  content_.finish();
  const std::uint64_t size = content_.size();
  if (size == 0 || size % offset(1) != 0) {
    throw DataError(content_.place(size / offset(1) * offset(1)) + ": the file has " +
                        grouped(size) + " bytes, not a multiple of a record's " +
                        grouped(offset(1)),
                    std::string("fetch the binary version of ") +
                        (label_bytes_ == 1 ? "CIFAR-10" : "CIFAR-100") +
                        " again: this copy is incomplete, or another file");
  }
  const std::uint64_t records = std::min(size / offset(1), limit_.value_or(Content::all));
  describe(Element::byte, {side, side, channels});
  labels_.reserve(static_cast<std::size_t>(records));
  for (std::uint64_t record = 0; record < records; ++record) {
    std::uint8_t label = 0;
    content_.read_at(offset(record) + label_bytes_ - 1, {&label, 1});
    labels_.push_back(
        checked_label(label, classes_, record, [&] { return content_.place(offset(record)); }));
  }
  content_.map();
}

std::uint64_t CifarSource::offset(std::uint64_t index) const noexcept {
  return index * (label_bytes_ + picture_bytes);
}

void CifarSource::decode_bytes(std::uint64_t, std::size_t count,
                               std::span<const std::uint8_t> bytes, std::span<std::uint8_t> x) {
  for (std::size_t record = 0; record < count; ++record) {
    const std::uint8_t* const planes = bytes.data() + offset(record) + label_bytes_;
    std::uint8_t* const image = x.data() + record * channels * pixels;
    for (std::size_t i = 0; i < pixels; ++i) {
      for (std::size_t c = 0; c < channels; ++c) image[i * channels + c] = planes[c * pixels + i];
    }
  }
}

void CifarSource::decode(std::uint64_t first, std::size_t count,
                         std::span<const std::uint8_t> bytes, std::span<float> x) {
  if (pixels_.size() < x.size()) pixels_.resize(x.size());
  const auto image = std::span(pixels_).first(x.size());
  decode_bytes(first, count, bytes, image);
  scale_bytes(image, x);
}

}  // namespace lockstep::data

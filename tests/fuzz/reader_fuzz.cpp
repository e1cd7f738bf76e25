// libFuzzer target of one reader: the bytes are its file. Built once for each FUZZ_FORMAT.
//
// What is refused must be refused by DataError; what is accepted must be readable to the last
// record. Sanitizers and libFuzzer's limits of memory find the rest.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/picture.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/tfrecord.hpp"

namespace lockstep::data {
namespace {

/// A regular file that has no name but that of its descriptor.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes)
      : descriptor_(::memfd_create("fuzz", 0)) {
    if (descriptor_ < 0) std::abort();
    if (::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// No mutation finds a checksum: after an even first byte the rest becomes the payload of a record
/// whose checksums hold.
std::vector<std::uint8_t> framed(std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> out;
  const auto put = [&](std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) out.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  const auto payload = bytes.subspan(1);
  put(payload.size(), 8);
  put(masked(crc32c(out)), 4);
  out.insert(out.end(), payload.begin(), payload.end());
  put(masked(crc32c(payload)), 4);
  return out;
}

/// A pair is two bytes for the size of the images, the images, and the labels.
void read_pair_or_file(Format format, std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> frame;
  if (format == Format::tfrecord && !bytes.empty() && bytes[0] % 2 == 0) {
    frame = framed(bytes);
    bytes = frame;
  }
  std::size_t first = bytes.size();
  if (is_paired(format)) {
    if (bytes.size() < 2) return;
    const std::size_t size = bytes[0] + 256U * bytes[1];
    bytes = bytes.subspan(2);
    first = std::min(size, bytes.size());
  }
  const MemoryFile records(bytes.first(first));
  const MemoryFile labels(bytes.subspan(first));
  const auto source = open_files(format, {records.path(), labels.path()}, {});
  constexpr std::uint64_t max = 256;
  const auto count = static_cast<std::size_t>(std::min(source->records(), max));
  std::vector<std::uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), source->records() - count);
  std::vector<float> x(count * source->features());
  std::vector<std::int32_t> classes(count);
  source->read(ids, x, classes);
  for (const float value : x) {
    if (!std::isfinite(value)) std::abort();
  }
  for (const std::int32_t label : classes) {
    if (label < 0 || label >= 10) std::abort();
  }
}

void read_picture(std::span<const std::uint8_t> bytes) {
  const MemoryFile file(bytes);
  const ImageSize size{8, 8};
  constexpr std::size_t channels = 3;
  std::vector<std::uint8_t> x(size.rows * size.columns * channels);
  PictureReader().read(file.path(), size, channels, x);
}

void read_gzip(std::span<const std::uint8_t> bytes) {
  const MemoryFile file(bytes);
  Content content(file.path());
  content.finish(std::uint64_t{1} << 24);
  if (content.size() > content.max_bytes()) std::abort();
  std::uint8_t last = 0;
  if (content.size() > 0) content.read_at(content.size() - 1, {&last, 1});
}

}  // namespace
}  // namespace lockstep::data

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(data, size);
  try {
    const std::string_view name = FUZZ_FORMAT;
    const auto format = lockstep::data::format_named(name);
    if (name == "gzip") {
      lockstep::data::read_gzip(bytes);
    } else if (!format) {
      std::abort();
    } else if (*format == lockstep::data::Format::picture) {
      lockstep::data::read_picture(bytes);
    } else {
      lockstep::data::read_pair_or_file(*format, bytes);
    }
  } catch (const lockstep::DataError&) {
  }
  return 0;
}

#include "data/content.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "data/gzip.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 16;

std::string spill_folder() {
  const char* const named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
}

[[noreturn]] void fail_to_spill(const std::filesystem::path& path, int code) {
  throw OutputError(path.string() + ": cannot be decompressed into " + spill_folder() + ": " +
                        std::generic_category().message(code),
                    "set TMPDIR to a folder with room for it, or decompress the file yourself");
}

}  // namespace

Content::Content(std::filesystem::path path) : file_(std::move(path)), compressed_(is_gzip(file_)) {
  if (compressed_) reader_ = std::make_unique<GzipReader>(file_);
}

Content::~Content() {
  if (spill_ >= 0) ::close(spill_);
}

std::string Content::place(std::uint64_t offset) const {
  return data::place(path(), offset) + (compressed_ ? " (decompressed)" : "");
}

std::uint64_t Content::most_bytes() const noexcept {
  return compressed_ ? most_inflated(file_.size()) : file_.size();
}

void Content::open_spill() {
  std::string name = spill_folder() + "/lockstep-XXXXXX";
  spill_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (spill_ < 0) fail_to_spill(path(), errno);
  ::unlink(name.c_str());
}

void Content::keep(std::span<const std::uint8_t> bytes) {
  const std::uint64_t room = most_in_memory - memory_.size();
  const auto first =
      bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(room, bytes.size())));
  memory_.insert(memory_.end(), first.begin(), first.end());
  kept_ += bytes.size();
  bytes = bytes.subspan(first.size());
  if (!bytes.empty() && spill_ < 0) open_spill();
  while (!bytes.empty()) {
    const ssize_t written = ::write(spill_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_spill(path(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void Content::inflate_to(std::uint64_t end) {
  std::vector<std::uint8_t> chunk(chunk_bytes);
  while (inflated_ < end) {
    const std::uint64_t wanted = std::min<std::uint64_t>(end - inflated_, chunk.size());
    const auto bytes = std::span(chunk).first(static_cast<std::size_t>(wanted));
    reader_->read(bytes);
    keep(bytes);
    inflated_ += wanted;
  }
}

void Content::finish(std::uint64_t most, std::uint64_t keep_bytes) {
  if (!reader_) return;
  std::vector<std::uint8_t> chunk(chunk_bytes);
  for (;;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(most - inflated_, chunk.size());
    if (wanted == 0) {
      reader_->expect_end();
      break;
    }
    const std::size_t got =
        reader_->read_some(std::span(chunk).first(static_cast<std::size_t>(wanted)));
    if (got == 0) break;
    const std::uint64_t kept = std::clamp(keep_bytes, inflated_, inflated_ + got) - inflated_;
    keep(std::span(chunk).first(static_cast<std::size_t>(kept)));
    inflated_ += got;
  }
  reader_.reset();
}

void Content::read_at(std::uint64_t offset, std::span<std::uint8_t> bytes) {
  bytes_read_ += bytes.size();
  if (!compressed_) return file_.read_at(offset, bytes);
  if (reader_) inflate_to(offset + bytes.size());
  if (offset > kept_ || bytes.size() > kept_ - offset) {
    throw DataError(place(kept_) + ": the content ends here, too early",
                    "fetch the file again: this copy is incomplete or damaged");
  }
  if (offset < memory_.size()) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(memory_.size() - offset, bytes.size()));
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(offset), count, bytes.begin());
    bytes = bytes.subspan(count);
    offset += count;
  }
  while (!bytes.empty()) {
    const auto at = static_cast<off_t>(offset - most_in_memory);
    const ssize_t got = ::pread(spill_, bytes.data(), bytes.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw DataError(place(offset) + ": what was decompressed cannot be read back from " +
                      spill_folder());
    }
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace lockstep::data

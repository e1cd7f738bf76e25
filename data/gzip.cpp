#include "data/gzip.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 16;
constexpr int gzip_window = 15 + 16;  // zlib's way to say: the largest window, in a gzip wrapper

}  // namespace

bool is_gzip(const RegularFile& file) {
  std::array<std::uint8_t, 2> magic{};
  if (file.size() < magic.size()) return false;
  file.read_at(0, magic);
  return magic[0] == 0x1F && magic[1] == 0x8B;
}

std::uint64_t most_inflated(std::uint64_t compressed) noexcept {
  constexpr std::uint64_t best_ratio = 1032;  // 258 bytes from 2 bits
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return compressed > most / best_ratio ? most : compressed * best_ratio;
}

struct GzipReader::State {
  explicit State(const RegularFile& opened) : file(opened) {
    if (inflateInit2(&stream, gzip_window) != Z_OK) throw std::bad_alloc();
  }
  ~State() { inflateEnd(&stream); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::uint64_t offset() const noexcept { return loaded - stream.avail_in; }

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(place(file.path(), offset()) + " (compressed): " + problem,
                    "fetch the file again: this copy is damaged");
  }

  bool at_end() const noexcept { return member_ended && !input_left(); }
  bool input_left() const noexcept { return stream.avail_in > 0 || loaded < file.size(); }

  void load() {
    const std::uint64_t count = std::min<std::uint64_t>(chunk_bytes, file.size() - loaded);
    if (count == 0) fail("the gzip stream ends too early");
    file.read_at(loaded, std::span(input.data(), static_cast<std::size_t>(count)));
    loaded += count;
    stream.next_in = input.data();
    stream.avail_in = static_cast<uInt>(count);
  }

  /// One call of inflate, at the most `room` bytes to `out`; returns how many came.
  std::size_t inflate_some(std::uint8_t* out, std::size_t room) {
    if (stream.avail_in == 0) load();
    if (member_ended) {
      if (inflateReset(&stream) != Z_OK) fail("gzip cannot be restarted");
      member_ended = false;
    }
    stream.next_out = out;
    stream.avail_out = static_cast<uInt>(std::min<std::size_t>(room, 1U << 30));
    const uInt before = stream.avail_out;
    const int code = ::inflate(&stream, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code == Z_STREAM_END) member_ended = true;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      fail(std::string("the gzip stream is damaged: ") +
           (stream.msg != nullptr ? stream.msg : "it needs a dictionary"));
    }
    return before - stream.avail_out;
  }

  const RegularFile& file;
  z_stream stream{};
  std::uint64_t loaded = 0;
  bool member_ended = false;
  std::array<std::uint8_t, chunk_bytes> input{};
};

GzipReader::GzipReader(const RegularFile& file) : state_(std::make_unique<State>(file)) {}
GzipReader::~GzipReader() = default;

void GzipReader::read(std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) bytes = bytes.subspan(state_->inflate_some(bytes.data(), bytes.size()));
}

std::size_t GzipReader::read_some(std::span<std::uint8_t> bytes) {
  while (!state_->at_end()) {
    if (const std::size_t got = state_->inflate_some(bytes.data(), bytes.size()); got > 0)
      return got;
  }
  return 0;
}

void GzipReader::expect_end() {
  std::uint8_t one_more = 0;
  if (read_some({&one_more, 1}) > 0) {
    state_->fail("the decompressed bytes go on after the last record");
  }
}

}  // namespace lockstep::data

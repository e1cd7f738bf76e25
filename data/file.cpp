#include "lockstep/data/file.hpp"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/data/mapped_file.hpp"
#include "lockstep/data/tfrecord.hpp"

namespace lockstep::data {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

template <class Read>
void hash_sample(Hash& hash, std::uint64_t end, std::uint64_t blocks, Read read) {
  constexpr std::uint64_t block_bytes = 4096;
  hash.add(end);
  const bool whole = end <= blocks * block_bytes;
  const std::uint64_t gaps = blocks - 1;
  const std::uint64_t last = whole ? 0 : end - block_bytes;  // begin of the last block
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(whole ? end : block_bytes));
  for (std::uint64_t i = 0; i < (whole ? 1 : blocks); ++i) {
    read(share_begin(last, i, gaps), std::span(bytes));
    hash.add_bytes(std::as_bytes(std::span(bytes)));
  }
}

/// Permits this process as many open files as its user may have. False if it does already.
bool raise_limit_of_files() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// The descriptor that `open` returns, which may be negative with errno: at the limit of open files
/// after a second try under a higher one.
template <class Open>
Descriptor open_file(Open open) {
  Descriptor file(open());
  if (!file.is_open() && errno == EMFILE && raise_limit_of_files()) file = Descriptor(open());
  return file;
}

constexpr const char* fewer_files =
    "raise the limit of open files (`ulimit -Hn`), or give fewer and larger files";

}  // namespace

std::uint32_t big_endian(std::span<const std::uint8_t, 4> bytes) noexcept {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | std::uint32_t{bytes[3]};
}

std::string place(const std::filesystem::path& path, std::uint64_t offset) {
  return path.string() + ": byte " + std::to_string(offset);
}

RegularFile::RegularFile(std::filesystem::path path) : path_(std::move(path)) {
  file_ = open_file([&] { return ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
  if (!file_.is_open()) {
    const int code = errno;
    throw DataError(path_.string() + ": cannot be opened: " + system_reason(code),
                    code == EACCES   ? "make the file readable for the user who runs this"
                    : code == EMFILE ? fewer_files
                                     : "check the path, and where its links lead");
  }
  struct stat status {};
  const int code = ::fstat(file_.number(), &status) == 0 ? 0 : errno;
  if (code == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  if (code != 0)
    throw DataError(path_.string() + ": cannot be examined: " + system_reason(code),
                    "check the disk or file system that holds it");
  throw DataError(path_.string() + ": is " + kind_of(status.st_mode) + ", not a regular file",
                  "put a plain or gzip-compressed file in its place");
}

namespace {

/// The remedy for a file that has become shorter since it was opened.
constexpr const char* leave_alone =
    "leave data files alone while they are in use, and fetch this one again";

[[noreturn]] void fail_at_end(const std::filesystem::path& path, std::uint64_t end,
                              std::uint64_t missing, const char* remedy) {
  throw DataError(
      place(path, end) + ": the file ends here, " + std::to_string(missing) + " bytes too early",
      remedy);
}

}  // namespace

void RegularFile::read_at(std::uint64_t offset, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const auto got = file_.read_at(offset, std::as_writable_bytes(bytes));
    if (!got) {
      throw DataError(place(path_, offset) + ": cannot be read: " + system_reason(errno),
                      "check the disk or file system that holds it");
    }
    if (*got == 0 && size_ == 0) throw DataError(path_.string() + ": is empty", fetch_again);
    if (*got == 0) {
      fail_at_end(path_, offset, bytes.size(), offset < size_ ? leave_alone : fetch_again);
    }
    offset += *got;
    bytes = bytes.subspan(*got);
  }
}

void RegularFile::check_size() const {
  struct stat status {};
  if (::fstat(file_.number(), &status) != 0) return;
  const auto now = static_cast<std::uint64_t>(status.st_size);
  if (now < size_) fail_at_end(path_, now, size_ - now, leave_alone);
}

std::unique_ptr<MappedFile> RegularFile::map() const {
  return std::make_unique<MappedFile>(file_.number(), size_);
}

void RegularFile::add_sample(Hash& hash, std::uint64_t blocks) const {
  hash_sample(hash, size_, blocks, [this](auto offset, auto bytes) { read_at(offset, bytes); });
}

std::uint64_t sampled_blocks_of_each(std::size_t files) noexcept {
  constexpr std::uint64_t max_of_one = 64;
  constexpr std::uint64_t max_of_all = 256;
  return std::clamp<std::uint64_t>(max_of_all / std::max<std::uint64_t>(files, 1), 2, max_of_one);
}

/// Reads compressed data from its begin to its end.
class Decompressor {
 public:
  Decompressor() = default;
  virtual ~Decompressor() = default;
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Writes the next decompressed bytes to the front of `bytes`, which is not empty, and returns
  /// their number: at least 1, or 0 at the end, after all checks. Throws DataError, with the file,
  /// if the compressed data is damaged or ends early.
  virtual std::size_t read_some(std::span<std::uint8_t> bytes) = 0;

  /// Throws DataError unless the decompressed data ends exactly here and its checksums match.
  void expect_end() {
    std::uint8_t one_more = 0;
    if (read_some({&one_more, 1}) > 0) fail("the decompressed bytes go on after the last record");
  }

  /// Throws DataError with the current position.
  [[noreturn]] virtual void fail(const std::string& problem) const = 0;
};

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 16;

/// True if the file begins with gzip's two magic bytes and its only method; the name does not
/// matter. They may also be the length of a TFRecord's first record, whose checksum follows.
bool is_gzip(const RegularFile& file) {
  constexpr std::array<std::uint8_t, 3> deflate{0x1F, 0x8B, 8};
  std::array<std::uint8_t, 12> begin{};
  file.read_at(0, std::span(begin).first(std::min<std::size_t>(file.size(), begin.size())));
  return std::equal(deflate.begin(), deflate.end(), begin.begin()) && !is_record_header(begin);
}

/// A gzip file of one or more members: verifies every member's CRC and length. Uses about 150 kB.
class GzipReader final : public Decompressor {
 public:
  /// `file` must outlive it.
  explicit GzipReader(const RegularFile& file) : file_(file) {
    isal_inflate_init(&stream_);
    stream_.crc_flag = ISAL_GZIP;
  }

  std::size_t read_some(std::span<std::uint8_t> bytes) override {
    while (!member_ended() || has_member()) {
      const std::size_t got = inflate_some(bytes);
      if (got > 0) return got;
    }
    return 0;
  }

 private:
  /// True if another member follows. Some programs pad the file with zeros, which gzip ignores too.
  bool has_member() {
    for (;; ++stream_.next_in, --stream_.avail_in) {
      if (stream_.avail_in == 0 && loaded_ == file_.size()) return false;
      if (stream_.avail_in == 0) load();
      if (*stream_.next_in != 0) return true;
    }
  }
  bool member_ended() const noexcept { return stream_.block_state == ISAL_BLOCK_FINISH; }

  void load() {
    const std::uint64_t count = std::min<std::uint64_t>(chunk_bytes, file_.size() - loaded_);
    file_.read_at(loaded_, std::span(input_.data(), static_cast<std::size_t>(count)));
    loaded_ += count;
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<std::uint32_t>(count);
  }

  /// Decompresses once; returns the number of bytes written.
  std::size_t inflate_some(std::span<std::uint8_t> out) {
    if (member_ended()) {
      isal_inflate_reset(&stream_);
      stream_.crc_flag = ISAL_GZIP;
    }
    if (stream_.avail_in == 0) load();
    const std::uint32_t given = stream_.avail_in;
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<std::uint32_t>(std::min<std::size_t>(out.size(), 1U << 30));
    const std::uint32_t room = stream_.avail_out;
    const int code = isal_inflate(&stream_);
    if (code < 0) fail(std::string("the gzip stream is damaged: ") + problem_of(code));
    const std::size_t written = room - stream_.avail_out;
    if (written == 0 && given == 0 && !member_ended()) fail("the gzip stream ends too early");
    return written;
  }

  static const char* problem_of(int code) noexcept {
    switch (code) {
      case ISAL_INVALID_WRAPPER:
      case ISAL_UNSUPPORTED_METHOD: return "its header is wrong";
      case ISAL_INCORRECT_CHECKSUM: return "its checksum or length does not match";
      default: return "its codes are wrong";
    }
  }

  /// With the offset in the compressed data.
  [[noreturn]] void fail(const std::string& problem) const override {
    throw DataError(place(file_.path(), loaded_ - stream_.avail_in) + " (compressed): " + problem,
                    "fetch the file again: this copy is damaged");
  }

  const RegularFile& file_;
  inflate_state stream_;
  std::uint64_t loaded_ = 0;
  std::array<std::uint8_t, chunk_bytes> input_{};
};

struct CloseZip {
  void operator()(zip_t* archive) const noexcept { zip_discard(archive); }
  void operator()(zip_file_t* file) const noexcept { zip_fclose(file); }
};
using Archive = std::unique_ptr<zip_t, CloseZip>;

Archive open_archive(const std::filesystem::path& path) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (archive == nullptr && errno == EMFILE && raise_limit_of_files()) {
    archive.reset(zip_open(path.c_str(), ZIP_RDONLY, &code));
  }
  if (archive != nullptr) return archive;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const bool has_no_descriptor = zip_error_code_system(&error) == EMFILE;
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  throw DataError(path.string() + ": cannot be opened as a ZIP archive: " + text,
                  has_no_descriptor ? fewer_files : fetch_again);
}

/// One file of a ZIP archive.
class ZipReader final : public Decompressor {
 public:
  explicit ZipReader(std::filesystem::path path)
      : path_(std::move(path)),
        archive_(open_archive(path_.parent_path())),
        file_(zip_fopen(archive_.get(), path_.filename().c_str(), 0)) {
    if (file_ != nullptr) return;
    const std::string problem = std::string("cannot be read: ") + zip_strerror(archive_.get());
    const int code = zip_error_code_zip(zip_get_error(archive_.get()));
    const bool is_sound =
        code == ZIP_ER_COMPNOTSUPP || code == ZIP_ER_ENCRNOTSUPP || code == ZIP_ER_NOPASSWD;
    if (!is_sound) fail(problem);
    throw DataError(path_.string() + ": " + problem,
                    "save it with numpy.savez or numpy.savez_compressed");
  }

  std::size_t read_some(std::span<std::uint8_t> bytes) override {
    const auto got = zip_fread(file_.get(), bytes.data(), bytes.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    fail(std::string("cannot be decompressed: ") + zip_file_strerror(file_.get()));
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const override {
    throw DataError(path_.string() + ": " + problem, fetch_again);
  }

  std::filesystem::path path_;
  Archive archive_;
  std::unique_ptr<zip_file_t, CloseZip> file_;  // closed before the archive
};

}  // namespace

std::uint64_t max_inflated(std::uint64_t compressed) noexcept {
  constexpr std::uint64_t best_ratio = 1032;  // 258 bytes from 2 bits
  constexpr std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  return compressed > max / best_ratio ? max : compressed * best_ratio;
}

std::filesystem::path archive_of(const std::filesystem::path& path) {
  return is_npz_file(path.parent_path()) ? path.parent_path() : path;
}

bool is_npz_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.extension() == ".npz" && std::filesystem::is_regular_file(path, ignored);
}

std::vector<std::string> names_in_archive(const std::filesystem::path& archive) {
  const Archive opened = open_archive(archive);
  std::vector<std::string> names;
  for (zip_int64_t i = 0; i < zip_get_num_entries(opened.get(), 0); ++i) {
    const char* const name = zip_get_name(opened.get(), static_cast<zip_uint64_t>(i), 0);
    if (name != nullptr) names.emplace_back(name);
  }
  return names;
}

namespace {

/// `what` failed: "decompressed into", or "read back from".
[[noreturn]] void fail_to_spill(const std::filesystem::path& path, int code,
                                const std::string& what = "decompressed into") {
  throw OutputError(
      path.string() + ": cannot be " + what + " " + temporary_folder().string() + ": " +
          system_reason(code),
      code == EMFILE ? fewer_files
                     : "set TMPDIR to a folder with room for it, or decompress the file yourself");
}

}  // namespace

Content::Content(std::filesystem::path path) : path_(std::move(path)), file_(archive_of(path_)) {
  if (file_.path() != path_) {
    reader_ = std::make_unique<ZipReader>(path_);
  } else if (is_gzip(file_)) {
    reader_ = std::make_unique<GzipReader>(file_);
  }
  compressed_ = reader_ != nullptr;
}

Content::~Content() = default;

std::string Content::place(std::uint64_t offset) const {
  return data::place(path(), offset) + (compressed_ ? " (decompressed)" : "");
}

std::uint64_t Content::max_bytes() const noexcept {
  return compressed_ ? max_inflated(file_.size()) : file_.size();
}

void Content::open_spill() {
  std::string name;
  spill_ = open_file([&] {
    name = (temporary_folder() / "lockstep-XXXXXX").string();
    return ::mkostemp(name.data(), O_CLOEXEC);
  });
  if (!spill_.is_open()) fail_to_spill(path(), errno);
  ::unlink(name.c_str());
}

void Content::keep(std::span<const std::uint8_t> bytes) {
  const std::uint64_t room = max_in_memory - memory_.size();
  const auto first =
      bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(room, bytes.size())));
  memory_.insert(memory_.end(), first.begin(), first.end());
  kept_ += bytes.size();
  bytes = bytes.subspan(first.size());
  if (bytes.empty()) return;
  if (!spill_.is_open()) open_spill();
  if (!spill_.write_all(std::as_bytes(bytes))) fail_to_spill(path(), errno);
}

std::uint64_t Content::available(std::uint64_t end) {
  if (!compressed_) return std::min(end, file_.size());
  if (reader_ && inflated_ < end) {
    std::vector<std::uint8_t> chunk(chunk_bytes);
    while (inflated_ < end) {
      const std::uint64_t wanted = std::min<std::uint64_t>(end - inflated_, chunk.size());
      const std::size_t got =
          reader_->read_some(std::span(chunk).first(static_cast<std::size_t>(wanted)));
      if (got == 0) break;
      keep(std::span(chunk).first(got));
      inflated_ += got;
    }
  }
  return std::min(end, kept_);
}

void Content::finish(std::uint64_t max, std::uint64_t keep_bytes) {
  if (!reader_) return;
  std::vector<std::uint8_t> chunk(chunk_bytes);
  for (;;) {
    const std::uint64_t wanted = std::min<std::uint64_t>(max - inflated_, chunk.size());
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
  if (reader_) {
    const std::uint64_t end = offset + bytes.size();
    if (available(end) < end) reader_->fail("the compressed data ends too early");
  }
  read_kept(offset, bytes);
}

void Content::map() {
  if (!compressed_) {
    if (size() <= max_mapped) mapped_ = file_.map();
  } else if (spill_.is_open() && kept_ <= max_mapped) {
    mapped_ = std::make_unique<MappedFile>(spill_.number(), kept_ - memory_.size());
  }
}

void Content::check_mapped() const {
  if (mapped_ != nullptr && !compressed_) file_.check_size();
}

void Content::prefetch(std::uint64_t offset, std::size_t bytes) const noexcept {
  if (mapped_ == nullptr || bytes > MappedFile::max_read || offset < memory_.size()) return;
  mapped_->prefetch(offset - memory_.size(), bytes);
}

void Content::read_kept(std::uint64_t offset, std::span<std::uint8_t> bytes) const {
  if (mapped_ != nullptr && bytes.size() <= MappedFile::max_read && offset >= memory_.size() &&
      mapped_->copy(offset - memory_.size(), bytes)) {
    return;
  }
  if (!compressed_) return file_.read_at(offset, bytes);
  if (offset > kept_ || bytes.size() > kept_ - offset) {
    throw DataError(place(kept_) + ": the content ends here, too early", fetch_again);
  }
  if (offset < memory_.size()) {
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(memory_.size() - offset, bytes.size()));
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(offset), count, bytes.begin());
    bytes = bytes.subspan(count);
    offset += count;
  }
  while (!bytes.empty()) {
    const auto got = spill_.read_at(offset - max_in_memory, std::as_writable_bytes(bytes));
    if (got.value_or(0) == 0) fail_to_spill(path(), got ? EIO : errno, "read back from");
    offset += *got;
    bytes = bytes.subspan(*got);
  }
}

void Content::add_sample(Hash& hash, std::uint64_t end, std::uint64_t blocks) const {
  hash_sample(hash, end, blocks, [this](auto offset, auto bytes) { read_kept(offset, bytes); });
}

}  // namespace lockstep::data

#include "data/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "lib/base/errors.hpp"
#include "lib/base/temporaries.hpp"

namespace lockstep::data {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

std::string place(const std::filesystem::path& path, std::uint64_t offset) {
  return path.string() + ": byte " + std::to_string(offset);
}

RegularFile::RegularFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) {
    const int code = errno;
    throw DataError(path_.string() + ": cannot be opened: " + reason(code),
                    code == EACCES ? "make the file readable for the user who runs this"
                                   : "check the path, and where its links lead");
  }
  struct stat status {};
  const int code = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (code == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (code != 0)
    throw DataError(path_.string() + ": cannot be examined: " + reason(code),
                    "check the disk or file system it stands on");
  throw DataError(path_.string() + ": is " + kind_of(status.st_mode) + ", not a regular file",
                  "put a plain or gzip-compressed file in its place");
}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_) {}

void RegularFile::read_at(std::uint64_t offset, std::span<std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(place(path_, offset) + ": cannot be read: " + reason(errno));
    if (got == 0) {
      throw DataError(place(path_, offset) + ": the file ends here, " +
                          std::to_string(bytes.size()) + " bytes too early",
                      "leave data files alone while they are in use, and fetch this one again");
    }
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

NewFile::NewFile(std::filesystem::path path) : path_(std::move(path)) {
  std::random_device random;  // hosts that share a file system may share process ids
  const std::string begin = "." + path_.filename().string() + ".tmp-";
  do {
    if (!temporary_.empty()) forget_temporary(temporary_);
    temporary_ = path_.parent_path() / (begin + std::to_string(random()));
    add_temporary(temporary_);  // before it is there, for a signal may come at any time
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ >= 0) return;
  const int code = errno;
  forget_temporary(temporary_);
  fail("created", code);
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget_temporary(temporary_);
}

void NewFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void NewFile::finish() {
  if (::fsync(descriptor_) != 0) fail("written", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("written", errno);
}

void NewFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("given its name", errno);
  forget_temporary(temporary_);
  temporary_.clear();
}

void NewFile::fail(const char* what, int code) const {
  throw OutputError(path_.string() + ": cannot be " + what + ": " + reason(code),
                    "free the space or choose a folder that can be written to");
}

}  // namespace lockstep::data

#include "lockstep/base/files.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/errors.hpp"

namespace lockstep {
namespace {

constexpr std::size_t buffered_bytes = 1 << 16;

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int code) {
  throw OutputError(
      path.string() + ": cannot " + what + ": " + std::generic_category().message(code),
      "free space there, or choose another folder");
}

int create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(path, "create", errno);
  return descriptor;
}

void write_all(int descriptor, std::span<const std::byte> bytes,
               const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// Closes the file on destruction; `close_checked` reports errors of close.
struct Descriptor {
  explicit Descriptor(int opened) : number(opened) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number;
};

/// Syncs a folder's entries, names included, to the disk.
void sync_folder(const std::filesystem::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number < 0 || ::fsync(folder.number) != 0) fail(path, "write", errno);
}

}  // namespace

void write_file(const std::filesystem::path& path,
                std::span<const std::span<const std::byte>> pieces) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  try {
    Descriptor file(create(temporary));
    for (const auto piece : pieces) write_all(file.number, piece, temporary);
    if (::fsync(file.number) != 0) fail(temporary, "write", errno);
    if (::close(std::exchange(file.number, -1)) != 0) fail(temporary, "write", errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "write", errno);
  } catch (const OutputError&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  write_file(path, std::span(&bytes, 1));
}

LineFile::LineFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(create(path_)) {
  buffer_.reserve(2 * buffered_bytes);
}

LineFile::~LineFile() {
  if (descriptor_ < 0) return;
  try {
    flush();
  } catch (const OutputError&) {  // destructors do not throw; flush() reports errors
  }
  ::close(descriptor_);
}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      buffer_(std::move(other.buffer_)) {}

void LineFile::write(std::string_view line) {
  buffer_ += line;
  buffer_ += '\n';
  if (buffer_.size() >= buffered_bytes) flush();
}

void LineFile::flush() {
  const std::string ready = std::exchange(buffer_, {});
  buffer_.reserve(2 * buffered_bytes);
  write_all(descriptor_, std::as_bytes(std::span(ready)), path_);
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::error_code unknown;
  if (!error && !std::filesystem::is_directory(path, unknown)) {
    error = unknown ? unknown : std::make_error_code(std::errc::not_a_directory);
  }
  if (error) fail(path, "make the folder", error.value());
}

bool claim_folder(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno != EEXIST) fail(path, "make the folder", errno);
  return false;
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  sync_folder(from);
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename into", errno);
  sync_folder(to.parent_path());
}

namespace {

// Plain pointers at a fixed address: a signal handler may access nothing else. A pointer is owned
// by the code that exchanges it out of its slot; the mutex serialises threads outside the handler.
std::array<std::atomic<char*>, 4096> paths;
std::mutex mutex;

void end_by(int signal) {
  for (auto& slot : paths) {
    const char* const path = slot.exchange(nullptr);
    if (path != nullptr) ::unlink(path);
  }
  struct sigaction usual = {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  ::raise(signal);
}

}  // namespace

void add_temporary(const std::filesystem::path& path) {
  char* const copy = ::strdup(path.c_str());
  if (copy == nullptr) return;
  const std::lock_guard lock(mutex);
  for (auto& slot : paths) {
    char* nothing = nullptr;
    if (slot.compare_exchange_strong(nothing, copy)) return;
  }
  std::free(copy);
}

void forget_temporary(const std::filesystem::path& path) noexcept {
  const std::lock_guard lock(mutex);
  for (auto& slot : paths) {
    char* mine = slot.load();
    if (mine == nullptr || path.native() != mine) continue;
    if (slot.compare_exchange_strong(mine, nullptr)) std::free(mine);
    return;
  }
}

void remove_temporaries_on_signals() noexcept {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction now = {};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler == SIG_IGN) continue;
    struct sigaction ours = {};
    ours.sa_handler = end_by;
    ::sigaction(signal, &ours, nullptr);
  }
}

}  // namespace lockstep

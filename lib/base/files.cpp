#include "lockstep/base/files.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep {
namespace {

constexpr std::size_t buffered_bytes = 1 << 16;

const char* remedy_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT: return "free space there, or choose another folder";
    case EFBIG: return "raise the limit of the size of files (ulimit -f)";
    case EACCES:
    case EPERM:
    case EROFS: return "choose a folder that can be written to";
    case ELOOP: return "give a path that is not a link";
    case ENAMETOOLONG: return "choose a shorter name";
    default: return "choose another folder";
  }
}

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int code) {
  throw OutputError(path.string() + ": cannot " + what + ": " + system_reason(code),
                    remedy_for(code));
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes,
               const std::filesystem::path& path) {
  if (!file.write_all(bytes)) fail(path, "write", errno);
}

/// Syncs a folder's entries, names included, to the disk.
void sync_folder(const std::filesystem::path& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.number()) != 0) fail(path, "write", errno);
}

constexpr std::string_view temporary_mark = ".tmp-";

/// A hidden name beside `path`: ".NAME.tmp-RANDOM". Hosts that share a file system may share
/// process ids, so the name is random.
std::filesystem::path temporary_name(const std::filesystem::path& path) {
  std::random_device random;
  return path.parent_path() /
         ("." + path.filename().string() + std::string(temporary_mark) + std::to_string(random()));
}

bool is_temporary_name(const std::string& name) {
  const auto mark = name.rfind(temporary_mark);
  if (!name.starts_with('.') || mark == std::string::npos) return false;
  const auto digits = name.substr(mark + temporary_mark.size());
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
}

/// Opens a regular file for reading and writing, and creates it if it does not exist.
Descriptor open_regular(const std::filesystem::path& path) {
  constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Descriptor file(::open(path.c_str(), flags, 0644));
  if (!file.is_open()) fail(path, "open", errno);
  struct stat status = {};
  if (::fstat(file.number(), &status) != 0) fail(path, "open", errno);
  if (!S_ISREG(status.st_mode)) {
    throw OutputError(path.string() + ": is not a regular file", "remove it");
  }
  return file;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this == &other) return *this;
  close();
  number_ = other.release();
  return *this;
}

void Descriptor::close() noexcept {
  if (is_open()) ::close(release());
}

bool Descriptor::write_all(std::span<const std::byte> bytes) const noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::write(number_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

std::optional<std::size_t> Descriptor::read_at(std::uint64_t offset,
                                               std::span<std::byte> bytes) const noexcept {
  ssize_t got = 0;
  do {
    got = ::pread(number_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return std::nullopt;
  return static_cast<std::size_t>(got);
}

NewFile::NewFile(std::filesystem::path path) : path_(std::move(path)) {
  do {
    if (!temporary_.empty()) forget_temporary(temporary_);
    temporary_ = temporary_name(path_);
    add_temporary(temporary_);  // before open(): a signal may arrive at any time
    file_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  } while (!file_.is_open() && errno == EEXIST);
  if (file_.is_open()) {
    constexpr mode_t permissions = 0777;
    struct stat before = {};
    const bool replaces = ::stat(path_.c_str(), &before) == 0 && S_ISREG(before.st_mode);
    // On a file system without permissions this fails, which does not matter.
    if (replaces) ::fchmod(file_.number(), before.st_mode & permissions);
    return;
  }
  const int code = errno;
  forget_temporary(temporary_);
  fail(path_, "create", code);
}

NewFile::~NewFile() {
  file_.close();  // NFS keeps a file that is removed while it is open
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget_temporary(temporary_);
}

void NewFile::reserve(std::uint64_t bytes) {
  // Not posix_fallocate(), which writes the whole file where the file system cannot reserve.
  if (bytes == 0 || ::fallocate(file_.number(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail(path_, "write", errno);
}

void NewFile::write(std::span<const std::byte> bytes) { write_all(file_, bytes, path_); }

void NewFile::finish() {
  if (::fsync(file_.number()) != 0) fail(path_, "write", errno);
  if (::close(file_.release()) != 0) fail(path_, "write", errno);
}

void NewFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "write", errno);
  forget_temporary(temporary_);
  temporary_.clear();
}

std::filesystem::path replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(path, ignored);
    return target.empty() ? path : replaceable(path.parent_path() / target);
  }
  if (error) {
    throw OutputError(path.string() + ": cannot be examined: " + error.message(),
                      "choose a folder that can be written to");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw OutputError(path.string() + ": is not a regular file", "give the name of a file");
  }
  return std::filesystem::canonical(path);
}

OutputError stdout_error(int code) {
  return OutputError("stdout: cannot be written" + (code == 0 ? "" : ": " + system_reason(code)),
                     "direct it to a file that can be written, or to a terminal");
}

void flush_stdout() {
  if (std::fflush(stdout) != 0) throw stdout_error(errno);
  if (std::ferror(stdout) != 0) throw stdout_error(0);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  file.publish();
}

namespace {

/// Calls each(line) for each complete line.
void for_each_line(const Descriptor& file, const std::filesystem::path& path,
                   const std::function<void(std::string_view line)>& each) {
  std::vector<char> chunk(buffered_bytes);
  std::string line;
  for (std::uint64_t at = 0;;) {
    const auto got = file.read_at(at, std::as_writable_bytes(std::span(chunk)));
    if (!got) fail(path, "read", errno);
    if (*got == 0) return;
    at += *got;
    std::string_view rest(chunk.data(), *got);
    for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos;) {
      line += rest.substr(0, end);
      each(line);
      line.clear();
      rest.remove_prefix(end + 1);
    }
    line += rest;
  }
}

}  // namespace

LineFile::LineFile(std::filesystem::path path,
                   const std::function<bool(std::string_view line)>& keeps)
    : path_(std::move(path)), file_(open_regular(path_)) {
  std::vector<bool> is_kept;  // of each line
  std::uint64_t read = 0;     // bytes
  std::uint64_t kept = 0;
  bool are_first = true;  // the kept lines are those that the file begins with
  if (keeps) {
    for_each_line(file_, path_, [&](std::string_view line) {
      read += line.size() + 1;
      is_kept.push_back(keeps(line));
      if (!is_kept.back()) return;
      kept += line.size() + 1;
      ++lines_;
      are_first = are_first && kept == read;
    });
  }
  if (!are_first) {
    NewFile whole(path_);
    std::string ready;
    const auto write = [&] {
      whole.write(std::as_bytes(std::span(std::as_const(ready))));
      ready.clear();
    };
    auto is_next_kept = is_kept.begin();
    for_each_line(file_, path_, [&](std::string_view line) {
      if (!*is_next_kept++) return;
      ready.append(line).append("\n");
      if (ready.size() >= buffered_bytes) write();
    });
    write();
    whole.finish();
    whole.publish();
    file_ = open_regular(path_);
  }
  if (::ftruncate(file_.number(), static_cast<off_t>(kept)) != 0) fail(path_, "write", errno);
  if (::lseek(file_.number(), 0, SEEK_END) < 0) fail(path_, "write", errno);
  buffer_.reserve(2 * buffered_bytes);
}

LineFile::~LineFile() {
  try {
    flush();
  } catch (const OutputError&) {  // destructors do not throw; flush() reports errors
  }
}

void LineFile::write(std::string_view line) {
  buffer_ += line;
  buffer_ += '\n';
  ++lines_;
  if (buffer_.size() >= buffered_bytes) flush();
}

void LineFile::flush() {
  const std::string ready = std::exchange(buffer_, {});
  buffer_.reserve(2 * buffered_bytes);
  const off_t begin = ::lseek(file_.number(), 0, SEEK_CUR);
  try {
    write_all(file_, std::as_bytes(std::span(ready)), path_);
  } catch (const OutputError&) {  // a full disk: no half of a line is left
    if (begin >= 0 && ::ftruncate(file_.number(), begin) == 0) {
      ::lseek(file_.number(), begin, SEEK_SET);
      lines_ -= static_cast<std::uint64_t>(std::count(ready.begin(), ready.end(), '\n'));
    }
    throw;
  }
}

void LineFile::sync() {
  flush();
  if (::fsync(file_.number()) != 0) fail(path_, "write", errno);
}

bool LineFile::is_in_place() const noexcept {
  struct stat open = {};
  struct stat named = {};
  if (::stat(path_.c_str(), &named) != 0) {
    return errno != ENOENT && errno != ENOTDIR && errno != ESTALE;  // others may be transient
  }
  if (::fstat(file_.number(), &open) != 0) return true;
  return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

std::filesystem::path temporary_folder() {
  const char* const named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
}

std::vector<std::filesystem::directory_entry> list_folder(const std::filesystem::path& folder,
                                                          std::error_code& error) {
  std::vector<std::filesystem::directory_entry> entries;
  std::filesystem::directory_iterator next(folder, error);
  for (; !error && next != std::filesystem::directory_iterator(); next.increment(error)) {
    entries.push_back(*next);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

namespace {

/// Throws OutputError if `path` or a folder above it is a link to what does not exist.
void require_no_broken_link(const std::filesystem::path& path) {
  std::error_code ignored;
  for (auto at = path; !at.empty() && at != at.parent_path(); at = at.parent_path()) {
    if (!std::filesystem::is_symlink(at, ignored) || std::filesystem::exists(at, ignored)) continue;
    throw OutputError(at.string() + ": is a link to " +
                          std::filesystem::read_symlink(at, ignored).string() +
                          ", which does not exist",
                      "make that folder, or remove the link");
  }
}

}  // namespace

std::filesystem::path without_slash(std::filesystem::path path) {
  while (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  return path;
}

void require_can_be_folder(const std::filesystem::path& path) {
  require_no_broken_link(path);
  std::error_code ignored;
  auto at = path;
  while (!at.empty() && !std::filesystem::exists(at, ignored)) at = at.parent_path();
  if (at.empty() || std::filesystem::is_directory(at, ignored)) return;
  throw OutputError(path.string() + ": cannot be a folder: " + at.string() + " is a file",
                    "choose another folder");
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error == std::errc::file_exists) require_no_broken_link(path);
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

namespace {

/// Locks the file, LOCK_EX or LOCK_SH. False, with errno, if that fails twice: a check of another
/// process holds the lock briefly.
bool try_lock(const Descriptor& file, int operation) {
  if (::flock(file.number(), operation | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return ::flock(file.number(), operation | LOCK_NB) == 0;
}

/// Locks the open lock file of `folder`. Throws ConfigError if another process holds the lock.
void lock(const Descriptor& file, const std::filesystem::path& folder) {
  if (try_lock(file, LOCK_EX)) return;
  if (errno == EWOULDBLOCK) {
    constexpr std::size_t max_text = 200;
    std::string holder(max_text, '\0');
    holder.resize(file.read_at(0, std::as_writable_bytes(std::span(holder))).value_or(0));
    throw ConfigError(
        folder.string() + ": is in use by another job: " + printable(holder, max_text),
        "choose another folder, or wait until that job has ended");
  }
  // A file system without locks: only the folder's content shows that it is in use.
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) return;
  fail(folder / ".lock", "lock", errno);
}

}  // namespace

void require_not_locked(const std::filesystem::path& folder) {
  constexpr int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const Descriptor file(::open((folder / ".lock").c_str(), flags));
  if (file.is_open()) lock(file, folder);
}

LockState lock_state(const std::filesystem::path& folder) {
  constexpr int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const Descriptor file(::open((folder / ".lock").c_str(), flags));
  if (!file.is_open()) return LockState::unknown;
  // Shared: NFS gives no other lock on a file that is open for reading.
  if (try_lock(file, LOCK_SH)) return LockState::free;
  return errno == EWOULDBLOCK ? LockState::held : LockState::unknown;
}

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const auto path = folder / ".lock";
  file_ = open_regular(path);
  lock(file_, folder);
  const std::string text = "process " + std::to_string(::getpid()) + " on host " + host_name();
  if (::ftruncate(file_.number(), 0) != 0) fail(path, "write", errno);
  write_all(file_, std::as_bytes(std::span(text)), path);
}

NewFolder::NewFolder(std::filesystem::path path) : path_(std::move(path)) {
  do {
    temporary_ = temporary_name(path_);
  } while (!claim_folder(temporary_));
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void NewFolder::publish() {
  sync_folder(temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    temporary_.clear();
  } else if (errno != EEXIST && errno != ENOTEMPTY) {
    fail(path_, "write", errno);
  } else if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) !=
             0) {
    const auto old = temporary_name(path_);  // a file system that cannot exchange two names
    if (::rename(path_.c_str(), old.c_str()) != 0) fail(path_, "write", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int code = errno;
      ::rename(old.c_str(), path_.c_str());
      fail(path_, "write", code);
    }
    temporary_ = old;
  }
  sync_folder(path_.parent_path());
}

void remove_folder(const std::filesystem::path& path) {
  const auto hidden = temporary_name(path);
  if (::rename(path.c_str(), hidden.c_str()) != 0) fail(path, "remove", errno);
  std::error_code ignored;  // NFS keeps a file that another process has open
  std::filesystem::remove_all(hidden, ignored);
}

void remove_temporaries_in(const std::filesystem::path& folder) noexcept {
  std::error_code error;
  for (const auto& entry : list_folder(folder, error)) {
    const auto& path = entry.path();
    if (is_temporary_name(path.filename().string())) std::filesystem::remove_all(path, error);
  }
}

}  // namespace lockstep

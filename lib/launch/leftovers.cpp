#include "lockstep/launch/leftovers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "lockstep/base/files.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/communicator.hpp"

namespace lockstep::launching {
namespace {

namespace fs = std::filesystem;

// A rank creates its segment, closes it and maps it again: for an instant it is not in use.
constexpr std::time_t min_age_seconds = 10;

/// The status of a file or folder of this user that is old enough; nullopt for others and for
/// links.
std::optional<struct stat> own(const fs::path& path, mode_t type) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  const bool is_old = std::time(nullptr) - status.st_mtime >= min_age_seconds;
  const bool is_own = (status.st_mode & S_IFMT) == type && status.st_uid == ::geteuid();
  return is_old && is_own ? std::optional(status) : std::nullopt;
}

std::uint64_t hours_of(const struct stat& status) {
  constexpr std::time_t hour = 3600;
  return static_cast<std::uint64_t>((std::time(nullptr) - status.st_mtime) / hour);
}

std::uint64_t bytes_of(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

enum class Use { none, some, unknown };

/// Whether a process has the file open or mapped for writing. The kernel then denies a read lease:
/// this takes all processes of the host into account, those of other containers included.
Use use_of(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) return Use::unknown;
  // If another process opens the file meanwhile; the default, SIGIO, would end this process.
  ::fcntl(file.number(), F_SETSIG, SIGURG);
  // Closing the file ends the lease.
  if (::fcntl(file.number(), F_SETLEASE, F_RDLCK) == 0) return Use::none;
  return errno == EAGAIN ? Use::some : Use::unknown;
}

/// Removes the last part of "a.b.c" and returns it.
std::string_view take_last_part(std::string_view& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const auto part = name.substr(dot + 1);
  name.remove_suffix(part.size() + 1);
  return part;
}

/// True for vader_segment.HOST.UID.JOB.RANK with this user's UID.
bool is_own_segment(std::string_view name) {
  if (!name.starts_with("vader_segment.") && !name.starts_with("sm_segment.")) return false;
  const auto rank = whole_number(take_last_part(name));
  const auto job = whole_number(take_last_part(name), 16);
  return rank && job && whole_number(take_last_part(name)) == ::geteuid();
}

std::optional<Leftover> segment_at(const fs::path& path) {
  if (!is_own_segment(path.filename().string())) return std::nullopt;
  const auto status = own(path, S_IFREG);
  if (!status) return std::nullopt;
  const Use use = use_of(path);
  if (use == Use::some) return std::nullopt;
  return Leftover{path, bytes_of(*status), hours_of(*status), use == Use::none};
}

/// The process id N of pid.N.
std::optional<pid_t> launcher_of(const std::string& name) {
  constexpr std::string_view prefix = "pid.";
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto id = whole_number(std::string_view(name).substr(prefix.size()));
  if (!id || *id > std::numeric_limits<pid_t>::max()) return std::nullopt;
  return static_cast<pid_t>(*id);
}

std::optional<Leftover> session_at(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto launcher = launcher_of(name);
  if (!launcher && !name.starts_with("jf.")) return std::nullopt;
  const auto of_folder = own(path, S_IFDIR);
  if (!of_folder) return std::nullopt;
  if (launcher && (::kill(*launcher, 0) == 0 || errno != ESRCH)) return std::nullopt;
  Leftover found = {path, 0, hours_of(*of_folder), launcher.has_value()};
  std::error_code error;
  fs::recursive_directory_iterator entry(path, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    struct stat status = {};
    if (::lstat(entry->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const Use use = use_of(entry->path());
    if (use == Use::some) return std::nullopt;
    if (use == Use::unknown) found.is_dead = false;
    found.bytes += bytes_of(status);
  }
  if (error) found.is_dead = false;
  return found;
}

/// True for a folder in which this user alone can rename or remove anything.
bool is_private(const fs::path& folder) {
  struct stat status = {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

MpiFolders mpi_folders() {
  MpiFolders folders;
  if (const char* const given = std::getenv("OMPI_MCA_orte_top_session_dir")) {
    folders.sessions = given;  // by mpirun
    return folders;
  }
  fs::path temporary = "/tmp";
  for (const char* name : {"TMP", "TEMP", "TMPDIR"}) {  // the last one first
    if (const char* const given = std::getenv(name)) temporary = given;
  }
  const std::string host = host_name();
  folders.sessions =
      temporary / ("ompi." + host.substr(0, host.find('.')) + "." + std::to_string(::geteuid()));
  return folders;
}

std::vector<Leftover> mpi_leftovers(const MpiFolders& folders) {
  std::vector<Leftover> found;
  const auto add = [&](const std::optional<Leftover>& one) {
    if (one) found.push_back(*one);
  };
  std::error_code ignored;
  for (const auto& entry : list_folder(folders.segments, ignored)) add(segment_at(entry));
  if (is_private(folders.sessions)) {
    for (const auto& entry : list_folder(folders.sessions, ignored)) add(session_at(entry));
  }
  std::sort(found.begin(), found.end(),
            [](const Leftover& a, const Leftover& b) { return a.path < b.path; });
  return found;
}

std::string text_of(std::span<const Leftover> leftovers) {
  std::vector<Leftover> unproved;
  std::copy_if(leftovers.begin(), leftovers.end(), std::back_inserter(unproved),
               [](const Leftover& one) { return !one.is_dead; });
  if (unproved.empty()) return "";
  std::stable_sort(unproved.begin(), unproved.end(),
                   [](const Leftover& a, const Leftover& b) { return a.bytes > b.bytes; });
  constexpr std::size_t max_named = 5;
  std::string names;
  std::string paths;
  for (std::size_t i = 0; i < std::min(unproved.size(), max_named); ++i) {
    const Leftover& one = unproved[i];
    names += (i == 0 ? "" : ", ") + one.path.string() + " (" +
             bytes_text(static_cast<double>(one.bytes)) + ", " + counted(one.hours, "hour") +
             " old)";
    paths += " " + one.path.string();
  }
  if (unproved.size() > max_named) names += ", " + grouped(unproved.size() - max_named) + " more";
  return "no process is known to use " + names +
         ", as if left by MPI jobs that were killed\n  remedy: if no MPI job of yours runs there, "
         "rm -r" +
         paths + (unproved.size() > max_named ? "; then look again for the others" : "");
}

std::size_t remove_mpi_leftovers(const MpiFolders& folders) noexcept {
  std::size_t removed = 0;
  try {
    for (const Leftover& one : mpi_leftovers(folders)) {
      std::error_code error;
      if (one.is_dead && fs::remove_all(one.path, error) > 0 && !error) ++removed;
    }
  } catch (const std::exception&) {  // out of memory: the next start tries again
  }
  return removed;
}

}  // namespace lockstep::launching

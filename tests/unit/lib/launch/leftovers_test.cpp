#include "lockstep/launch/leftovers.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using launching::MpiFolders;
namespace fs = std::filesystem;

namespace {

void make_old(const fs::path& path) {
  const std::vector<timespec> times(2, timespec{1000, 0});
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0) == 0);
}

/// A file as Open MPI leaves it, an hour and more ago.
fs::path old_file(const fs::path& path) {
  const std::string text(100, 'x');
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  REQUIRE(::write(file, text.data(), text.size()) == 100);
  ::close(file);
  make_old(path);
  return path;
}

fs::path old_session(const fs::path& path) {
  fs::create_directories(path / "0");
  old_file(path / "0" / "contact.txt");
  make_old(path);
  return path;
}

/// Maps a file for writing while it exists.
class Mapped {
 public:
  explicit Mapped(const fs::path& path) {
    const int file = ::open(path.c_str(), O_RDWR);
    data_ = ::mmap(nullptr, 100, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Mapped() { ::munmap(data_, 100); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  void* data_;
};

int ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  return child;
}

std::vector<fs::path> paths_of(const MpiFolders& folders, bool are_dead) {
  std::vector<fs::path> paths;
  for (const auto& one : launching::mpi_leftovers(folders)) {
    if (one.is_dead != are_dead) continue;
    CHECK(one.bytes > 0);
    paths.push_back(one.path);
  }
  return paths;
}

using Paths = std::vector<fs::path>;

}  // namespace

TEST_CASE("segments that no process has mapped are removed", "[leftovers]") {
  const test::TemporaryFolder folder;
  const MpiFolders folders = {folder.path(), folder.path() / "none"};
  const std::string user = std::to_string(::geteuid());
  const auto dead = old_file(folder.path() / ("vader_segment.host.name." + user + ".75590001.0"));
  const auto mapped = old_file(folder.path() / ("sm_segment.host." + user + ".ab.1"));
  const std::vector<std::string> others = {
      "vader_segment.host." + std::to_string(::geteuid() + 1) + ".75590001.0",
      "vader_segment.host." + user + ".75590001", "vader_segment.host." + user + ".xyz.0",
      "segment.host." + user + ".75590001.0"};
  for (const auto& name : others) old_file(folder.path() / name);
  fs::create_symlink(others[0], folder.path() / ("vader_segment.link." + user + ".75590001.0"));
  folder.write("vader_segment.young." + user + ".75590001.0", std::vector<std::uint8_t>(100));
  {
    const Mapped in_use(mapped);
    CHECK(paths_of(folders, true) == Paths{dead});
    CHECK(launching::remove_mpi_leftovers(folders) == 1);
  }
  CHECK(paths_of(folders, true) == Paths{mapped});
  CHECK(paths_of(folders, false).empty());
  CHECK(launching::remove_mpi_leftovers(folders) == 1);
  CHECK(launching::remove_mpi_leftovers(folders) == 0);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 6);
}

TEST_CASE("leftovers that may be in use are named with size, age and remedy", "[leftovers]") {
  std::vector<launching::Leftover> found = {{"/tmp/pid.1", 100, 1, true}};
  CHECK(launching::text_of(found).empty());
  found.push_back({"/tmp/jf.1", 4096, 1, false});
  found.push_back({"/dev/shm/vader_segment.h1.0.ab.0", 4'000'000, 26, false});
  CHECK(launching::text_of(found) ==
        "no process is known to use /dev/shm/vader_segment.h1.0.ab.0 (4.0 MB, 26 hours old), "
        "/tmp/jf.1 (4.1 kB, 1 hour old), as if left by MPI jobs that were killed\n"
        "  remedy: if no MPI job of yours runs there, rm -r /dev/shm/vader_segment.h1.0.ab.0 "
        "/tmp/jf.1");
  for (int i = 2; i < 8; ++i) found.push_back({"/tmp/jf." + std::to_string(i), 1, 0, false});
  CHECK_THAT(launching::text_of(found), Catch::Contains(", 3 more,") &&
                                            Catch::EndsWith("; then look again for the others") &&
                                            !Catch::Contains("jf.7"));
}

TEST_CASE("session folders of an mpirun that has ended are removed", "[leftovers]") {
  const test::TemporaryFolder folder;
  const MpiFolders folders = {folder.path() / "none", folder.path()};
  const auto dead = old_session(folder.path() / ("pid." + std::to_string(ended_process())));
  const auto living = old_session(folder.path() / ("pid." + std::to_string(::getpid())));
  const auto unknown = old_session(folder.path() / "jf.7");
  old_session(folder.path() / "other");
  CHECK(paths_of(folders, false) == Paths{unknown});
  {
    const Mapped in_use(dead / "0" / "contact.txt");
    CHECK(launching::remove_mpi_leftovers(folders) == 0);
  }
  CHECK(paths_of(folders, true) == Paths{dead});
  fs::permissions(folder.path(), fs::perms::group_write, fs::perm_options::add);
  CHECK(launching::mpi_leftovers(folders).empty());  // others could have replaced what is in it
  fs::permissions(folder.path(), fs::perms::group_write, fs::perm_options::remove);
  CHECK(launching::remove_mpi_leftovers(folders) == 1);
  CHECK_FALSE(fs::exists(dead));
  CHECK(fs::exists(living));
  CHECK(fs::exists(unknown));
}

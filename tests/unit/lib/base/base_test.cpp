#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/base/text.hpp"
#include "tests/support/soon.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("a process that ignores SIGTERM is killed", "[base]") {
  for (const bool ignores : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (ignores) std::signal(SIGTERM, SIG_IGN);
      for (;;) ::pause();
    }
    if (ignores) {
      REQUIRE(test::soon([&] { return process_stat(child).state == 'S'; }));
    }
    const auto is_child = [child] {
      const auto children = children_of(::getpid());
      return !children || contains(*children, child);  // not all kernels tell
    };
    CHECK(is_child());
    REQUIRE(end_process(child, 200ms));
    REQUIRE(test::soon([&] { return !children_of(::getpid()) || !is_child(); }));  // a zombie
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == (ignores ? SIGKILL : SIGTERM));
    CHECK_FALSE(end_process(child, 200ms));
  }
}

TEST_CASE("writing to a closed pipe is one request to stop", "[base]") {
  const StopRequests requests;
  std::raise(SIGPIPE);
  std::this_thread::sleep_for(1100ms);  // other signals would end the process now
  std::raise(SIGPIPE);
  CHECK(requests.signal() == SIGPIPE);
}

TEST_CASE("Philox gives the published test vectors", "[base]") {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  CHECK(Philox::at({0, 0, 0, 0}, {0, 0}) ==
        Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox::at({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox::at({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("hashes see bytes, not calls", "[base]") {
  Hash whole;
  whole.add_bytes(std::as_bytes(std::span("lockstep", 8)));
  Hash parts;
  parts.add_bytes(std::as_bytes(std::span("lock", 4)));
  parts.add_bytes(std::as_bytes(std::span("step", 4)));
  CHECK(whole.value() == parts.value());
  CHECK(whole.value() == hash_of("lockstep"));
  Hash one;
  one.add("ab");
  one.add("c");
  Hash other;
  other.add("a");
  other.add("bc");
  CHECK(one.value() != other.value());
  CHECK(Hash().value() == 0x2d06800538d394c2);  // XXH3's value for nothing
  CHECK(to_hex(0x2d06800538d394c2) == "2d06800538d394c2");
  CHECK(to_hex(10) == "000000000000000a");
}

TEST_CASE("aligned buffers are aligned, zeroed and may be empty", "[base]") {
  for (const std::size_t count : {0, 1, 15, 16, 17, 1000}) {
    AlignedBuffer<float> buffer(count);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment_bytes == 0);
    CHECK(buffer.size() == count);
    for (const float value : buffer.span()) REQUIRE(value == 0);
  }
}

TEST_CASE("a file is written whole or not at all", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "a.txt";
  write_file(path, "first");
  write_file(path, "second");
  CHECK(contents(path) == "second");
  const auto missing = folder.path() / "no" / "a.txt";
  CHECK_THROWS_WITH(write_file(missing, "x"),
                    Catch::Contains(missing.string()) && Catch::Contains("No such file"));
  CHECK_THROWS_AS(write_file("/dev/full/x", "x"), OutputError);
  CHECK_THROWS_AS(make_folder(path / "below"), OutputError);
}

// Temporary names were fixed: a link of that name was followed, and a FIFO blocked for ever.
TEST_CASE("writing follows no link and opens no FIFO", "[base]") {
  const test::TemporaryFolder folder;
  const auto victim = folder.path() / "victim";
  write_file(victim, "untouched");
  const auto path = folder.path() / "a.txt";
  std::filesystem::create_symlink(victim, path.string() + ".tmp");
  std::filesystem::create_symlink(victim, path);
  write_file(path, "new");
  CHECK(contents(path) == "new");
  CHECK(contents(victim) == "untouched");
  const auto link = folder.path() / "lines";
  std::filesystem::create_symlink(victim, link);
  CHECK_THROWS_WITH(LineFile(link), Catch::Contains("Too many levels of symbolic links") &&
                                        Catch::Contains("not a link"));
  CHECK(contents(victim) == "untouched");
  const auto fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(LineFile(fifo), Catch::Contains("not a regular file"));
}

TEST_CASE("a file that replaces another one keeps its permissions", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "a.txt";
  write_file(path, "old");
  const auto secret = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
  std::filesystem::permissions(path, secret);
  write_file(path, "new");
  CHECK(contents(path) == "new");
  CHECK(std::filesystem::status(path).permissions() == secret);
}

TEST_CASE("an output is written where its link leads", "[base]") {
  const test::TemporaryFolder folder;
  const auto link = folder.path() / "link";
  std::filesystem::create_symlink("to", link);
  std::filesystem::create_symlink("file", folder.path() / "to");
  CHECK(replaceable(link) == folder.path() / "file");
  write_file(folder.path() / "file", "");
  CHECK(replaceable(link) == std::filesystem::canonical(folder.path() / "file"));
  CHECK_THROWS_AS(replaceable(folder.path()), OutputError);
}

TEST_CASE("a path that cannot be a folder is refused before anything is made", "[base]") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "a.txt";
  write_file(file, "");
  CHECK_NOTHROW(require_can_be_folder(folder.path()));
  CHECK_NOTHROW(require_can_be_folder(folder.path() / "new" / "below"));
  CHECK_NOTHROW(require_can_be_folder("new"));
  for (const auto& path : {file, file / "run", file / "run" / "below"}) {
    CHECK_THROWS_WITH(
        require_can_be_folder(path),
        Catch::Contains(path.string()) && Catch::Contains(file.string() + " is a file"));
  }
  std::filesystem::create_symlink("nothing", folder.path() / "link");
  CHECK_THROWS_WITH(require_can_be_folder(folder.path() / "link" / "run"),
                    Catch::Contains("is a link to nothing"));
  CHECK(without_slash("runs/A//") == "runs/A");
  CHECK(without_slash("A/") == "A");
  CHECK(without_slash("/") == "/");
  CHECK(without_slash("") == "");
}

TEST_CASE("a folder has one lock, until its holder ends", "[base]") {
  const test::TemporaryFolder folder;
  CHECK(lock_state(folder.path()) == LockState::unknown);
  CHECK(std::filesystem::is_empty(folder.path()));
  {
    const FolderLock lock(folder.path());
    CHECK_THROWS_WITH(FolderLock(folder.path()),
                      Catch::Contains("process " + std::to_string(::getpid())));
    CHECK(lock_state(folder.path()) == LockState::held);
  }
  CHECK(lock_state(folder.path()) == LockState::free);
  const FolderLock again(folder.path());
}

TEST_CASE("a new folder appears whole, or not at all", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "made";
  for (const std::string content : {"first", "second"}) {
    NewFolder made(path);
    write_file(made.path() / "file", content);
    CHECK(std::filesystem::exists(path) == (content == "second"));
    made.publish();
    CHECK(contents(path / "file") == content);
  }
  const auto left = folder.path() / ".made.tmp-1234";  // by a killed process
  std::filesystem::create_directories(left / "below");
  std::filesystem::create_directories(folder.path() / ".other");
  remove_temporaries_in(folder.path());
  CHECK_FALSE(std::filesystem::exists(left));
  CHECK(std::filesystem::exists(folder.path() / ".other"));
  remove_folder(path);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("listed temporary files are removed before the process ends", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "listed";
  std::ofstream(path) << "text";
  add_temporary(path);
  const pid_t process = ::fork();
  if (process == 0) {
    remove_temporaries();
    ::_exit(std::filesystem::exists(path) ? 1 : 0);
  }
  int status = -1;
  REQUIRE(::waitpid(process, &status, 0) == process);
  CHECK(status == 0);
  forget_temporary(path);
  std::ofstream(path) << "text";
  remove_temporaries();
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("a line file keeps its lines", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "lines";
  {
    LineFile file(path);
    for (int i = 0; i < 20000; ++i) file.write(std::to_string(i));
    file.write("end");
  }
  std::ifstream read(path);
  std::string line;
  int lines = 0;
  while (std::getline(read, line)) CHECK((line == std::to_string(lines++) || line == "end"));
  CHECK(lines == 20001);
  {
    LineFile continued(path, [](std::string_view number) { return number.size() == 1; });
    CHECK(continued.lines() == 10);
    continued.write("new");
    continued.sync();
  }
  CHECK(contents(path) == "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\nnew\n");
  std::ofstream(path, std::ios::app) << "cut off";
  {
    LineFile continued(path, [](std::string_view kept) { return kept == "0" || kept == "new"; });
    CHECK(continued.lines() == 2);
    continued.write("end");
  }
  CHECK(contents(path) == "0\nnew\nend\n");
  CHECK(LineFile(path).lines() == 0);
  CHECK_THROWS_AS(LineFile(folder.path()), OutputError);
  CHECK_THROWS_WITH(LineFile("/dev/full"), Catch::Contains("not a regular file"));
}

TEST_CASE("a disk that is full leaves no half of a line", "[base]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "lines";
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  {
    LineFile file(path);
    file.write("first");
    file.flush();
    const rlimit full = {.rlim_cur = 12, .rlim_max = before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
    file.write("second");
    bool is_full = false;
    try {
      file.flush();
    } catch (const OutputError&) {
      is_full = true;
    }
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(is_full);
    CHECK(contents(path) == "first\n");
    CHECK(file.lines() == 1);
    file.write("third");
  }
  ::signal(SIGXFSZ, handler);
  CHECK(contents(path) == "first\nthird\n");
}

namespace {

/// A fake /proc and /sys/fs/cgroup.
class FakeSystem {
 public:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / path).parent_path());
    write_file(folder_.path() / path, text);
  }
  std::uint64_t limit() const { return memory_limit_bytes(folder_.path()); }

 private:
  test::TemporaryFolder folder_;
};

constexpr const char* v1_mount =
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup c rw,memory\n";
constexpr const char* v2_mount =
    "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 c rw\n";

}  // namespace

TEST_CASE("memory is limited by any control group around the process", "[base]") {
  FakeSystem system;
  const std::uint64_t machine = system.limit();
  CHECK(machine > 100'000'000);

  SECTION("v2, as systemd and Slurm set it") {
    const std::string job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/";
    system.write("proc/self/cgroup",
                 "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
    system.write(job + "step_0/user/task_0/memory.max", "max\n");
    CHECK(system.limit() == machine);
    system.write(job + "step_0/memory.max", "3000000\n");
    CHECK(system.limit() == 3'000'000);
    system.write(job + "memory.max", "2000000\n");
    CHECK(system.limit() == 2'000'000);
    system.write("proc/self/mountinfo", v2_mount);
    CHECK(system.limit() == 2'000'000);
    system.write(job + "step_0/user/task_0/memory.max", "1000000\n");
    CHECK(system.limit() == 1'000'000);
    system.write("sys/fs/cgroup/system.slice/other/memory.max", "1000\n");
    CHECK(system.limit() == 1'000'000);
  }
  SECTION("v1, where v2 is mounted beside it and limits nothing") {
    system.write("proc/self/mountinfo", v1_mount);
    system.write("proc/self/cgroup",
                 "9:name=systemd:/x\n4:hugetlb,memory:/slurm/uid 1/job_7\n0::/x\n");
    system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    system.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000\n");
    CHECK(system.limit() == machine);
    system.write("sys/fs/cgroup/memory/slurm/uid 1/job_7/memory.limit_in_bytes", "5000000\n");
    CHECK(system.limit() == 5'000'000);
    system.write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "4000000\n");
    CHECK(system.limit() == 4'000'000);
  }
  SECTION("mounted at another folder") {
    system.write("proc/self/mountinfo", "1 2 0:3 / /dev/memory rw - cgroup c rw,cpu,memory\n");
    system.write("proc/self/cgroup", "3:cpu,memory:/a\n");
    system.write("dev/memory/a/memory.limit_in_bytes", "5000000\n");
    CHECK(system.limit() == 5'000'000);
  }
  SECTION("a container that sees the host's names") {
    system.write("proc/self/mountinfo", "1 2 0:3 /docker/7 /sys/fs/cgroup ro - cgroup2 c rw\n");
    system.write("proc/self/cgroup", "0::/docker/7/inner\n");
    system.write("sys/fs/cgroup/memory.max", "5000000\n");
    CHECK(system.limit() == 5'000'000);
    system.write("sys/fs/cgroup/inner/memory.max", "4000000\n");
    CHECK(system.limit() == 4'000'000);
    for (const char* elsewhere :
         {"0::/docker/8\n", "0::/\n", "0::/../inner\n", "0::\n", "", "\n"}) {
      system.write("proc/self/cgroup", elsewhere);
      CHECK(system.limit() == 5'000'000);
    }
  }
}

TEST_CASE("the process knows itself", "[base]") {
  CHECK(process_age_seconds() >= 0);
  CHECK(process_age_seconds() < 3600);
  CHECK(peak_rss_bytes() > 1'000'000);
  CHECK(memory_limit_bytes() > 100'000'000);
  CHECK(bound_cores() >= 1);
  CHECK(bound_cores() <= machine_cores());
  CHECK(executable_hash() == executable_hash());
}

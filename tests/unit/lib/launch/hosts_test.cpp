#include "lockstep/launch/hosts.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using launching::Words;
namespace fs = std::filesystem;

namespace {

Words words(const std::string& text) {
  Words found;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

/// The command without h2; its hostfile may not be written.
Words without_h2(const std::string& command) {
  return launching::without_hosts(words(command), {"h2"}, "/none/hostfile");
}

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("the hosts of an mpirun command", "[hosts]") {
  const auto hosts = [](const std::string& text) { return launching::hosts_of(words(text)); };
  CHECK(hosts("mpirun --host h1:2,h2 -n 4 lockstep train") == Words{"h1", "h2"});
  CHECK(hosts("/usr/bin/mpiexec -H h1,h1 -H h2:* lockstep train") == Words{"h1", "h2"});
  CHECK(hosts("mpirun -n 4 lockstep train").empty());
  CHECK(hosts("mpirun -n 4 bin/lockstep train --host h1").empty());
  CHECK(hosts("mpirun -n 4 job.sh --run-dir A -H h1").empty());
  CHECK(hosts("mpirun --host h1 lockstep train : lockstep train").empty());
  CHECK(hosts("srun --host h1 lockstep train").empty());
  CHECK(hosts("mpirun --hostfile /no/such lockstep train").empty());
  CHECK(hosts("mpirun --wdir lockstep --host h1 lockstep train --host h2") == Words{"h1"});
  const test::TemporaryFolder folder;
  const fs::path place = folder.path() / "lockstep";
  fs::create_directory(place);
  CHECK(hosts("mpirun --prefix " + place.string() + " --host h1 lockstep train") == Words{"h1"});
}

TEST_CASE("a command without a host that does not answer", "[hosts]") {
  CHECK(without_h2("mpirun --host h1:2,h2:2,h3:2 -n 6 lockstep train") ==
        words("mpirun --host h1:2,h3:2 -n 4 lockstep train"));
  CHECK(without_h2("mpirun -np 2 -H h1,h2 -H h2:4,h3:2 --oversubscribe lockstep train -n 9") ==
        words("mpirun -np 2 -H h1,h3:2 --oversubscribe lockstep train -n 9"));
  CHECK(without_h2("mpirun -n 8 --host h1,h2 lockstep train") ==
        words("mpirun -n 4 --host h1 lockstep train"));
  CHECK(without_h2("mpirun -n 3 --host h1,h2:9 lockstep train") ==
        words("mpirun -n 1 --host h1 lockstep train"));
  CHECK(without_h2("mpirun --host h1:*,h2:* lockstep train") ==
        words("mpirun --host h1:* lockstep train"));
  CHECK(without_h2("mpirun --host h1,h3 -n 2 lockstep") ==
        words("mpirun --host h1,h3 -n 2 lockstep"));
}

TEST_CASE("the folder of a command's ranks", "[hosts]") {
  const auto folder = [](const std::string& text) {
    return launching::folder_of_ranks(words(text));
  };
  CHECK(folder("mpirun --wdir /a -n 2 lockstep train") == "/a");
  CHECK(folder("nice mpirun -wd b lockstep train --wdir c") == "b");
  CHECK(folder("mpirun -n 2 lockstep train").empty());
  CHECK(folder("srun -D /a lockstep train") == "/a");
  CHECK(folder("/usr/bin/srun -n 2 --chdir /a lockstep train") == "/a");
  CHECK(folder("mpirun --prefix lockstep --wdir=/a lockstep train") == "/a");
  CHECK(folder("timeout 1h srun -J lockstep --chdir /a lockstep train") == "/a");
  CHECK(folder("srun --chdir=/a -D/b lockstep train --chdir=/c") == "/b");
  CHECK(folder("job.sh -D /a --run-dir A").empty());
}

TEST_CASE("a hostfile without hosts that do not answer", "[hosts]") {
  const test::TemporaryFolder folder;
  const fs::path given = folder.path() / "given";
  const fs::path left = folder.path() / "left";
  std::ofstream(given) << "# all\nh1 slots=2 max_slots=4 # first\nh2 slots=2\n\nh3\n";
  const Words command = {"mpirun", "--hostfile", given.string(), "-n", "5", "lockstep"};
  CHECK(launching::hosts_of(command) == Words{"h1", "h2", "h3"});
  CHECK(launching::without_hosts(command, {"h2"}, left) ==
        Words{"mpirun", "--hostfile", left.string(), "-n", "3", "lockstep"});
  CHECK(content(left) == "h1 slots=2 max_slots=4 # first\nh3\n");
}

TEST_CASE("hosts that fail to answer, or do not in time", "[hosts]") {
  const test::TemporaryFolder folder;
  const fs::path shell = folder.path() / "shell";
  std::ofstream(shell)
      << "#!/bin/sh\ncase $1$2 in h1true) ;; h2true) sleep 100 ;; *) exit 1 ;; esac\n";
  fs::permissions(shell, fs::perms::owner_all);
  CHECK(launching::silent_hosts({"h1", "localhost", "h3"}, {shell.string()}, 60) == Words{"h3"});
  CHECK(launching::silent_hosts({"h2", "h3"}, {shell.string()}, 0.2) == Words{"h2", "h3"});
  CHECK(launching::silent_hosts({"h1", "h2", "localhost"}, {"/no/such/shell"}, 60) ==
        Words{"h1", "h2"});
  const Words command = {"mpirun", "--mca", "plm_rsh_agent", "/no/such : " + shell.string() + " -v",
                         "lockstep"};
  CHECK(launching::remote_shell(command) == Words{shell.string(), "-v"});
}

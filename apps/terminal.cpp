#include "apps/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace lockstep::apps {
namespace {

constexpr int usual_columns = 80;

/// Columns of an open terminal; 0 where its size is unknown, nothing where it is no terminal.
std::optional<int> columns_of(int descriptor) {
  if (::isatty(descriptor) == 0) return std::nullopt;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool parent_is_mpirun() {
  std::ifstream file("/proc/" + std::to_string(::getppid()) + "/comm");
  std::string name;
  std::getline(file, name);
  return name == "mpirun" || name == "mpiexec" || name == "orterun";
}

std::optional<int> columns_of_parent() {
  const std::string path = "/proc/" + std::to_string(::getppid()) + "/fd/1";
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  const auto columns = columns_of(descriptor);
  ::close(descriptor);
  return columns;
}

}  // namespace

std::optional<int> terminal_columns() {
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string(kind) == "dumb") return std::nullopt;
  const auto columns = parent_is_mpirun() ? columns_of_parent() : columns_of(STDOUT_FILENO);
  if (columns == 0) return usual_columns;
  return columns;
}

}  // namespace lockstep::apps

#include "lockstep/base/errors.hpp"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view mark = "\n  remedy: ";

// what() ends at the first NUL.
std::string whole(const std::string& problem, const std::string& remedy) {
  std::string text = problem;
  if (!remedy.empty()) text.append(mark).append(remedy);
  std::replace(text.begin(), text.end(), '\0', '?');
  return text;
}

}  // namespace

Error::Error(ExitCode code, const std::string& problem, const std::string& remedy)
    : std::runtime_error(whole(problem, remedy)), code_(code) {
  assert(code != ExitCode::success);
}

std::string Error::problem() const {
  const std::string text = what();
  return text.substr(0, text.find(mark));
}

std::string Error::remedy() const {
  const std::string text = what();
  const auto at = text.find(mark);
  return at == std::string::npos ? "" : text.substr(at + mark.size());
}

std::string system_reason(int error) { return std::generic_category().message(error); }

namespace {

struct Warnings {
  std::mutex mutex;
  WarningHandler handler;
  std::set<std::string> reported;
};

Warnings& warnings() {
  static Warnings all;
  return all;
}

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  const std::lock_guard lock(warnings().mutex);
  warnings().reported.clear();
  return std::exchange(warnings().handler, std::move(handler));
}

void report_warning(const std::string& text) {
  const std::lock_guard lock(warnings().mutex);
  if (warnings().handler && warnings().reported.insert(text).second) warnings().handler(text);
}

}  // namespace lockstep

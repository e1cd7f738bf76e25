#include "lockstep/base/warnings.hpp"

#include <mutex>
#include <set>
#include <utility>

namespace lockstep {
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

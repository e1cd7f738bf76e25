#include "apps/failure.hpp"

#include <spdlog/spdlog.h>

#include <cstdio>
#include <new>

#include "lib/base/errors.hpp"

namespace lockstep::apps {

int exit_code(const std::exception& error) noexcept {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (known != nullptr) return static_cast<int>(known->code());
  const bool lost_output = std::ferror(stdout) != 0;  // fmt::print throws a system_error of its own
  return static_cast<int>(lost_output ? ExitCode::output : ExitCode::internal);
}

std::string what_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  return error.what();
}

void print_error(const std::string& text) {
  spdlog::error("{}", text);
  spdlog::default_logger()->flush();
}

}  // namespace lockstep::apps

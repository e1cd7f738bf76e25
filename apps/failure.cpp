#include "apps/failure.hpp"

#include <spdlog/spdlog.h>

#include <new>

#include "lib/base/errors.hpp"

namespace lockstep::apps {

int exit_code(const std::exception& error) noexcept {
  const auto* known = dynamic_cast<const Error*>(&error);
  return static_cast<int>(known == nullptr ? ExitCode::internal : known->code());
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

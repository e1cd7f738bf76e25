// Tests of permissions that root would not be denied.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

namespace lockstep::test {

/// While it exists, this process has the rights of no one, if it had those of root.
class NoRoot {
 public:
  NoRoot() : was_root_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~NoRoot() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();
  }

  /// False, with a warning, in a container whose root cannot become another user.
  bool holds() const {
    if (::geteuid() == 0) WARN("SKIPPED: root is denied nothing, and may not give up its rights");
    return ::geteuid() != 0;
  }
  NoRoot(const NoRoot&) = delete;
  NoRoot& operator=(const NoRoot&) = delete;

 private:
  bool was_root_;
};

}  // namespace lockstep::test

// Tests of permissions that root would not be denied.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace lockstep::test {

/// While it exists, this process has the rights of no one, if it had those of root.
class NoRoot {
 public:
  NoRoot() : is_root_(::geteuid() == 0) {
    if (is_root_ && ::seteuid(65534) != 0) throw std::runtime_error("seteuid");
  }
  ~NoRoot() {
    if (is_root_ && ::seteuid(0) != 0) std::abort();
  }
  NoRoot(const NoRoot&) = delete;
  NoRoot& operator=(const NoRoot&) = delete;

 private:
  bool is_root_;
};

}  // namespace lockstep::test

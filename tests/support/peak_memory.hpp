// The memory that a test takes.
#pragma once

#include <sys/resource.h>

namespace lockstep::test {

/// The greatest resident memory of this process so far.
inline long peak_kilobytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace lockstep::test

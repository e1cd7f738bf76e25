// A named span of host time that Nsight Systems shows.
#pragma once

#include <nvtx3/nvToolsExt.h>

namespace lockstep::cuda {

/// From here to the end of the scope. Costs nothing where no tool listens.
class Range {
 public:
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace lockstep::cuda

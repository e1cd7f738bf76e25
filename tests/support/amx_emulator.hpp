// AMX on a processor without it: a handler of SIGILL that computes the instructions of the bf16
// kernels, so that they are tested on any processor with AVX-512.
#pragma once

#include <signal.h>

namespace lockstep::test {

/// While it exists, LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS work in
/// all threads; another illegal instruction ends the process. A processor that has AMX, and that
/// may use it, computes itself. One at a time.
///
/// Source   Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, of each
///          instruction.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

 private:
  struct sigaction before_ = {};
};

}  // namespace lockstep::test

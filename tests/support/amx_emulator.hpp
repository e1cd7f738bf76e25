// AMX on a processor without it: a handler of SIGILL that computes the instructions of the bf16
// kernels, so that they are tested on any processor with AVX512_BF16.
#pragma once

#include <signal.h>

namespace lockstep::test {

/// While it exists, LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS work in
/// all threads; for another illegal instruction the handler of before is called. A processor that
/// has AMX computes itself. One at a time.
///
/// Source   Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, of each
///          instruction.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;
};

/// False, with a warning, where the kernels for AMX can run neither so nor on the processor.
bool can_test_amx();

}  // namespace lockstep::test

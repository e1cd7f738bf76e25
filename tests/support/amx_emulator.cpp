#include "tests/support/amx_emulator.hpp"

#include <catch2/catch.hpp>

#if defined(__x86_64__)

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "lockstep/numerics/amx.hpp"

namespace lockstep::test {
namespace {

constexpr std::size_t max_rows = 16;
constexpr std::size_t max_bytes = 64;

struct Tile {
  std::size_t rows = 0;
  std::size_t bytes = 0;  ///< of a row
  std::array<std::array<std::uint8_t, max_bytes>, max_rows> data{};
};

/// The tiles of this thread. Plain data: a handler may not allocate.
thread_local constinit std::array<Tile, 8> tiles;

float from_bf16(const std::uint8_t* at) {
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  return flushed(std::bit_cast<float>(std::uint32_t{half} << 16));
}

/// False if the processor refuses tiles of these shapes, or one of them is not configured.
bool multiply(Tile& sums, const Tile& a, const Tile& b) {
  if (&sums == &a || &sums == &b || &a == &b || sums.rows == 0 || b.rows == 0) return false;
  if (sums.rows != a.rows || sums.bytes != b.bytes || a.bytes != 4 * b.rows) return false;
  for (std::size_t m = 0; m < sums.rows; ++m) {
    for (std::size_t n = 0; n < sums.bytes / 4; ++n) {
      float even = 0;
      float odd = 0;
      for (std::size_t k = 0; k < a.bytes / 4; ++k) {
        const std::uint8_t* u = a.data[m].data() + 4 * k;
        const std::uint8_t* v = b.data[k].data() + 4 * n;
        even = flushed_fma(from_bf16(u), from_bf16(v), even);
        odd = flushed_fma(from_bf16(u + 2), from_bf16(v + 2), odd);
      }
      float sum = 0;
      std::memcpy(&sum, sums.data[m].data() + 4 * n, sizeof sum);
      sum = flushed_add(sum, flushed_add(even, odd));
      std::memcpy(sums.data[m].data() + 4 * n, &sum, sizeof sum);
    }
  }
  return true;
}

/// Configures the tiles, which become zero. False if the operand is not valid.
bool configure(const std::uint8_t* operand) {
  const auto zero = [](std::uint8_t byte) { return byte == 0; };
  if (operand[0] != 1 || !std::all_of(operand + 1, operand + 16, zero) ||
      !std::all_of(operand + 32, operand + 48, zero) ||
      !std::all_of(operand + 56, operand + 64, zero)) {
    return false;
  }
  for (std::size_t n = 0; n < tiles.size(); ++n) {
    std::uint16_t bytes = 0;
    std::memcpy(&bytes, operand + 16 + 2 * n, sizeof bytes);
    tiles[n] = {.rows = operand[48 + n], .bytes = bytes};
    if (tiles[n].rows > max_rows || bytes > max_bytes || (tiles[n].rows == 0) != (bytes == 0)) {
      return false;
    }
  }
  return true;
}

/// An instruction with a VEX prefix of three bytes, decoded.
class Instruction {
 public:
  Instruction(const std::uint8_t* at, const greg_t* registers) : at_(at), registers_(registers) {}

  bool is_vex() const { return at_[0] == 0xc4 && (at_[1] & 0x1f) == 2 && (at_[2] & 0x84) == 0; }
  /// Addresses relative to RIP, or without base, are not decoded.
  bool has_base() const { return mode() != 0 || (has_sib() ? at_[5] & 7 : rm()) != 5; }
  /// Opcode and the prefix that VEX stands for.
  unsigned name() const { return at_[3] | static_cast<unsigned>(at_[2] & 3) << 8; }
  bool is_memory() const { return mode() != 3; }

  std::size_t reg() const { return at_[4] >> 3 & 7; }
  std::size_t rm() const { return at_[4] & 7; }
  std::size_t vvvv() const { return ~at_[2] >> 3 & 7; }

  /// The operand in memory, and of TILELOADD and TILESTORED the step between rows.
  std::uint8_t* address() const {
    const std::size_t base = (has_sib() ? at_[5] & 7 : rm()) | (at_[1] & 0x20 ? 0 : 8);
    return reinterpret_cast<std::uint8_t*>(value(base) + displacement());
  }
  std::int64_t step() const {
    return value((at_[5] >> 3 & 7) | (at_[1] & 0x40 ? 0 : 8)) << (at_[5] >> 6);
  }

  std::size_t size() const { return 5 + (has_sib() ? 1 : 0) + displacement_size(); }

 private:
  unsigned mode() const { return at_[4] >> 6; }
  bool has_sib() const { return is_memory() && rm() == 4; }
  std::size_t displacement_size() const { return mode() == 1 ? 1 : mode() == 2 ? 4 : 0; }

  std::int64_t displacement() const {
    const std::uint8_t* from = at_ + size() - displacement_size();
    if (mode() == 1) return static_cast<std::int8_t>(*from);
    std::int32_t wide = 0;
    if (mode() == 2) std::memcpy(&wide, from, sizeof wide);
    return wide;
  }

  std::int64_t value(std::size_t number) const {
    static constexpr std::array order = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                         REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                         REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[order[number]];
  }

  const std::uint8_t* at_;
  const greg_t* registers_;
};

/// False if it is none of those that are emulated, or not valid.
bool execute(const Instruction& i) {
  constexpr unsigned f3 = 2U << 8;
  constexpr unsigned f2 = 3U << 8;
  if (!i.is_vex() || !i.has_base()) return false;
  Tile& tile = tiles[i.reg()];
  switch (i.name()) {
    case 0x49:
      if (i.is_memory()) return configure(i.address());
      tiles = {};
      return true;
    case 0x49 | f2: tile.data = {}; return tile.rows > 0;
    case 0x4b | f2:
      tile.data = {};
      for (std::size_t row = 0; row < tile.rows; ++row) {
        std::memcpy(tile.data[row].data(), i.address() + static_cast<std::int64_t>(row) * i.step(),
                    tile.bytes);
      }
      return tile.rows > 0;
    case 0x4b | f3:
      for (std::size_t row = 0; row < tile.rows; ++row) {
        std::memcpy(i.address() + static_cast<std::int64_t>(row) * i.step(), tile.data[row].data(),
                    tile.bytes);
      }
      return tile.rows > 0;
    case 0x5c | f3: return multiply(tile, tiles[i.rm()], tiles[i.vvvv()]);
    default: return false;
  }
}

struct sigaction before;

void handle(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction instruction(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]),
                                registers);
  if (execute(instruction)) {
    registers[REG_RIP] += static_cast<greg_t>(instruction.size());
  } else {
    ::sigaction(SIGILL, &before, nullptr);  // which gets the instruction now
  }
}

/// Does LDTILECFG raise SIGILL?
bool is_emulated() {
  alignas(64) std::array<std::uint8_t, 64> operand{};
  operand[0] = 1;
  operand[16] = operand[48] = 4;  // bytes of a row, and rows, of tile 0
  tiles = {};
  const AmxEmulator emulator;
  asm volatile("ldtilecfg %0" : : "m"(operand));
  const bool found = tiles[0].rows == 4;
  asm volatile("tilerelease");
  return found;
}

}  // namespace

AmxEmulator::AmxEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGILL, &action, &before);
}

AmxEmulator::~AmxEmulator() { ::sigaction(SIGILL, &before, nullptr); }

bool can_test_amx() {
  if (amx_products() == nullptr) {
    WARN("SKIPPED: this processor has no AVX512_BF16, so the kernels for AMX are not tested");
    return false;
  }
  if (has_amx() || is_emulated()) return true;
  WARN("SKIPPED: this processor has AMX, which this process may not use");
  return false;
}

}  // namespace lockstep::test

#else

lockstep::test::AmxEmulator::AmxEmulator() {}
lockstep::test::AmxEmulator::~AmxEmulator() {}
bool lockstep::test::can_test_amx() {
  WARN("SKIPPED: this processor is not x86-64, so the kernels for AMX are not tested");
  return false;
}

#endif

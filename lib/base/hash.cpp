#include "lockstep/base/hash.hpp"

#include <xxhash.h>

#include <bit>
#include <new>

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "hashes and files are little-endian");

struct Hash::State {
  State() : xxh(XXH3_createState()) {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh;
};

Hash::Hash() : state_(std::make_unique<State>()) {}
Hash::~Hash() = default;

void Hash::add_bytes(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

void Hash::add(std::string_view text) {
  add(std::uint64_t{text.size()});
  add_bytes(std::as_bytes(std::span(text)));
}

void Hash::add(std::uint64_t number) { add_bytes(std::as_bytes(std::span(&number, 1))); }

std::uint64_t Hash::value() const { return XXH3_64bits_digest(state_->xxh); }

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t hash_of(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4) {
    *digit = "0123456789abcdef"[value & 15];
  }
  return text;
}

}  // namespace lockstep

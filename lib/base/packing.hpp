// Numbers, texts and arrays as one string of bytes, which ranks of the same program exchange.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {
/// Writes values, in this machine's byte order. The length of a text or an array precedes it.
class Packer {
 public:
  void add(std::uint64_t number) { append(&number, sizeof number); }
  void add(std::string_view text) { add(std::span<const char>(text.data(), text.size())); }
  template <class T>
  void add(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(std::uint64_t{values.size()});
    append(values.data(), values.size_bytes());
  }

  /// The bytes; nothing is left.
  std::string take() { return std::exchange(packed_, {}); }

 private:
  void append(const void* data, std::size_t bytes) {
    packed_.append(static_cast<const char*>(data), bytes);
  }

  std::string packed_;
};

/// Reads values in the order in which a Packer added them. What is not there, as in a string of
/// another program, reads as 0 and as empty texts.
class Unpacker {
 public:
  /// `packed` must outlive the texts.
  explicit Unpacker(std::string_view packed) : rest_(packed) {}

  bool at_end() const noexcept { return rest_.empty(); }

  std::uint64_t number() {
    std::uint64_t number = 0;
    const std::string_view bytes = take(sizeof number);
    if (!bytes.empty()) std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string_view text() { return take(static_cast<std::size_t>(number())); }

  /// Appends an array to `values`.
  template <class T>
  void append_to(std::vector<T>& values) {
    const std::uint64_t count = std::min<std::uint64_t>(number(), rest_.size() / sizeof(T));
    const std::string_view bytes = take(count * sizeof(T));
    const std::size_t before = values.size();
    values.resize(before + count);
    if (count > 0) std::memcpy(values.data() + before, bytes.data(), bytes.size());
  }

 private:
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
};

}  // namespace lockstep

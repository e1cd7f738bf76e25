// Device memory of tests, with guards around it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/cuda/runtime.hpp"

namespace lockstep {

/// A copy of `values` on the device between two guards of NaN, and back.
template <class T>
class Guarded {
 public:
  static constexpr std::size_t guard = 64;

  /// `shift` elements off the alignment that buffers have.
  explicit Guarded(std::span<const T> values, std::size_t shift = 0)
      : memory_(values.size() + shift + 2 * guard), host_(memory_.size()), front_(guard + shift) {
    for (auto& byte : std::as_writable_bytes(host_.span())) byte = std::byte{0xff};
    write(values, cuda::Stream());
  }
  explicit Guarded(const std::vector<T>& values, std::size_t shift = 0)
      : Guarded(std::span<const T>(values), shift) {}

  std::span<T> span() const { return mine(memory_.span()); }
  T* data() const { return span().data(); }

  /// Puts as many values there, after all that `stream` has to do.
  void write(std::span<const T> values, const cuda::Stream& stream) {
    stream.synchronise();
    std::copy(values.begin(), values.end(), mine(host_.span()).begin());
    cuda::copy(host_.span(), memory_.span(), stream);
    stream.synchronise();
  }

  /// What stands there after all that `stream` has to do.
  std::vector<T> read(const cuda::Stream& stream) {
    cuda::copy(memory_.span(), host_.span(), stream);
    stream.synchronise();
    const auto values = mine(host_.span());
    return {values.begin(), values.end()};
  }

  /// Whether nobody wrote around it, as read() last saw it.
  bool intact() const {
    const auto bytes = std::as_bytes(host_.span());
    const auto untouched = [](std::span<const std::byte> part) {
      return std::all_of(part.begin(), part.end(),
                         [](std::byte b) { return b == std::byte{0xff}; });
    };
    return untouched(bytes.first(front_ * sizeof(T))) && untouched(bytes.last(guard * sizeof(T)));
  }

 private:
  std::span<T> mine(std::span<T> all) const {
    return all.subspan(front_, all.size() - front_ - guard);
  }

  cuda::DeviceBuffer<T> memory_;
  cuda::PinnedBuffer<T> host_;
  std::size_t front_;
};

inline std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

}  // namespace lockstep

// Device memory of tests, with guards around it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/cuda/runtime.hpp"

namespace lockstep {

/// A copy of `values` on the device between two guards of NaN, and back.
template <class T>
class Guarded {
 public:
  static constexpr std::size_t guard = 64;

  explicit Guarded(std::span<const T> values)
      : memory_(values.size() + 2 * guard), host_(memory_.size()) {
    for (auto& byte : std::as_writable_bytes(host_.span())) byte = std::byte{0xff};
    std::copy(values.begin(), values.end(), host_.span().begin() + guard);
    const cuda::Stream stream;
    cuda::copy(host_.span(), memory_.span(), stream);
    stream.synchronise();
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(std::span<const T>(values)) {}

  std::span<T> span() const { return memory_.span().subspan(guard, memory_.size() - 2 * guard); }
  T* data() const { return span().data(); }

  /// What stands there after all that `stream` has to do.
  std::vector<T> read(const cuda::Stream& stream) {
    cuda::copy(memory_.span(), host_.span(), stream);
    stream.synchronise();
    const auto all = host_.span();
    return {all.begin() + guard, all.end() - guard};
  }

  /// Whether nobody wrote around it, as read() last saw it.
  bool intact() const {
    const auto bytes = std::as_bytes(host_.span());
    const auto untouched = [](std::span<const std::byte> part) {
      return std::all_of(part.begin(), part.end(),
                         [](std::byte b) { return b == std::byte{0xff}; });
    };
    return untouched(bytes.first(guard * sizeof(T))) && untouched(bytes.last(guard * sizeof(T)));
  }

 private:
  cuda::DeviceBuffer<T> memory_;
  cuda::PinnedBuffer<T> host_;
};

inline std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

}  // namespace lockstep

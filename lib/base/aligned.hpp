// Memory aligned to 64 bytes: a cache line, and the widest vector.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>

namespace lockstep {

inline constexpr std::size_t alignment_bytes = 64;
inline constexpr std::size_t line_floats = alignment_bytes / sizeof(float);  ///< of a cache line

/// A fixed number of elements, zeroed, at an address that is a multiple of 64 bytes.
///
/// Owns its memory. Movable, not copyable.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;

  /// `memory` must outlive the buffer. Throws std::bad_alloc.
  explicit AlignedBuffer(std::size_t count,
                         std::pmr::memory_resource& memory = *std::pmr::new_delete_resource())
      : data_(static_cast<T*>(memory.allocate(padded_bytes(count), alignment_bytes)),
              Free{&memory, padded_bytes(count)}),
        count_(count) {
    std::uninitialized_fill_n(data_.get(), count, T{});
  }

  std::span<T> span() noexcept { return {data_.get(), count_}; }
  std::span<const T> span() const noexcept { return {data_.get(), count_}; }
  T* data() noexcept { return data_.get(); }
  const T* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return count_; }

 private:
  static constexpr std::size_t padded_bytes(std::size_t count) noexcept {
    return (count * sizeof(T) / alignment_bytes + 1) * alignment_bytes;
  }

  struct Free {
    std::pmr::memory_resource* memory = nullptr;
    std::size_t bytes = 0;
    void operator()(T* data) const noexcept { memory->deallocate(data, bytes, alignment_bytes); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t count_ = 0;
};

}  // namespace lockstep

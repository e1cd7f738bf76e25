// Memory of one process that others of its machine read: a file without a name, and its mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>

namespace lockstep::comm {

/// A mapping of zeroed bytes that this process made, or that a peer made and this one opened.
///
/// The bytes are those of a memfd: no name in the file system, nothing left behind by a crash, no
/// limit of /dev/shm, and no memory taken before a page is touched. Unmaps in its destructor.
/// Errors   ConfigError with the system's reason.
class SharedRegion {
 public:
  /// What a peer needs to open a region, as a line of text.
  static SharedRegion create(std::size_t bytes);

  /// Opens what `address` of another process of this machine names, which must still be open there.
  static SharedRegion open(const std::string& address);

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&&) = delete;
  ~SharedRegion();

  /// What open() wants. Valid until close().
  std::string address() const;

  /// Forgets the file, keeps the mapping: nobody can open it any more.
  void close() noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  SharedRegion(int descriptor, std::size_t bytes);

  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Hands out the bytes of a region from `first` on, in order; takes back the last of them at once,
/// and the pages of all others. One thread.
class RegionMemory final : public std::pmr::memory_resource {
 public:
  RegionMemory(const SharedRegion& region, std::size_t first) : region_(region), used_(first) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* data, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  const SharedRegion& region_;
  std::size_t used_;
};

}  // namespace lockstep::comm

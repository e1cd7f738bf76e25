// Mapped memory of a file, for small reads at scattered places.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

/// An open file as memory: a read costs no system call. Pages are shared between the processes of
/// a host that read the same file.
///
/// An access to a page that a file no longer has, or that its disk cannot give, is the signal
/// SIGBUS. A handler, installed by the first object, puts a page of zeros there, and copy() returns
/// false; it passes on what no copy() has caused. systemd's journal reads its files in this way
/// (src/basic/sigbus.c). The handler needs no lock and allocates nothing. Local; copy() by one
/// thread at a time.
class MappedFile {
 public:
  /// Larger reads are no faster from mapped memory.
  static constexpr std::uint64_t max_read = 4096;

  /// Maps the first `size` bytes of the file. On failure copy() always returns false.
  MappedFile(int descriptor, std::uint64_t size) noexcept;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Fills `bytes` from `offset` on. False if they are not within the mapped bytes, or have been
  /// unreadable once: read them from the file, which gives the error. Zeros stand for bytes by
  /// which the file is shorter within its last page.
  bool copy(std::uint64_t offset, std::span<std::uint8_t> bytes) noexcept;

  /// Fetches bytes that copy() will be asked for soon into the caches; nothing if they are not
  /// within the mapped bytes.
  void prefetch(std::uint64_t offset, std::size_t bytes) const noexcept;

 private:
  void unmap() noexcept;

  std::uint8_t* begin_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace lockstep::data

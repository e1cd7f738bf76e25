#include "collectives/shared_region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <sstream>
#include <system_error>
#include <utility>

#include "lib/base/errors.hpp"

namespace lockstep::comm {
namespace {

constexpr std::size_t page = 4096;

std::size_t rounded_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

[[noreturn]] void fail(const std::string& what) {
  throw ConfigError("shared memory: " + what + ": " + std::generic_category().message(errno),
                    "use --backend mpi");
}

/// Which file a descriptor means: what tells a peer's region from another file of that number.
std::pair<std::uint64_t, std::uint64_t> identity_and_size(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) fail("fstat");
  return {status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

}  // namespace

SharedRegion::SharedRegion(int descriptor, std::size_t bytes)
    : descriptor_(descriptor), size_(bytes) {
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) {
    const int reason = errno;
    close();
    errno = reason;
    fail("mmap of " + std::to_string(bytes) + " bytes of addresses");
  }
  data_ = static_cast<std::byte*>(data);
}

SharedRegion SharedRegion::create(std::size_t bytes) {
  const int descriptor = ::memfd_create("lockstep", MFD_CLOEXEC);
  if (descriptor < 0) fail("memfd_create");
  const std::size_t size = rounded_up(bytes, page);
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    const int reason = errno;
    ::close(descriptor);
    errno = reason;
    fail("ftruncate to " + std::to_string(size) + " bytes");
  }
  return {descriptor, size};
}

SharedRegion SharedRegion::open(const std::string& address) {
  std::istringstream words(address);
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::string path;
  words >> inode >> size >> path;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail(path + ", a peer's region, cannot be opened");
  if (identity_and_size(descriptor) != std::pair(inode, size)) {
    ::close(descriptor);
    throw ConfigError("shared memory: " + path +
                          " is another file here than for the peer that named it (ranks in "
                          "different containers?)",
                      "use --backend mpi");
  }
  return {descriptor, size};
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

SharedRegion::~SharedRegion() {
  close();
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::string SharedRegion::address() const {
  const auto [inode, size] = identity_and_size(descriptor_);
  return std::to_string(inode) + ' ' + std::to_string(size) + " /proc/" +
         std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_);
}

void SharedRegion::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

void* RegionMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t first = rounded_up(used_, alignment);
  if (bytes > region_.size() - std::min(first, region_.size())) throw std::bad_alloc();
  used_ = first + bytes;
  return region_.data() + first;
}

void RegionMemory::do_deallocate(void* data, std::size_t bytes, std::size_t) {
  const auto first = static_cast<std::size_t>(static_cast<std::byte*>(data) - region_.data());
  if (first + bytes == used_) used_ = first;
  const std::size_t begin = rounded_up(first, page);
  const std::size_t end = (first + bytes) / page * page;
  if (begin < end) ::madvise(region_.data() + begin, end - begin, MADV_REMOVE);
}

}  // namespace lockstep::comm

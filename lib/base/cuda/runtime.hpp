// The CUDA runtime with owners and exceptions: what all device code stands on.
//
// Every call is checked. Objects belong to the device that was current when they were made; one
// host thread uses an object at a time, and each rank has its own.
#pragma once

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "lib/base/errors.hpp"

namespace lockstep::cuda {
/// A call of the runtime failed, or a kernel before it did: the process's device is of no use from
/// then on. Exit code 1.
struct DeviceError : Error {
  explicit DeviceError(const std::string& problem)
      : Error(ExitCode::internal, problem, "look into the kernel's log (dmesg) for Xid messages") {}
};

/// Throws DeviceError that names `what` and the device; ConfigError (2) where memory is used up,
/// and for devices that this build has no code for.
void check(cudaError_t error, const char* what);

/// Makes `device` the calling thread's: the first call of every rank.
/// Errors   throws DeviceError.
void select_device(int device);

/// What distinguishes devices of a host: "0000:1b:00.0".
std::string pci_bus_id(int device);

/// Work in order, beside that of other streams.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const noexcept { return stream_; }

  /// Waits until all that was enqueued is done.
  /// Errors   throws DeviceError, also for what failed since the last check.
  void synchronise() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) const;

  /// What is enqueued on `stream` from now on begins after the point recorded last.
  void block(const Stream& stream) const;

  /// The calling thread waits for the point recorded last; no wait before the first.
  void synchronise() const;

  /// Whether that point was reached.
  bool reached() const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Which memory a Buffer takes.
enum class Where {
  device,
  pinned,  ///< of the host, which the device copies without the processor
};

/// Memory of `bytes` bytes, or null for none; freed with release().
void* allocate(Where where, std::size_t bytes);
void release(Where where, void* memory) noexcept;

/// A fixed number of elements that are not set to anything. Moves, does not copy.
template <class T, Where where>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;

  /// Errors   throws ConfigError (2) where memory is used up.
  explicit Buffer(std::size_t count)
      : data_(static_cast<T*>(allocate(where, count * sizeof(T)))), count_(count) {}
  ~Buffer() { release(where, data_); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return count_; }
  std::span<T> span() const noexcept { return {data_, count_}; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

template <class T>
using DeviceBuffer = Buffer<T, Where::device>;
template <class T>
using PinnedBuffer = Buffer<T, Where::pinned>;

/// Enqueues a copy of bytes, in whatever direction the two addresses mean.
void copy_bytes(const void* from, void* to, std::size_t bytes, const Stream& stream);

/// Enqueues a copy of all of `from` to the front of `to`, which is at least as long.
template <class T>
void copy(std::span<T> from, std::span<std::remove_const_t<T>> to, const Stream& stream) {
  copy_bytes(from.data(), to.data(), from.size_bytes(), stream);
}

/// Enqueues zeros.
void clear_bytes(void* memory, std::size_t bytes, const Stream& stream);

template <class T>
void clear(std::span<T> memory, const Stream& stream) {
  clear_bytes(memory.data(), memory.size_bytes(), stream);
}

/// Blocks of a grid, threads of a block.
struct Grid {
  dim3 blocks;
  dim3 threads;
};

/// Blocks of `threads` that hold `count` elements one by one.
inline Grid grid_of(std::size_t count, unsigned threads = 256) {
  return {dim3(static_cast<unsigned>((count + threads - 1) / threads)), dim3(threads)};
}

/// Enqueues a kernel; an empty grid enqueues nothing.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, const Stream& stream,
            Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.stream = stream.get();
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
}

/// Work that was recorded once, to be enqueued again and again as one.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  /// What body() enqueues on `stream`; nothing of it runs yet. Libraries may meanwhile do what a
  /// strict capture forbids: load their kernels, when they are used for the first time.
  template <class Body>
  static Graph record(const Stream& stream, const Body& body) {
    begin(stream);
    try {
      body();
    } catch (...) {
      abandon(stream);
      throw;
    }
    return end(stream);
  }

  explicit operator bool() const noexcept { return graph_ != nullptr; }
  void enqueue(const Stream& stream) const;

 private:
  explicit Graph(cudaGraphExec_t graph) noexcept : graph_(graph) {}
  static void begin(const Stream& stream);
  static void abandon(const Stream& stream) noexcept;
  static Graph end(const Stream& stream);

  cudaGraphExec_t graph_ = nullptr;
};

// Memory of the host that devices copy by themselves, as containers take it.

/// Pinned memory, page-aligned. Lives as long as the process. Any thread whose device is set.
/// Errors   allocate() throws ConfigError (2) where no more can be pinned.
std::pmr::memory_resource& pinned_memory() noexcept;

// A named span of host time that Nsight Systems shows.

/// From here to the end of the scope. Costs nothing where no tool listens.
class TraceRange {
 public:
  explicit TraceRange(const char* name) { nvtxRangePushA(name); }
  ~TraceRange() { nvtxRangePop(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace lockstep::cuda

// RAII wrappers of the CUDA runtime: streams, events, buffers, graphs, kernel launches.
//
// Every call is checked. Objects belong to the device that was current at construction. They are
// not thread-safe; each rank has its own.
#pragma once

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"

namespace lockstep::cuda {
/// A runtime call or an earlier kernel failed; the device is unusable for this process. Exit
/// code 1.
struct DeviceError : Error {
  explicit DeviceError(const std::string& problem)
      : Error(ExitCode::internal, problem, "look into the kernel's log (dmesg) for Xid messages") {}
};

/// Throws DeviceError with `what` and the device; ConfigError (2) if device memory is exhausted or
/// the build has no code for the device.
void check(cudaError_t error, const char* what);

/// Selects `device` for the calling thread; each rank calls it first.
/// Errors   throws DeviceError.
void select_device(int device);

/// The PCI bus id, as "0000:1b:00.0": unique on a host.
std::string pci_bus_id(int device);

/// A CUDA stream: its work runs in order.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const noexcept { return stream_; }

  /// Waits for all enqueued work.
  /// Errors   throws DeviceError, also for earlier asynchronous failures.
  void synchronise() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// A CUDA event: a point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream) const;

  /// Makes later work of `stream` wait for the recorded point.
  void block(const Stream& stream) const;

  /// True if the recorded point was reached.
  bool reached() const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream for work that may run beside that of another one. May be recorded in a graph, which
/// then has a branch.
class Branch {
 public:
  /// Returns the stream of the branch, whose later work follows what `from` has been given so far.
  const Stream& fork(const Stream& from) {
    begin_.record(from);
    begin_.block(stream_);
    is_forked_ = true;
    return stream_;
  }

  /// Makes later work of `into` wait for the branch; does nothing without a fork() since the last
  /// join(). A recording must end with it.
  void join(const Stream& into) {
    if (!std::exchange(is_forked_, false)) return;
    end_.record(stream_);
    end_.block(into);
  }

 private:
  Stream stream_;
  Event begin_;
  Event end_;
  bool is_forked_ = false;
};

/// Kinds of memory of a Buffer.
enum class Where {
  device,
  pinned,  ///< page-locked host memory
};

/// Memory of `bytes` bytes, or null for none; freed with release().
void* allocate(Where where, std::size_t bytes);
void release(Where where, void* memory) noexcept;

/// A fixed number of uninitialized elements. Move-only.
template <class T, Where where>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;

  /// Errors   throws ConfigError (2) if memory is exhausted.
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

/// Enqueues a copy of bytes between host and device, in either direction.
void copy_bytes(const void* from, void* to, std::size_t bytes, const Stream& stream);

/// Enqueues a copy of all of `from` to the front of `to`, which is at least as long.
template <class T>
void copy(std::span<T> from, std::span<std::remove_const_t<T>> to, const Stream& stream) {
  copy_bytes(from.data(), to.data(), from.size_bytes(), stream);
}

/// Enqueues zeroing of `bytes` bytes.
void clear_bytes(void* memory, std::size_t bytes, const Stream& stream);

template <class T>
void clear(std::span<T> memory, const Stream& stream) {
  clear_bytes(memory.data(), memory.size_bytes(), stream);
}

/// The numbers of blocks in a grid and of threads in a block.
struct Grid {
  dim3 blocks;
  dim3 threads;
};

/// A grid with one thread per element, for `count` elements in blocks of `threads`.
inline Grid grid_of(std::size_t count, unsigned threads = 256) {
  return {dim3(static_cast<unsigned>(ceil_divide(count, threads))), dim3(threads)};
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

/// A CUDA graph: recorded work that is enqueued as a whole.
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

  /// Records the work that body() enqueues on `stream`, without running it. Capture is relaxed:
  /// libraries may load their kernels on first use.
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

/// Pinned host memory, page-aligned, for containers. Lifetime of the process; thread-safe.
/// Errors   allocate() throws ConfigError (2) if no more memory can be pinned.
std::pmr::memory_resource& pinned_memory() noexcept;

/// A named range for Nsight Systems, until the end of the scope.
class TraceRange {
 public:
  explicit TraceRange(const char* name) { nvtxRangePushA(name); }
  ~TraceRange() { nvtxRangePop(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace lockstep::cuda

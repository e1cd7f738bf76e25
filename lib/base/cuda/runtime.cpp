#include "lockstep/base/cuda/runtime.hpp"

#include <array>

namespace lockstep::cuda {
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  int device = -1;
  cudaGetDevice(&device);
  const std::string where = std::string(what) + " on device " + std::to_string(device) + ": ";
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error
    throw ConfigError(where + "the device's memory is used up",
                      "use narrower layers or a smaller `batch_size`, or share no device");
  }
  if (error == cudaErrorNoKernelImageForDevice) {
    cudaGetLastError();
    throw ConfigError(
        where + "this build has no code for devices of its kind",
        "build with -DCMAKE_CUDA_ARCHITECTURES=native on its host, or use `device=cpu`");
  }
  throw DeviceError(where + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

void select_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

std::string pci_bus_id(int device) {
  std::array<char, 32> id{};
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device),
        "cudaDeviceGetPCIBusId");
  return id.data();
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::synchronise() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

Event::Event() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

Event::~Event() { cudaEventDestroy(event_); }

void Event::record(const Stream& stream) const {
  check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

void Event::block(const Stream& stream) const {
  check(cudaStreamWaitEvent(stream.get(), event_, 0), "cudaStreamWaitEvent");
}

bool Event::reached() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

namespace {

void pin(void** memory, std::size_t bytes) {
  const cudaError_t error = cudaMallocHost(memory, bytes);
  if (error != cudaErrorMemoryAllocation) return check(error, "cudaMallocHost");
  cudaGetLastError();  // clears the error
  throw ConfigError(
      "cudaMallocHost: no more of the host's memory can be pinned for a device",
      "use narrower layers or a smaller `batch_size`, or raise the limit of the job's memory");
}

}  // namespace

void* allocate(Where where, std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  if (where == Where::device) {
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
  } else {
    pin(&memory, bytes);
  }
  return memory;
}

void release(Where where, void* memory) noexcept {
  if (memory == nullptr) return;
  if (where == Where::device) {
    cudaFree(memory);
  } else {
    cudaFreeHost(memory);
  }
}

void copy_bytes(const void* from, void* to, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
}

void clear_bytes(void* memory, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, 0, bytes, stream.get()), "cudaMemsetAsync");
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void Graph::begin(const Stream& stream) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
}

void Graph::abandon(const Stream& stream) noexcept {
  cudaGraph_t recorded = nullptr;
  cudaStreamEndCapture(stream.get(), &recorded);
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  cudaGetLastError();
}

Graph Graph::end(const Stream& stream) {
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(stream.get(), &recorded), "cudaStreamEndCapture");
  cudaGraphExec_t graph = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  check(error, "cudaGraphInstantiate");
  return Graph(graph);
}

void Graph::enqueue(const Stream& stream) const {
  check(cudaGraphLaunch(graph_, stream.get()), "cudaGraphLaunch");
}

namespace {

class PinnedMemory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t /*alignment*/) override {
    return cuda::allocate(Where::pinned, bytes);
  }
  void do_deallocate(void* memory, std::size_t /*bytes*/, std::size_t /*alignment*/) override {
    cuda::release(Where::pinned, memory);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource& pinned_memory() noexcept {
  static PinnedMemory memory;
  return memory;
}

}  // namespace lockstep::cuda

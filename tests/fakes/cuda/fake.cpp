#include "tests/fakes/cuda/fake.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "tests/fakes/cuda/fibers.hpp"
#include "tests/fakes/cuda/memory.hpp"

namespace {

using Work = std::function<bool()>;  // false: not yet, ask again

struct Allocation {
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
  int device = 0;
};

struct Failure {
  std::string function;
  cudaError_t error = cudaSuccess;
  int count = 0;
};

struct State {
  std::mutex mutex;
  int devices = 1;
  int multiprocessors = 132;
  std::atomic<unsigned> seed = 0;
  std::map<const std::byte*, Allocation> memory;
  std::vector<std::string> log;
  std::vector<Failure> failures;
  std::size_t objects = 0;

  State() {
    if (const char* count = std::getenv("FAKE_CUDA_DEVICES")) devices = std::atoi(count);
    if (const char* given = std::getenv("FAKE_CUDA_SEED")) {
      seed = static_cast<unsigned>(std::atoi(given));
    }
  }
};

State& state() {
  static State instance;
  return instance;
}

thread_local int current_device = 0;
thread_local std::vector<int> visible;  // the machine's devices that the thread sees; empty: all
thread_local cudaError_t last_error = cudaSuccess;

/// What draws the calling thread's orders, begun again with each seed; nullptr for seed 0.
std::mt19937* random_order() {
  thread_local unsigned begun = 0;
  thread_local std::mt19937 random;
  const unsigned seed = state().seed;
  if (seed != begun) random.seed(begun = seed);
  return seed == 0 ? nullptr : &random;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// The machine's own number of a device, or -1 for one that the thread does not see.
int machine_device(int device) {
  const int count = visible.empty() ? state().devices : static_cast<int>(visible.size());
  if (device < 0 || device >= count) return -1;
  return visible.empty() ? device : visible[static_cast<std::size_t>(device)];
}

int chosen_machine_device() { return machine_device(current_device); }

/// What every device since 2012 can launch.
bool fits_device(const cudaLaunchConfig_t& config) {
  constexpr unsigned max_x = 0x7fffffff;
  constexpr unsigned max_other = 65535;
  constexpr unsigned max_threads = 1024;
  constexpr unsigned max_deep = 64;
  const auto [blocks_x, blocks_y, blocks_z] = config.gridDim;
  const auto [x, y, z] = config.blockDim;
  return blocks_x <= max_x && blocks_y <= max_other && blocks_z <= max_other && z <= max_deep &&
         std::size_t{x} * y * z <= max_threads && std::size_t{x} * y * z > 0;
}

void count_object(std::ptrdiff_t change) {
  const std::lock_guard lock(state().mutex);
  state().objects += static_cast<std::size_t>(change);
}

/// The allocation that holds all of [memory, memory + bytes), if any does.
const Allocation* find(const void* memory, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(memory);
  auto next = state().memory.upper_bound(first);
  if (next == state().memory.begin()) return nullptr;
  const auto& [begin, allocation] = *--next;
  return first + bytes <= begin + allocation.bytes ? &allocation : nullptr;
}

cudaError_t give(void** memory, std::size_t bytes, cudaMemoryType type) {
  constexpr std::size_t line = 256;
  void* given = nullptr;
  if (type == cudaMemoryTypeDevice) {
    given = fake_cuda::device_allocate(bytes);
  } else {
    given = std::aligned_alloc(line, (bytes + line - 1) / line * line);
    if (given != nullptr) std::memset(given, 0xff, bytes);  // NaN
  }
  if (given == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(state().mutex);
  state().memory[static_cast<std::byte*>(given)] = {bytes, type, current_device};
  *memory = given;
  return cudaSuccess;
}

cudaError_t take_back(void* memory, cudaMemoryType type) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(state().mutex);
    const auto at = state().memory.find(static_cast<std::byte*>(memory));
    if (at == state().memory.end() || at->second.type != type) return cudaErrorInvalidValue;
    bytes = at->second.bytes;
    state().memory.erase(at);
  }
  if (type == cudaMemoryTypeDevice) {
    fake_cuda::device_free(memory, bytes);
  } else {
    std::free(memory);
  }
  return cudaSuccess;
}

/// Whether `memory` was given out here: the device's, or pinned.
bool is_known(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return find(memory, bytes) != nullptr;
}

/// Whether `memory` is what a copy may touch: the device's, or any of the host's.
bool is_device(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const Allocation* found = find(memory, bytes);
  return found != nullptr && found->type == cudaMemoryTypeDevice;
}

}  // namespace

/// Recorded work, and the indices of the nodes that it waits for.
struct Node {
  Work work;
  std::vector<std::size_t> after;
};
struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};
/// What is recorded meanwhile, shared by its streams.
struct Capture {
  CUstream_st* origin = nullptr;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::map<const CUstream_st*, std::vector<std::size_t>> last;  // a stream's next work waits for
  std::set<CUstream_st*> streams;
  std::set<CUstream_st*> unjoined;  // those that have work for which the origin does not wait
  bool valid = true;
};
struct CUstream_st {
  int device = 0;
  std::deque<Work> queue;
  std::shared_ptr<Capture> capture;
};
/// What an event marked last.
struct Mark {
  CUstream_st* stream = nullptr;
  bool reached = false;
};
struct CUevent_st {
  int device = 0;
  std::shared_ptr<Mark> mark;
  std::weak_ptr<Capture> capture;  // none once it has ended
  CUstream_st* recorded_in = nullptr;
  std::vector<std::size_t> after;  // the nodes of the capture that it waits for
};

namespace {

thread_local std::shared_ptr<Capture> captured_by_thread;
thread_local std::vector<CUstream_st*> streams_of_thread;  // in the order of their making

/// What a capture does not survive.
cudaError_t spoil(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return remember(error);
}

/// For calls that may wait for the device: refused where the thread captures.
cudaError_t refused_in_capture() {
  if (!captured_by_thread) return cudaSuccess;
  return spoil(*captured_by_thread, cudaErrorStreamCaptureUnsupported);
}

void end_capture(const std::shared_ptr<Capture>& capture) {
  if (!capture) return;
  for (CUstream_st* one : capture->streams) one->capture = nullptr;
  captured_by_thread = nullptr;
}

/// Runs the next work of a stream; false where it cannot end yet.
bool advance(CUstream_st* stream) {
  if (!stream->queue.front()()) return false;
  stream->queue.pop_front();
  return true;
}

/// Runs all work of a stream; false where some cannot end yet.
bool advance_all(CUstream_st* stream) {
  while (!stream->queue.empty()) {
    if (!advance(stream)) return false;
  }
  return true;
}

/// Runs a stream up to a mark; false where something before it cannot end yet.
bool advance_to(const Mark& mark) {
  while (!mark.reached && !mark.stream->queue.empty()) {
    if (!advance(mark.stream)) return false;
  }
  return true;
}

void add(CUstream_st* stream, Work work) {
  if (const auto& capture = stream->capture) {
    auto& last = capture->last[stream];
    capture->nodes.push_back({std::move(work), std::exchange(last, {capture->nodes.size()})});
    if (stream != capture->origin) capture->unjoined.insert(stream);
    return;
  }
  stream->queue.push_back(std::move(work));
  std::mt19937* const random = random_order();
  if (random == nullptr) return;
  const fake_cuda::DeviceAccess access;
  for (CUstream_st* any : streams_of_thread) {
    if ((*random)() % 2 == 0) advance_all(any);
  }
}

/// An order in which a device may run a graph: that of recording with seed 0, else any in which no
/// node comes before one that it waits for.
std::vector<std::size_t> order_of(const std::vector<Node>& nodes) {
  std::vector<std::size_t> left(nodes.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  std::mt19937* const random = random_order();
  if (random == nullptr) return left;
  const bool latest_first = (*random)() % 2 == 0;  // so that a branch runs long before another
  std::vector<std::size_t> order;
  std::vector<bool> has_run(nodes.size());
  while (!left.empty()) {
    std::vector<std::size_t> ready;
    std::copy_if(left.begin(), left.end(), std::back_inserter(ready), [&](std::size_t node) {
      const auto& after = nodes[node].after;
      return std::all_of(after.begin(), after.end(), [&](std::size_t i) { return has_run[i]; });
    });
    order.push_back(latest_first ? ready.back() : ready[(*random)() % ready.size()]);
    has_run[order.back()] = true;
    left.erase(std::find(left.begin(), left.end(), order.back()));
  }
  return order;
}

/// Where work waits for another rank, so does the thread.
template <class Condition>
void wait_until(Condition condition) {
  const fake_cuda::DeviceAccess access;
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

/// Memory is freed when all that may use it is done.
void finish_work() {
  for (CUstream_st* stream : streams_of_thread) {
    if (!stream->queue.empty()) wait_until([&] { return advance_all(stream); });
  }
}

Work at_once(std::function<void()> work) {
  return [work = std::move(work)] {
    work();
    return true;
  };
}

}  // namespace

namespace fake_cuda {

void set_devices(int count) {
  const std::lock_guard lock(state().mutex);
  state().devices = count;
}

void set_multiprocessors(int count) {
  const std::lock_guard lock(state().mutex);
  state().multiprocessors = count;
}

void set_seed(unsigned seed) { state().seed = seed; }
unsigned seed() { return state().seed; }

void fail(const std::string& function, cudaError_t error, int count) {
  const std::lock_guard lock(state().mutex);
  state().failures.push_back({function, error, count});
}

void fail_no_more() {
  const std::lock_guard lock(state().mutex);
  state().failures.clear();
}

std::vector<std::string> take_log() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().log, {});
}

cudaError_t note(const char* function) {
  const std::lock_guard lock(state().mutex);
  state().log.emplace_back(function);
  for (auto& failure : state().failures) {
    if (failure.function == function && failure.count > 0 && --failure.count == 0) {
      return remember(failure.error);
    }
  }
  return cudaSuccess;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  add(stream, at_once(std::move(work)));
}

void enqueue_until(cudaStream_t stream, std::function<bool()> work) {
  add(stream, std::move(work));
}

void set_visible(std::vector<int> devices) {
  visible = std::move(devices);
  current_device = 0;
}

int chosen_device() { return chosen_machine_device(); }

std::size_t live_objects() {
  const std::lock_guard lock(state().mutex);
  return state().objects + state().memory.size();
}

}  // namespace fake_cuda

// Every function notes its call first, and ends there where it was asked to fail.
#define FAKE(function) \
  if (const auto failed = fake_cuda::note(function); failed != cudaSuccess) return failed
#define REFUSE_IN_CAPTURE \
  if (const auto refused = refused_in_capture(); refused != cudaSuccess) return refused

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    default: return "unknown error";
  }
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  FAKE("cudaGetDeviceCount");
  const std::lock_guard lock(state().mutex);
  *count = visible.empty() ? state().devices : static_cast<int>(visible.size());
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  FAKE("cudaSetDevice");
  const std::lock_guard lock(state().mutex);
  if (machine_device(device) < 0) return remember(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  FAKE("cudaGetDeviceProperties");
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "a processor that plays a device");
  const std::lock_guard lock(state().mutex);
  properties->multiProcessorCount = state().multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  FAKE("cudaDeviceGetAttribute");
  const std::lock_guard lock(state().mutex);
  *value = state().multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  FAKE("cudaDeviceGetPCIBusId");
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", machine_device(device) + 1);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  FAKE("cudaMalloc");
  REFUSE_IN_CAPTURE;
  return remember(give(memory, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaFree(void* memory) {
  FAKE("cudaFree");
  REFUSE_IN_CAPTURE;
  finish_work();
  return remember(take_back(memory, cudaMemoryTypeDevice));
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  FAKE("cudaMallocHost");
  REFUSE_IN_CAPTURE;
  return remember(give(memory, bytes, cudaMemoryTypeHost));
}
cudaError_t cudaFreeHost(void* memory) {
  FAKE("cudaFreeHost");
  REFUSE_IN_CAPTURE;
  finish_work();
  return remember(take_back(memory, cudaMemoryTypeHost));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  FAKE("cudaPointerGetAttributes");
  const std::lock_guard lock(state().mutex);
  const Allocation* found = find(memory, 1);
  *attributes = {found != nullptr ? found->type : cudaMemoryTypeUnregistered,
                 found != nullptr ? found->device : -1};
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  FAKE("cudaMemcpyAsync");
  const bool to_device = is_device(to, bytes);
  const bool from_device = is_device(from, bytes);
  const bool asked_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool asked_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!to_device && !from_device) return remember(cudaErrorInvalidValue);
  if (kind != cudaMemcpyDefault && (asked_to != to_device || asked_from != from_device)) {
    return remember(cudaErrorInvalidValue);
  }
  if (stream->capture && !(is_known(to, bytes) && is_known(from, bytes))) {  // pageable
    return spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
  }
  fake_cuda::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  FAKE("cudaMemsetAsync");
  if (!is_device(memory, bytes)) return remember(cudaErrorInvalidValue);
  fake_cuda::enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  FAKE("cudaStreamCreateWithFlags");
  *stream = new CUstream_st;
  (*stream)->device = chosen_machine_device();
  streams_of_thread.push_back(*stream);
  count_object(1);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FAKE("cudaStreamDestroy");
  if (stream == nullptr) return cudaErrorInvalidValue;
  std::erase(streams_of_thread, stream);
  delete stream;
  count_object(-1);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAKE("cudaStreamSynchronize");
  if (stream->capture) return spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
  if (!stream->queue.empty()) wait_until([&] { return advance_all(stream); });
  return last_error;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  FAKE("cudaStreamWaitEvent");
  const auto capture = event->capture.lock();
  if (capture) {  // fork or join
    if (stream->capture && stream->capture != capture) {
      return spoil(*capture, cudaErrorStreamCaptureMerge);
    }
    capture->unjoined.erase(event->recorded_in);
    auto& last = capture->last[stream];
    last.insert(last.end(), event->after.begin(), event->after.end());
    if (!stream->capture) {
      stream->capture = capture;
      capture->streams.insert(stream);
    }
    if (stream != capture->origin) capture->unjoined.insert(stream);
  } else if (stream->capture && event->mark) {
    return spoil(*stream->capture, cudaErrorStreamCaptureIsolation);
  } else if (event->mark && event->mark->stream != stream) {
    add(stream, [mark = event->mark] { return advance_to(*mark); });
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  FAKE("cudaStreamBeginCapture");
  if (stream->capture || captured_by_thread) return remember(cudaErrorStreamCaptureUnsupported);
  stream->capture = captured_by_thread = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams.insert(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const auto capture = stream->capture;
  if (const auto failed = fake_cuda::note("cudaStreamEndCapture"); failed != cudaSuccess) {
    if (capture) capture->valid = false;
    end_capture(capture);
    return failed;
  }
  if (!capture) return remember(cudaErrorInvalidValue);
  if (capture->thread != std::this_thread::get_id()) {
    return spoil(*capture, cudaErrorStreamCaptureWrongThread);
  }
  if (capture->origin != stream) return spoil(*capture, cudaErrorStreamCaptureUnmatched);
  end_capture(capture);
  if (!capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
  if (!capture->unjoined.empty()) return remember(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  count_object(1);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  FAKE("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->device = chosen_machine_device();
  count_object(1);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FAKE("cudaEventDestroy");
  if (event == nullptr) return cudaErrorInvalidValue;
  delete event;
  count_object(-1);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAKE("cudaEventRecord");
  if (event->device != stream->device) return remember(cudaErrorInvalidResourceHandle);
  event->capture = stream->capture;
  event->recorded_in = stream;
  if (stream->capture) {
    event->after = stream->capture->last[stream];
    return cudaSuccess;
  }
  event->mark = std::make_shared<Mark>(Mark{stream});
  fake_cuda::enqueue(stream, [mark = event->mark] { mark->reached = true; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAKE("cudaEventQuery");
  if (const auto capture = event->capture.lock()) return spoil(*capture, cudaErrorCapturedEvent);
  // A device would get on meanwhile. Its memory stays open between one look and the next, since
  // callers spin.
  thread_local std::optional<fake_cuda::DeviceAccess> looking;
  if (event->mark && !event->mark->reached && !event->mark->stream->queue.empty()) {
    if (!looking) looking.emplace();
    advance(event->mark->stream);
  }
  if (event->mark && !event->mark->reached) return cudaErrorNotReady;
  looking.reset();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  FAKE("cudaGraphInstantiate");
  *executable = new CUgraphExec_st{graph->nodes};
  count_object(1);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  FAKE("cudaGraphLaunch");
  if (stream->capture) return spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
  for (const std::size_t node : order_of(graph->nodes)) add(stream, graph->nodes[node].work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  FAKE("cudaGraphDestroy");
  delete graph;
  count_object(-1);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  FAKE("cudaGraphExecDestroy");
  delete graph;
  count_object(-1);
  return cudaSuccess;
}

cudaError_t fake_cuda_launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  FAKE("kernel");
  if (config.stream->device != chosen_machine_device()) {
    return remember(cudaErrorInvalidResourceHandle);
  }
  if (!fits_device(config)) return remember(cudaErrorInvalidConfiguration);
  fake_cuda::enqueue(config.stream, [config, thread = std::move(thread)] {
    const auto [x, y, z] = gridDim = config.gridDim;
    std::mt19937* const random = random_order();
    std::vector<std::size_t> blocks(std::size_t{x} * y * z);
    std::iota(blocks.begin(), blocks.end(), std::size_t{0});
    if (random != nullptr) std::shuffle(blocks.begin(), blocks.end(), *random);
    for (const std::size_t block : blocks) {
      blockIdx = {static_cast<unsigned>(block % x), static_cast<unsigned>(block / x % y),
                  static_cast<unsigned>(block / x / y)};
      fake_cuda::run_block(thread, config.blockDim, random);
    }
  });
  return cudaSuccess;
}

// A CUDA runtime without a device, and what tests ask of it.
//
// Kernels run on the processor as C++. Device memory is filled with NaN when it is given out;
// AddressSanitizer sees its bounds as compute-sanitizer would, and the host cannot read or write it
// but by copies. Calls that a device would refuse fail: copies in the wrong direction, what may not
// be captured, grids beyond its limits, streams of another device.
//
// A device is free to choose when queued work runs, and in which order blocks and threads do. The
// seed chooses for it:
//   0       Work runs only when the host waits for it (or another stream does) or frees memory, so
//           that a missing wait shows stale values. Blocks and threads run in ascending order.
//   others  After each call, any of the thread's streams may get on, and a graph runs in any order
//           that its branches allow, so that a write before the last read shows. Blocks, and the
//           threads between two barriers, run in random order.
//
// Each rank of a test is a thread with streams of its own; a stream is used by one thread.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

namespace fake_cuda {

/// How many devices there are; 1, or what FAKE_CUDA_DEVICES says, before the first call.
void set_devices(int count);

/// How many multiprocessors each device says it has; 132, as an H100, before the first call.
void set_multiprocessors(int count);

/// For all threads, from their next call on; 0, or what FAKE_CUDA_SEED says, before the first call.
void set_seed(unsigned seed);
unsigned seed();

/// The machine's devices that the calling thread sees, as CUDA_VISIBLE_DEVICES would say; empty:
/// all of them. Selects the first.
void set_visible(std::vector<int> devices);

/// The machine's own number of the calling thread's device: for other fakes.
int chosen_device();

/// From now on the `count`-th call from now (1: the next) of the function named so fails.
void fail(const std::string& function, cudaError_t error, int count = 1);

/// The names of the calls of all threads since the last take_log(), in order; a kernel is named
/// "kernel".
std::vector<std::string> take_log();

/// Adds a name to the log, and gives the error that was asked for it: for other fakes.
cudaError_t note(const char* function);

/// Enqueues what another fake does in a stream. Honours capture.
void enqueue(cudaStream_t stream, std::function<void()> work);

/// Enqueues what may have to wait for another rank: `work` returns false as long as it cannot end,
/// and is then called again. Whoever only asks whether a stream got on does not wait for it.
void enqueue_until(cudaStream_t stream, std::function<bool()> work);

/// Forgets the failures that were asked for and did not come.
void fail_no_more();

/// Bytes, streams, events and graphs that are not given back yet.
std::size_t live_objects();

}  // namespace fake_cuda

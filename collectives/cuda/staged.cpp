// DeviceCommunicator that stages data through host memory (device.hpp).
#include <memory_resource>
#include <string>

#include "lockstep/base/aligned.hpp"
#include "lockstep/collectives/cuda/device.hpp"

namespace lockstep::comm {
namespace {

class StagedCommunicator final : public DeviceCommunicator {
 public:
  StagedCommunicator(Communicator& host, const cuda::Stream& stream)
      : DeviceCommunicator(host),
        host_(host),
        stream_(stream),
        backend_(std::string("staged over ") + host.backend()) {}
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;

  /// Waits for copies from host memory.
  ~StagedCommunicator() override { cudaStreamSynchronize(stream_.get()); }

  const char* backend() const noexcept override { return backend_.c_str(); }
  const Place& place() const noexcept override { return host_.place(); }
  void wait(std::string_view /*what*/) override { stream_.synchronise(); }

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_grouped_all_gather(Buffers buffers) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;

  /// A buffer for `values` in host memory.
  Elements staged(Elements values, std::size_t parts = 1);
  void copy_but_own_block(const std::byte* from, std::byte* to, std::size_t bytes);
  std::size_t own_block(std::size_t bytes) const noexcept {
    return bytes / static_cast<std::size_t>(size()) * static_cast<std::size_t>(rank());
  }

  Communicator& host_;
  const cuda::Stream& stream_;
  std::string backend_;
  AlignedBuffer<std::byte> buffer_;
};

/// host.memory() if peers read it in place, because ranks on processors, which may be among them,
/// have their buffers there; else pinned memory.
std::pmr::memory_resource& staging_memory(Communicator& host) {
  const bool is_any = &host.memory() == std::pmr::new_delete_resource();
  return is_any ? cuda::pinned_memory() : host.memory();
}

// Waits for copies from the old memory before it is freed.
Elements StagedCommunicator::staged(Elements values, std::size_t parts) {
  const std::size_t bytes = values.count * width(values.type) * parts;
  if (buffer_.size() < bytes) {
    stream_.synchronise();
    buffer_ = {};
    buffer_ = AlignedBuffer<std::byte>(bytes, staging_memory(host_));
  }
  return {buffer_.data(), values.count, values.type};
}

/// Copies all blocks except this rank's; `bytes` is the total length.
void StagedCommunicator::copy_but_own_block(const std::byte* from, std::byte* to,
                                            std::size_t bytes) {
  const std::size_t mine = own_block(bytes);
  const std::size_t after = mine + bytes / static_cast<std::size_t>(size());
  cuda::copy_bytes(from, to, mine, stream_);
  cuda::copy_bytes(from + after, to + after, bytes - after, stream_);
}

void StagedCommunicator::do_all_reduce(Elements values, Op op) {
  require_device_memory("all_reduce", values.data);
  const Elements here = staged(values);
  const std::size_t bytes = values.count * width(values.type);
  cuda::copy_bytes(values.data, here.data, bytes, stream_);
  stream_.synchronise();
  with_span(here, [&](auto all) { host_.all_reduce(all, op); });
  cuda::copy_bytes(here.data, values.data, bytes, stream_);
}

void StagedCommunicator::do_broadcast(Elements values, int root) {
  require_device_memory("broadcast", values.data);
  const Elements here = staged(values);
  const std::size_t bytes = values.count * width(values.type);
  if (rank() == root) cuda::copy_bytes(values.data, here.data, bytes, stream_);
  stream_.synchronise();
  with_span(here, [&](auto all) { host_.broadcast(all, root); });
  if (rank() != root) cuda::copy_bytes(here.data, values.data, bytes, stream_);
}

void StagedCommunicator::do_all_gather(Elements values) {
  require_device_memory("all_gather", values.data);
  const Elements here = staged(values);
  const std::size_t bytes = values.count * width(values.type);
  const std::size_t mine = own_block(bytes);
  cuda::copy_bytes(values.data + mine, here.data + mine, bytes / static_cast<std::size_t>(size()),
                   stream_);
  stream_.synchronise();
  with_span(here, [&](auto all) { host_.all_gather(all); });
  copy_but_own_block(here.data, values.data, bytes);
}

void StagedCommunicator::do_grouped_all_gather(Buffers buffers) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t bytes = packed_bytes(buffers);
  const Elements here = staged({nullptr, bytes * ranks, Type::u8});
  const auto for_each_block = [&](int rank, auto copy) {
    std::byte* packed = here.data + static_cast<std::size_t>(rank) * bytes;
    for (const auto& buffer : buffers) {
      const std::size_t block = buffer.size() / ranks;
      copy(buffer.data() + static_cast<std::size_t>(rank) * block, packed, block);
      packed += block;
    }
  };
  for_each_block(rank(), [&](std::byte* device, std::byte* host, std::size_t block) {
    require_device_memory("all_gather", device);
    cuda::copy_bytes(device, host, block, stream_);
  });
  stream_.synchronise();
  with_span(here, [&](auto all) { host_.all_gather(all); });
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    for_each_block(peer, [&](std::byte* device, std::byte* host, std::size_t block) {
      cuda::copy_bytes(host, device, block, stream_);
    });
  }
}

void StagedCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  require_device_memory("all_to_all", send);
  require_device_memory("all_to_all", receive.data);
  const std::size_t bytes = receive.count * width(receive.type);
  const std::size_t mine = own_block(bytes);
  cuda::copy_bytes(send + mine, receive.data + mine, bytes / static_cast<std::size_t>(size()),
                   stream_);
  if (size() == 1) return;
  const Elements out = staged(receive, 2);
  const Elements in = {out.data + bytes, out.count, out.type};
  copy_but_own_block(send, out.data, bytes);
  stream_.synchronise();
  with_span(in, [&]<class T>(std::span<T> all) {
    host_.all_to_all(std::span<const T>(reinterpret_cast<const T*>(out.data), all.size()), all);
  });
  copy_but_own_block(in.data, receive.data, bytes);
}

void StagedCommunicator::do_shift(const std::byte* send, Elements receive) {
  require_device_memory("shift", send);
  require_device_memory("shift", receive.data);
  const std::size_t bytes = receive.count * width(receive.type);
  if (size() == 1) return cuda::copy_bytes(send, receive.data, bytes, stream_);
  const Elements out = staged(receive, 2);
  const Elements in = {out.data + bytes, out.count, out.type};
  cuda::copy_bytes(send, out.data, bytes, stream_);
  stream_.synchronise();
  with_span(in, [&]<class T>(std::span<T> all) {
    host_.shift(std::span<const T>(reinterpret_cast<const T*>(out.data), all.size()), all);
  });
  cuda::copy_bytes(in.data, receive.data, bytes, stream_);
}

}  // namespace

std::unique_ptr<DeviceCommunicator> make_staged_communicator(Communicator& host,
                                                             const cuda::Stream& stream) {
  return std::make_unique<StagedCommunicator>(host, stream);
}

}  // namespace lockstep::comm

// Communicator: collectives over a fixed group of ranks; the interface of every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"

namespace lockstep {
class FlightRecorder;
}

namespace lockstep::comm {
/// The reduction of all_reduce. Integer sums wrap around. sum propagates NaN, but min and max may
/// drop it: detect NaN with a sum or a separate flag.
enum class Op { sum, min, max };

/// Element types: unsigned integers and floating point.
enum class Type { u8, u64, f32, f64 };

/// The transport or a peer failed. The communicator is unusable afterwards. Exit code 86.
struct CommError : Error {
  explicit CommError(const std::string& problem) : Error(ExitCode::timeout, problem) {}
};

/// The process of a rank has ended, or left the group because another one has; over TCP also a rank
/// that has destroyed its communicator. Those that are left may form a new group: see
/// Communicator::living().
struct RankLost : CommError {
  using CommError::CommError;
};

/// A collective waits for a rank whose program has returned or, in shared memory, has destroyed the
/// communicator. Thrown by threads and shared memory.
struct RankLeft : CommError {
  RankLeft(const std::string& collective, int world_rank);
};

/// A type-erased span for the virtual functions. `count` is in elements.
struct Elements {
  std::byte* data;
  std::size_t count;
  Type type;
};

/// The Type of element type T.
template <class T>
struct TypeOf;
template <>
struct TypeOf<std::uint8_t> {
  static constexpr Type value = Type::u8;
};
template <>
struct TypeOf<std::uint64_t> {
  static constexpr Type value = Type::u64;
};
template <>
struct TypeOf<float> {
  static constexpr Type value = Type::f32;
};
template <>
struct TypeOf<double> {
  static constexpr Type value = Type::f64;
};

/// Types that collectives accept: std::uint8_t, std::uint64_t, float, double.
template <class T>
concept Element = requires {
  TypeOf<T>::value;
};

/// Bytes of one element.
constexpr std::size_t width(Type type) noexcept {
  switch (type) {
    case Type::u8: return 1;
    case Type::f32: return 4;
    case Type::u64:
    case Type::f64: return 8;
  }
  return 0;
}

/// Calls `call` with the span<T> that `values` describes.
template <class Call>
void with_span(Elements values, Call call) {
  const auto as = [&]<class T>(T*) {
    call(std::span<T>(reinterpret_cast<T*>(values.data), values.count));
  };
  switch (values.type) {
    case Type::u8: return as(static_cast<std::uint8_t*>(nullptr));
    case Type::u64: return as(static_cast<std::uint64_t*>(nullptr));
    case Type::f32: return as(static_cast<float*>(nullptr));
    case Type::f64: return as(static_cast<double*>(nullptr));
  }
}

/// The machine of a rank, and the rank's position on it, as reported by the transport.
struct Place {
  std::string host;     ///< host name
  int node = 0;         ///< node index; nodes are ordered by their lowest rank
  int nodes = 1;        ///< number of nodes of the group
  int local_rank = 0;   ///< index among the ranks of this node
  int local_ranks = 1;  ///< number of ranks of this node
  int cores = 0;        ///< on which ranks of this node may run; 0: not known
};

/// The cores of this rank: as many as it may run on, and at most its share of those of its node.
/// Local.
int own_cores(const Place& place);

/// The Place on `host` of rank `rank`, where nodes[r] is a number of the node of rank r. Local.
Place place_among(const std::vector<int>& nodes, int rank, const std::string& host);

/// A fixed group of ranks that run the same collectives in the same order.
///
/// All ranks call every collective with equal counts, type, op and root. A call returns once
/// `values` may be reused. all_gather and all_reduce give the same bits on every rank; broadcast
/// gives the root's. With empty spans and groups of one nothing is sent.
///
/// Threads  one thread per communicator, the one that created it.
/// Errors   throws CommError; std::invalid_argument where documented. For a rank that has finished,
///          threads and shared memory throw RankLeft, and TCP RankLost; over MPI the job then ends
///          with code 86 (run_replicas). With threads a rank has finished when its program returns:
///          one that destroys a communicator made by split() does not release the ranks that wait
///          for it there.
/// Counts   threads, shared memory and TCP report counts that differ between ranks, TCP between
///          those that exchange data. MPI does not, and corrupts memory: compare sizes that depend
///          on user input with require_equal (agreement.hpp).
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// This rank, in [0, size()); the same for as long as the object lives. Local.
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// The rank of `rank` (in [0, size())) in the original communicator, before any split(); used in
  /// messages. Local.
  int world_rank(int rank) const noexcept {
    return world_ranks_.empty() ? rank : world_ranks_[static_cast<std::size_t>(rank)];
  }

  /// The ranks of this communicator by world_rank(), in their order. Local.
  std::vector<int> world_ranks() const;

  /// "self", "threads", "mpi", "tcp", "shared", "shared+mpi" or "shared+tcp"; on devices "nccl" or
  /// "staged over ...".
  virtual const char* backend() const noexcept = 0;

  /// Allocator for buffers of collectives: peers may read them without another copy. The spans of
  /// one call must be allocated from it on all ranks or on none. Lives as long as this object.
  /// Local.
  virtual std::pmr::memory_resource& memory() noexcept { return *std::pmr::new_delete_resource(); }

  /// This rank's machine and its position among the machine's ranks. Local.
  virtual const Place& place() const noexcept = 0;

  /// The cores of this rank: those of own_cores(place()), and in a communicator made by split()
  /// those that the rank has in the one that was split: parts of one host share its cores. Local.
  int own_cores() const { return own_cores_ > 0 ? own_cores_ : comm::own_cores(place()); }

  /// Records the collectives of this communicator, and of those that split() creates from now on.
  /// `recorder` must outlive them; null: none. Local.
  void record_in(FlightRecorder* recorder) noexcept { recorder_ = recorder; }

  /// Seconds in the collectives that its recorder has recorded; 0 without one. Local.
  double recorded_seconds() const noexcept;

  /// Replaces `values` by its element-wise reduction over all ranks.
  template <Element T>
  void all_reduce(std::span<T> values, Op op = Op::sum) {
    if (size_ == 1 || values.empty()) return note_progress();
    const Recorded recorded(recorder_, "all_reduce", values.size_bytes());
    do_all_reduce(erase(values), op);
  }

  /// Overwrites `values` with those of `root`. Throws std::invalid_argument if `root` is
  /// not a rank.
  template <Element T>
  void broadcast(std::span<T> values, int root = 0) {
    require_root(root);
    if (size_ == 1 || values.empty()) return note_progress();
    const Recorded recorded(recorder_, "broadcast", values.size_bytes());
    do_broadcast(erase(values), root);
  }

  /// `values` holds size() blocks of equal length; this rank provides block rank() and receives
  /// the others. Throws std::invalid_argument if the length is not a multiple of size().
  template <Element T>
  void all_gather(std::span<T> values) {
    require_blocks("all_gather", values.size());
    if (size_ == 1 || values.empty()) return note_progress();
    const Recorded recorded(recorder_, "all_gather", values.size_bytes());
    do_all_gather(erase(values));
  }

  /// all_gather of several buffers at once: equivalent to one call per buffer, but short buffers
  /// are sent together. A buffer holds size() blocks of equal length, in bytes
  /// (std::as_writable_bytes).
  ///
  /// All ranks pass equally many buffers of equal lengths; they must not overlap; some may be
  /// empty. Fastest if all are in memory(). Throws std::invalid_argument if a length is not a
  /// multiple of size().
  void all_gather(std::span<const std::span<std::byte>> buffers);

  /// `send` and `receive` hold size() blocks of equal length and do not overlap: block j of `send`
  /// goes to rank j, block i of `receive` comes from rank i. Throws std::invalid_argument if the
  /// length is not a multiple of size(), or the two lengths differ.
  template <Element T>
  void all_to_all(std::span<const T> send, std::span<T> receive) {
    require_blocks("all_to_all", receive.size());
    require_equal_lengths("all_to_all", send.size(), receive.size());
    if (receive.empty()) return;
    const Recorded recorded(recorder_, "all_to_all", receive.size_bytes());
    do_all_to_all(reinterpret_cast<const std::byte*>(send.data()), erase(receive));
  }

  /// In a ring: `send` goes to rank() + 1, `receive` comes from rank() - 1; equal lengths, no
  /// overlap. Throws std::invalid_argument if the lengths differ.
  template <Element T>
  void shift(std::span<const T> send, std::span<T> receive) {
    require_equal_lengths("shift", send.size(), receive.size());
    if (receive.empty()) return;
    const Recorded recorded(recorder_, "shift", receive.size_bytes());
    do_shift(reinterpret_cast<const std::byte*>(send.data()), erase(receive));
  }

  /// A communicator over the ranks that pass the same `color`, in their order in this one.
  ///
  /// Both communicators may be used, in the same order on all ranks. The new one must not outlive
  /// this one. Its ranks start from 0; world_rank() gives the original ranks.
  /// Errors   throws AgreedError (2) on all ranks of a part that cannot be created.
  /// Ranks    collective.
  std::unique_ptr<Communicator> split(int color);

  /// The same for ranks that know the colors of all, [size()], so that these are not exchanged.
  /// Throws std::invalid_argument for another number of them.
  std::unique_ptr<Communicator> split(std::span<const std::uint64_t> colors);

  /// True if collectives throw RankLost soon after a rank has ended, and living() is there. Local.
  virtual bool reports_losses() const noexcept { return false; }

  /// The group of those ranks whose processes run, in their order; world_rank() gives
  /// their ranks in the first group. For use after RankLost, when nothing in memory() is used any
  /// more; this communicator is unusable afterwards. One made by split() cannot be used.
  ///
  /// All members have agreed on the group. Ranks that end in the meantime are left out; those that
  /// end later are reported by the new group's collectives.
  /// Errors   throws CommError unless reports_losses().
  /// Ranks    collective over the running ranks, each of which calls it after RankLost.
  virtual std::unique_ptr<Communicator> living();

  /// Waits until every rank has called it. Collective.
  void barrier() { all_agree(true); }

  /// True on every rank iff `ok` is true on every rank. Collective.
  bool all_agree(bool ok) {
    std::uint8_t flag = ok ? 1 : 0;
    all_reduce(std::span<std::uint8_t>(&flag, 1), Op::min);
    return flag != 0;
  }

 protected:
  /// Two or more non-empty buffers of one grouped all_gather.
  using Buffers = std::span<const std::span<std::byte>>;

  Communicator(int rank, int size) noexcept : rank_(rank), size_(size) {}

  /// Gathers short buffers as one message through `packed`, which is resized if too small, and long
  /// ones each as a message, without a copy.
  void gather_packed(Buffers buffers, std::pmr::vector<std::byte>& packed);

  /// Total bytes of one block of each of `buffers`.
  std::size_t packed_bytes(Buffers buffers) const noexcept;

  /// Copies the blocks of `rank`, one of each buffer, contiguously to `packed`; and back.
  void pack(Buffers buffers, int rank, std::byte* packed) const noexcept;
  void unpack(Buffers buffers, int rank, const std::byte* packed) const noexcept;

  /// Copies the world ranks of `other`, which has the same ranks. Local.
  void number_like(const Communicator& other) { world_ranks_ = other.world_ranks_; }

  /// The same if the ranks of this communicator are `ranks` of `other`.
  void number_like(const Communicator& other, const std::vector<int>& ranks) {
    for (const int rank : ranks) world_ranks_.push_back(other.world_rank(rank));
  }

  /// The ranks of a new communicator, for do_split().
  struct Subgroup {
    int rank = 0;            ///< this rank, within the new communicator
    std::vector<int> ranks;  ///< of this communicator, in order
    int size() const noexcept { return static_cast<int>(ranks.size()); }
  };

 private:
  /// Tells the recorder, if there is one, of a collective that needs no other rank.
  void note_progress() const noexcept;

  /// One collective in a flight recorder, if there is one.
  class Recorded {
   public:
    Recorded(FlightRecorder* recorder, const char* name, std::size_t bytes) noexcept
        : recorder_(recorder) {
      if (recorder_ != nullptr) begin(name, bytes);
    }
    ~Recorded() {
      if (recorder_ != nullptr) end();
    }
    Recorded(const Recorded&) = delete;
    Recorded& operator=(const Recorded&) = delete;

   private:
    void begin(const char* name, std::size_t bytes) noexcept;
    void end() noexcept;

    FlightRecorder* recorder_;
  };

  virtual void do_all_reduce(Elements values, Op op) = 0;
  virtual void do_broadcast(Elements values, int root) = 0;
  virtual void do_all_gather(Elements values) = 0;
  virtual void do_grouped_all_gather(Buffers buffers) { gather_packed(buffers, packed_); }
  virtual void do_all_to_all(const std::byte* send, Elements receive) = 0;
  virtual void do_shift(const std::byte* send, Elements receive) = 0;

  /// Called by all ranks unless each is a part of its own; the result is ignored for a part of one
  /// rank. Throws CommError unless overridden.
  virtual std::unique_ptr<Communicator> do_split(const Subgroup& part);

  void require_root(int root) const;
  void require_blocks(const char* collective, std::size_t count) const;
  static void require_equal_lengths(const char* collective, std::size_t send, std::size_t receive);

  template <Element T>
  static Elements erase(std::span<T> values) noexcept {
    return {reinterpret_cast<std::byte*>(values.data()), values.size(), TypeOf<T>::value};
  }

  int rank_;
  int size_;
  std::vector<int> world_ranks_;  // empty: as the ranks of this one
  int own_cores_ = 0;             // of a part; 0: by its place
  FlightRecorder* recorder_ = nullptr;
  std::pmr::vector<std::byte> packed_;  // of do_grouped_all_gather()
};

/// A communicator of one rank, for processes started without a launcher. Does not use MPI.
///
/// Any number of instances may exist, in any thread.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator();

  const char* backend() const noexcept override { return "self"; }
  const Place& place() const noexcept override { return place_; }

 private:
  void do_all_reduce(Elements values, Op op) override;
  void do_broadcast(Elements values, int root) override;
  void do_all_gather(Elements values) override;
  void do_all_to_all(const std::byte* send, Elements receive) override;
  void do_shift(const std::byte* send, Elements receive) override;

  Place place_;
};

}  // namespace lockstep::comm

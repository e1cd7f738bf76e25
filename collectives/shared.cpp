#include "lockstep/collectives/shared.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/spin.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"

namespace lockstep::comm {
namespace {

/// Bytes of a page of memory: of ARM up to 64 KiB.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

[[noreturn]] void fail_shared(const std::string& what) {
  throw ConfigError("shared memory: " + what + ": " + system_reason(errno), "use `backend=mpi`");
}

/// Throws ConfigError if a region is longer than RLIMIT_FSIZE permits: ftruncate(), also of a
/// memfd, would then end the process with SIGXFSZ.
void require_file_size_limit(std::size_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return;
  throw ConfigError("shared memory: a region of " + bytes_text(static_cast<double>(bytes)) +
                        " is longer than files may be (`ulimit -f`): " +
                        bytes_text(static_cast<double>(limit.rlim_cur)),
                    "raise this limit, or use `backend=mpi`");
}

/// Inode and size of an open file, which identify a peer's region.
std::pair<std::uint64_t, std::uint64_t> identity_and_size(const Descriptor& file) {
  struct stat status = {};
  if (::fstat(file.number(), &status) != 0) fail_shared("fstat");
  return {status.st_ino, static_cast<std::uint64_t>(status.st_size)};
}

}  // namespace

SharedRegion::SharedRegion(Descriptor file, std::size_t bytes)
    : file_(std::move(file)), size_(bytes) {
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (data == MAP_FAILED) fail_shared("mmap of " + std::to_string(bytes) + " bytes of addresses");
  data_ = static_cast<std::byte*>(data);
}

SharedRegion SharedRegion::create(std::size_t bytes) {
  Descriptor file(::memfd_create("lockstep", MFD_CLOEXEC));
  if (!file.is_open()) fail_shared("memfd_create");
  const std::size_t size = round_up(bytes, page_bytes());
  require_file_size_limit(size);
  if (::ftruncate(file.number(), static_cast<off_t>(size)) != 0) {
    fail_shared("ftruncate to " + std::to_string(size) + " bytes");
  }
  return {std::move(file), size};
}

SharedRegion SharedRegion::open(const std::string& address) {
  std::istringstream words(address);
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::string path;
  words >> inode >> size >> path;
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) fail_shared(path + ", a peer's region, cannot be opened");
  if (identity_and_size(file) != std::pair(inode, size)) {
    throw ConfigError("shared memory: " + path +
                          " is another file here than for the peer that named it (ranks in "
                          "different containers?)",
                      "use `backend=mpi`");
  }
  return {std::move(file), size};
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::string SharedRegion::address() const {
  const auto [inode, size] = identity_and_size(file_);
  return std::to_string(inode) + ' ' + std::to_string(size) + " /proc/" +
         std::to_string(::getpid()) + "/fd/" + std::to_string(file_.number());
}

SharedRegion share_on_host(Communicator& comm, std::size_t bytes) {
  std::optional<SharedRegion> region;
  std::string mine;
  together(comm, [&] {
    if (comm.place().local_rank != 0) return;
    region.emplace(SharedRegion::create(bytes));
    mine = region->address();
  });
  const auto nodes = gather_number(comm, static_cast<std::uint64_t>(comm.place().node));
  const auto all = gather_text(comm, mine);
  together(comm, [&] {
    if (region) return;
    const auto creator =
        std::find(nodes.begin(), nodes.end(), nodes[static_cast<std::size_t>(comm.rank())]);
    region.emplace(SharedRegion::open(all[static_cast<std::size_t>(creator - nodes.begin())]));
  });
  region->close();
  return std::move(*region);
}

void* RegionMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t used = blocks_.empty() ? first_ : blocks_.rbegin()->second;
  const std::size_t begin = round_up(used, alignment);
  if (bytes > region_.size() - std::min(begin, region_.size())) throw std::bad_alloc();
  blocks_.emplace_hint(blocks_.end(), begin, begin + std::max<std::size_t>(bytes, 1));
  return region_.data() + begin;
}

void RegionMemory::do_deallocate(void* data, std::size_t bytes, std::size_t) {
  if (region_.data() == nullptr) return;  // moved: the addresses are another memory's
  const auto first = static_cast<std::size_t>(static_cast<std::byte*>(data) - region_.data());
  blocks_.erase(first);
  const std::size_t begin = round_up(first, page_bytes());
  const std::size_t end = (first + bytes) / page_bytes() * page_bytes();
  if (begin < end) ::madvise(region_.data() + begin, end - begin, MADV_REMOVE);
}

namespace {

constexpr std::size_t window_bytes = std::size_t{1} << 20;

constexpr long wait_nanoseconds = 5'000'000;  // then look for ended processes

// Several processes wait on the word, so FUTEX_PRIVATE_FLAG (used by std::atomic) is not set.
// Returns false after wait_nanoseconds.
bool sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  const timespec longest = {.tv_sec = 0, .tv_nsec = wait_nanoseconds};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &longest, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

/// The header of every rank's region. One Barrier for each group size follows it: each group after
/// a loss is smaller than all before, so the counters of its Barrier are unused.
struct SharedCommunicator::Header {
  alignas(64) std::int32_t process;
  std::atomic<std::uint64_t> group;  // hash of the ranks that the owner finds running: see living()
  std::atomic<std::int32_t> left;    // size of the group that the owner has left last; 0: none
  std::atomic<bool> finished;        // the owner has destroyed its communicator
  std::array<Slot, 2> slots;
};

struct SharedCommunicator::Barrier {
  alignas(64) std::atomic<std::uint32_t> arrived;  // barriers that the owner has reached
  std::atomic<std::uint32_t> sleepers;             // peers that sleep on `arrived`
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

/// Numbers collectives of each group over the same regions differently: slots still have those of
/// the groups before.
std::uint64_t first_round(int group_size) {
  return static_cast<std::uint64_t>(group_size) << 48;  // see group_size_
}

}  // namespace

SharedCommunicator::SharedCommunicator(Communicator& wire, const Place& place)
    : DirectCommunicator(place.local_rank, place.local_ranks, first_round(wire.size())),
      place_(place),
      group_size_(wire.size()),
      first_group_size_(wire.size()) {
  // Reserves addresses for this rank's share of the machine's memory; pages are allocated on use.
  std::unique_ptr<SharedRegion> mine;
  together(wire, [&] {
    mine = std::make_unique<SharedRegion>(SharedRegion::create(
        memory_limit_bytes() / static_cast<std::uint64_t>(place.local_ranks) + window_bytes));
    reinterpret_cast<Header*>(mine->data())->process = ::getpid();
  });
  const auto here = static_cast<std::uint64_t>(place.node);
  const auto nodes = gather_number(wire, here);
  const auto addresses = gather_text(wire, mine->address());
  std::vector<int> here_of_wire;
  together(wire, [&] {
    for (int rank = 0; rank < wire.size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (nodes[at] != here) continue;
      here_of_wire.push_back(rank);
      regions_.push_back(rank == wire.rank() ? std::move(*mine)
                                             : SharedRegion::open(addresses[at]));
    }
  });
  for (SharedRegion& region : regions_) region.close();
  number_like(wire, here_of_wire);
  start();
}

SharedCommunicator::SharedCommunicator(SharedCommunicator& old, const std::vector<int>& ranks,
                                       int group_size)
    : DirectCommunicator(
          static_cast<int>(std::find(ranks.begin(), ranks.end(), old.rank()) - ranks.begin()),
          static_cast<int>(ranks.size()), first_round(group_size)),
      place_(old.place_),
      group_size_(group_size),
      first_group_size_(old.first_group_size_) {
  place_.local_rank = rank();
  place_.local_ranks = size();
  old.packed_.reset();  // it is in a region
  for (const int rank : ranks) {
    regions_.push_back(std::move(old.regions_[static_cast<std::size_t>(rank)]));
  }
  number_like(old, ranks);
  start();
}

SharedCommunicator::SharedCommunicator(SharedCommunicator& old, const Communicator& group)
    : SharedCommunicator(old, old.ranks_in(group), group.size()) {
  place_.node = group.place().node;
  place_.nodes = group.place().nodes;
}

/// The rest of every constructor, after the regions are mapped.
void SharedCommunicator::start() {
  std::vector<std::int32_t> processes;
  processes.reserve(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    processes.push_back(header(rank).process);
    processes_.add(processes.back());
  }
  memory_ = std::make_unique<RegionMemory>(
      regions_[static_cast<std::size_t>(this->rank())],
      sizeof(Header) + static_cast<std::size_t>(first_group_size_ + 1) * sizeof(Barrier));
  window_ = static_cast<std::byte*>(memory_->allocate(window_bytes, alignment_bytes));
  packed_.emplace(memory_.get());
  place_.cores = cores_of(processes);
  spins_ = size() <= place_.cores;
  exceptions_ = std::uncaught_exceptions();
}

SharedCommunicator::~SharedCommunicator() {
  const bool moved = regions_[static_cast<std::size_t>(rank())].data() == nullptr;
  const bool unwinding = std::uncaught_exceptions() > exceptions_;  // the error ends the job
  if (!moved && !unwinding) header(rank()).finished.store(true);
}

SharedCommunicator::Header& SharedCommunicator::header(int rank) const noexcept {
  return *reinterpret_cast<Header*>(regions_[static_cast<std::size_t>(rank)].data());
}

SharedCommunicator::Barrier& SharedCommunicator::barrier_of(int rank) const noexcept {
  return reinterpret_cast<Barrier*>(&header(rank) + 1)[group_size_];
}

/// The ranks whose processes run.
std::vector<int> SharedCommunicator::running() {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (!processes_.has_ended(static_cast<std::size_t>(rank))) ranks.push_back(rank);
  }
  return ranks;
}

// Every rank publishes the group of ranks that it finds running, and waits until all members of
// this group have published the same one. Processes do not return, so the groups shrink until they
// are equal. One rank may return while another has found a later loss and waits for a smaller
// group: collectives of the new group then throw RankLost on the first one, which calls living()
// again.
std::unique_ptr<Communicator> SharedCommunicator::living() {
  for (;;) {
    const std::vector<int> group = running();
    std::vector<int> numbers;
    numbers.reserve(group.size());
    for (const int rank : group) numbers.push_back(world_rank(rank));
    const std::uint64_t hash = hash_of(std::as_bytes(std::span(numbers)));
    header(rank()).group.store(hash);
    const bool agreed = std::all_of(group.begin(), group.end(),
                                    [&](int rank) { return header(rank).group.load() == hash; });
    if (agreed) {
      const auto size = static_cast<int>(group.size());
      return std::unique_ptr<Communicator>(new SharedCommunicator(*this, group, size));
    }
    const timespec pause = {.tv_sec = 0, .tv_nsec = 100'000};
    ::nanosleep(&pause, nullptr);
  }
}

void SharedCommunicator::leave() { header(rank()).left.store(group_size_); }

/// The lowest rank for whose header `holds` is true.
template <class Predicate>
std::optional<int> SharedCommunicator::first_rank(Predicate holds) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (holds(header(rank))) return rank;
  }
  return std::nullopt;
}

/// The ranks of this communicator that are in `group`.
std::vector<int> SharedCommunicator::ranks_in(const Communicator& group) const {
  const auto members = group.world_ranks();
  const std::set<int> others(members.begin(), members.end());
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (others.count(world_rank(rank)) != 0) ranks.push_back(rank);
  }
  return ranks;
}

DirectCommunicator::Slot& SharedCommunicator::slot(int rank, unsigned turn) noexcept {
  return header(rank).slots[turn];
}

/// Publishes that this rank has reached its next barrier.
void SharedCommunicator::arrive() {
  Barrier& mine = barrier_of(rank());
  mine.arrived.store(++barriers_);
  if (mine.sleepers.load() != 0) wake_all(mine.arrived);
}

void SharedCommunicator::barrier(const char* collective) {
  arrive();
  for (int step = 1; step < size(); ++step) wait_for((rank() + step) % size(), 0, collective);
}

void SharedCommunicator::wait_for_slots(std::uint64_t round, const char* collective) {
  if (!spins_) return barrier(collective);
  arrive();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    SpinWait wait;
    while (!has_published(peer, round) && wait.spin()) {
    }
    if (!has_published(peer, round)) wait_for(peer, round, collective);
  }
}

/// True if the peer's slot is that of collective `round`. Its lines may not be yet.
bool SharedCommunicator::has_published(int peer, std::uint64_t round) const noexcept {
  const Slot& theirs = header(peer).slots[round % 2];
  return theirs.written.load(std::memory_order_acquire) == round;
}

/// Waits until the peer has reached the barrier that this rank reached last. `round`: of
/// wait_for_slots(); of barrier() 0.
void SharedCommunicator::wait_for(int peer, std::uint64_t round, const char* collective) {
  Barrier& theirs = barrier_of(peer);
  const auto is_here = [&](std::uint32_t arrived) {  // the peer may be one ahead
    return static_cast<std::int32_t>(arrived - barriers_) >= 0;
  };
  for (SpinWait wait;;) {
    const std::uint32_t arrived = theirs.arrived.load(std::memory_order_acquire);
    if (is_here(arrived)) return;
    if (spins_ && wait.spin()) continue;
    ++theirs.sleepers;
    const bool woken = sleep_while(theirs.arrived, arrived);
    --theirs.sleepers;
    if (woken) continue;
    const auto ended = processes_.first_ended();
    const auto left = first_rank([&](const Header& of) { return of.left.load() == group_size_; });
    const auto finished = first_rank([](const Header& of) { return of.finished.load(); });
    if (!(ended || left || finished)) continue;
    // Ranks that have gone on may end normally. Past a barrier the peer has arrived; past
    // wait_for_slots() it has published its slot, and will arrive unless it ends.
    if (round != 0 && has_published(peer, round) &&
        !processes_.has_ended(static_cast<std::size_t>(peer))) {
      continue;
    }
    if (is_here(theirs.arrived.load(std::memory_order_acquire))) continue;
    if (finished) throw RankLeft(collective, world_rank(*finished));
    const int lost = ended ? static_cast<int>(*ended) : *left;
    throw RankLost(std::string(collective) + ": rank " + std::to_string(world_rank(lost)) +
                   " (process " + std::to_string(header(lost).process) + ") has " +
                   (ended ? "ended" : "left the group"));
  }
}

std::uintptr_t SharedCommunicator::to_address(const std::byte* data) const noexcept {
  return static_cast<std::uintptr_t>(data - regions_[static_cast<std::size_t>(rank())].data());
}

const std::byte* SharedCommunicator::from_address(int peer, std::uintptr_t address) const noexcept {
  return regions_[static_cast<std::size_t>(peer)].data() + address;
}

bool SharedCommunicator::readable(const std::byte* data) const noexcept {
  const SharedRegion& mine = regions_[static_cast<std::size_t>(rank())];
  return !std::less<>()(data, mine.data()) && std::less<>()(data, mine.data() + mine.size());
}

namespace {

/// Calls move(offset in bytes, count) for pieces of `block` elements. The window holds one piece
/// per rank. `left`: elements of the call from the piece on.
template <class Move>
void for_each_piece(std::size_t block, std::size_t ranks, std::size_t bytes, std::uint64_t& left,
                    Move move) {
  const std::size_t max = window_bytes / bytes / ranks;
  for (std::size_t first = 0; first < block; first += max) {
    left = (block - first) * ranks;
    move(first * bytes, std::min(max, block - first));
  }
  left = 0;
}

}  // namespace

// Values outside memory() are copied through the window; all ranks make the same choice.
void SharedCommunicator::do_all_reduce(Elements values, Op op) {
  const std::size_t bytes = width(values.type);
  if (values.count * bytes <= small_reduced_bytes() || readable(values.data)) {
    return DirectCommunicator::do_all_reduce(values, op);
  }
  for_each_piece(values.count, 1, bytes, left_, [&](std::size_t offset, std::size_t count) {
    std::memcpy(window_, values.data + offset, count * bytes);
    DirectCommunicator::do_all_reduce({window_, count, values.type}, op);
    std::memcpy(values.data + offset, window_, count * bytes);
  });
}

void SharedCommunicator::do_broadcast(Elements values, int root) {
  const std::size_t bytes = width(values.type);
  if (values.count * bytes <= small_bytes || readable(values.data)) {
    return DirectCommunicator::do_broadcast(values, root);
  }
  for_each_piece(values.count, 1, bytes, left_, [&](std::size_t offset, std::size_t count) {
    if (rank() == root) std::memcpy(window_, values.data + offset, count * bytes);
    DirectCommunicator::do_broadcast({window_, count, values.type}, root);
    if (rank() != root) std::memcpy(values.data + offset, window_, count * bytes);
  });
}

void SharedCommunicator::do_shift(const std::byte* send, Elements receive) {
  const std::size_t bytes = width(receive.type);
  if (receive.count * bytes <= small_bytes || readable(send)) {
    return DirectCommunicator::do_shift(send, receive);
  }
  for_each_piece(receive.count, 1, bytes, left_, [&](std::size_t offset, std::size_t count) {
    std::memcpy(window_, send + offset, count * bytes);
    DirectCommunicator::do_shift(window_, {receive.data + offset, count, receive.type});
  });
}

void SharedCommunicator::do_all_gather(Elements values) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t bytes = width(values.type);
  const std::size_t block = values.count / ranks;
  if (block * bytes <= small_bytes || readable(values.data)) {
    return DirectCommunicator::do_all_gather(values);
  }
  for_each_piece(block, ranks, bytes, left_, [&](std::size_t offset, std::size_t count) {
    const auto copy = [&](std::size_t r, bool out) {
      std::byte* const theirs = values.data + r * block * bytes + offset;
      std::byte* const piece = window_ + r * count * bytes;
      std::memcpy(out ? piece : theirs, out ? theirs : piece, count * bytes);
    };
    copy(static_cast<std::size_t>(rank()), true);
    DirectCommunicator::do_all_gather({window_, ranks * count, values.type});
    for (std::size_t r = 0; r < ranks; ++r) copy(r, false);
  });
}

void SharedCommunicator::do_grouped_all_gather(Buffers buffers) {
  const bool direct = std::all_of(buffers.begin(), buffers.end(),
                                  [&](auto buffer) { return readable(buffer.data()); });
  if (direct || packed_bytes(buffers) <= small_bytes) {
    return DirectCommunicator::do_grouped_all_gather(buffers);
  }
  gather_packed(buffers, *packed_);
}

void SharedCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t bytes = width(receive.type);
  const std::size_t block = receive.count / ranks;
  if (receive.count * bytes <= small_bytes || readable(send)) {
    return DirectCommunicator::do_all_to_all(send, receive);
  }
  std::vector<std::byte> arrived(window_bytes);
  for_each_piece(block, ranks, bytes, left_, [&](std::size_t offset, std::size_t count) {
    const auto at = [&](std::size_t r) { return r * block * bytes + offset; };
    const std::size_t piece = count * bytes;
    for (std::size_t r = 0; r < ranks; ++r) std::memcpy(window_ + r * piece, send + at(r), piece);
    DirectCommunicator::do_all_to_all(window_, {arrived.data(), ranks * count, receive.type});
    for (std::size_t r = 0; r < ranks; ++r) {
      std::memcpy(receive.data + at(r), arrived.data() + r * piece, piece);
    }
  });
}

// Each part maps its own regions, like a separate node.
std::unique_ptr<Communicator> SharedCommunicator::do_split(const Subgroup& part) {
  Place place = {.host = place_.host,
                 .node = part.ranks.front(),
                 .local_rank = part.rank,
                 .local_ranks = part.size()};
  auto made = std::make_unique<SharedCommunicator>(*this, place);
  made->place_.node = 0;
  made->wait_like(*this);
  return made;
}

}  // namespace lockstep::comm

#include "lockstep/collectives/mpi.hpp"

#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/signals.hpp"
#include "lockstep/collectives/launcher.hpp"
#include "lockstep/collectives/peer_watch.hpp"

namespace lockstep::comm {
namespace {

/// Throws CommError with `call` and MPI's error text unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw CommError(std::string(call) + ": " +
                  std::string(text.data(), static_cast<std::size_t>(length)));
}

int query(MPI_Comm comm, int (*get)(MPI_Comm, int*), const char* call) {
  int value = 0;
  check_mpi(get(comm, &value), call);
  return value;
}

MPI_Datatype datatype(Type type) {
  switch (type) {
    case Type::u8: return MPI_UINT8_T;
    case Type::u64: return MPI_UINT64_T;
    case Type::f32: return MPI_FLOAT;
    case Type::f64: return MPI_DOUBLE;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op operation(Op op) {
  switch (op) {
    case Op::sum: return MPI_SUM;
    case Op::min: return MPI_MIN;
    case Op::max: return MPI_MAX;
  }
  return MPI_OP_NULL;
}

template <class Call>
void for_each_slice(Elements all, std::size_t limit, Call call) {
  for (std::size_t first = 0; first < all.count; first += limit) {
    const std::size_t count = std::min(limit, all.count - first);
    call(all.data + first * width(all.type), static_cast<int>(count));
  }
}

/// Waits until `request` is complete, or for `seconds`; true: it is complete.
bool completes(MPI_Request& request, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (int done = 0;;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0 || std::chrono::steady_clock::now() > end) return done != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string processor_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return {name.data(), static_cast<std::size_t>(length)};
}

}  // namespace

/// Owns an MPI_Comm with the error handler MPI_ERRORS_RETURN.
struct MpiCommunicator::State {
  MPI_Comm comm = MPI_COMM_NULL;
  std::shared_ptr<CollectiveCounts> counts = {};
  CollectiveCount* count = nullptr;  ///< of this communicator, in `counts`

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ~State() {
    int finalized = 0;
    if (comm == MPI_COMM_NULL || MPI_Finalized(&finalized) != MPI_SUCCESS) return;
    if (finalized == 0) MPI_Comm_free(&comm);
  }

  static std::unique_ptr<State> world() {
    auto state = std::make_unique<State>();
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &state->comm), "MPI_Comm_dup");
    state->counts = std::make_shared<CollectiveCounts>();
    state->count = &state->counts->add(0);
    return state;
  }

  void return_errors() {
    check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  /// Collective. The lowest rank of a node identifies the node.
  Place find_place(int rank, int size) const {
    State node;
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node.comm),
              "MPI_Comm_split_type");
    node.return_errors();
    int lowest = rank;
    check_mpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, node.comm), "MPI_Bcast");
    std::vector<int> nodes(static_cast<std::size_t>(size));
    check_mpi(MPI_Allgather(&lowest, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm), "MPI_Allgather");
    Place place = place_among(nodes, rank, processor_name());
    // Not cores_of(): the numbers of processes differ between containers.
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof cores, MPI_BYTE, MPI_BOR, node.comm),
              "MPI_Allreduce");
    place.cores = CPU_COUNT(&cores);
    return place;
  }
};

/// Counts a collective, and marks this rank as inside it until the destructor.
class MpiCommunicator::InCollective {
 public:
  InCollective(const State& state, const char* name) : counts_(*state.counts) {
    counts_.begin(*state.count, name);
  }
  ~InCollective() { counts_.end(); }
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  CollectiveCounts& counts_;
};

MpiCommunicator::MpiCommunicator(std::size_t elements_per_call)
    : MpiCommunicator(State::world(), std::clamp(elements_per_call, std::size_t{1}, longest_call)) {
}

MpiCommunicator::MpiCommunicator(std::unique_ptr<State> state, std::size_t elements_per_call)
    : Communicator(query(state->comm, MPI_Comm_rank, "MPI_Comm_rank"),
                   query(state->comm, MPI_Comm_size, "MPI_Comm_size")),
      state_(std::move(state)),
      elements_per_call_(elements_per_call) {
  state_->return_errors();
  place_ = state_->find_place(rank(), size());
}

// The lowest rank of a part is its color. The part's id is a function of the parent's, of the
// number of this call, and of the lowest rank: the same on all its ranks, and on no other part.
std::unique_ptr<Communicator> MpiCommunicator::do_split(const Subgroup& part) {
  const InCollective here(*state_, "split");
  auto state = std::make_unique<State>();
  check_mpi(MPI_Comm_split(state_->comm, part.ranks.front(), part.rank, &state->comm),
            "MPI_Comm_split");
  Hash id;
  id.add(state_->count->id());
  id.add(state_->count->calls());
  id.add(static_cast<std::uint64_t>(part.ranks.front()));
  state->counts = state_->counts;
  state->count = &state->counts->add(id.value());
  return std::unique_ptr<Communicator>(new MpiCommunicator(std::move(state), elements_per_call_));
}

MpiCommunicator::~MpiCommunicator() = default;

void MpiCommunicator::watch_peers(const std::function<void(const RankLeft&)>& on_left) {
  if (size() == 1) return;
  watch_ = std::make_unique<PeerWatch>(*this, state_->counts, on_left);
}

void MpiCommunicator::finish() {
  MPI_Request all = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(state_->comm, &all), "MPI_Ibarrier");
  while (!completes(all, 1)) {
    if (watch_) watch_->tell();
  }
  watch_.reset();
}

void MpiCommunicator::do_all_reduce(Elements values, Op op) {
  const InCollective here(*state_, "all_reduce");
  for_each_slice(values, elements_per_call_, [&](void* data, int count) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, data, count, datatype(values.type), operation(op),
                            state_->comm),
              "MPI_Allreduce");
  });
}

void MpiCommunicator::broadcast_slices(Elements values, int root) {
  for_each_slice(values, elements_per_call_, [&](void* data, int count) {
    check_mpi(MPI_Bcast(data, count, datatype(values.type), root, state_->comm), "MPI_Bcast");
  });
}

void MpiCommunicator::do_broadcast(Elements values, int root) {
  const InCollective here(*state_, "broadcast");
  broadcast_slices(values, root);
}

// A slice of every block is not contiguous, so owners broadcast long blocks. The limit applies to
// the total count, because MPI libraries also compute totals in int.
void MpiCommunicator::do_all_gather(Elements values) {
  const InCollective here(*state_, "all_gather");
  const std::size_t block = values.count / static_cast<std::size_t>(size());
  if (values.count > elements_per_call_) {
    for (int owner = 0; owner < size(); ++owner) {
      const std::size_t offset = static_cast<std::size_t>(owner) * block * width(values.type);
      broadcast_slices({values.data + offset, block, values.type}, owner);
    }
    return;
  }
  check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data, static_cast<int>(block),
                          datatype(values.type), state_->comm),
            "MPI_Allgather");
}

/// Sends to rank `to` as much as it receives from rank `from`, in slices.
void MpiCommunicator::exchange(const std::byte* send, int to, Elements receive, int from) {
  const MPI_Datatype type = datatype(receive.type);
  for_each_slice(receive, elements_per_call_, [&](std::byte* data, int count) {
    check_mpi(MPI_Sendrecv(send + (data - receive.data), count, type, to, 0, data, count, type,
                           from, 0, state_->comm, MPI_STATUS_IGNORE),
              "MPI_Sendrecv");
  });
}

// A slice of every block is not contiguous, so ranks exchange long blocks in pairs. The limit
// applies to the total count, as in do_all_gather().
void MpiCommunicator::do_all_to_all(const std::byte* send, Elements receive) {
  const InCollective here(*state_, "all_to_all");
  const std::size_t block = receive.count / static_cast<std::size_t>(size());
  if (receive.count <= elements_per_call_) {
    const MPI_Datatype type = datatype(receive.type);
    const int each = static_cast<int>(block);
    check_mpi(MPI_Alltoall(send, each, type, receive.data, each, type, state_->comm),
              "MPI_Alltoall");
    return;
  }
  const std::size_t bytes = block * width(receive.type);
  const auto at = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  std::memcpy(receive.data + at(rank()), send + at(rank()), bytes);
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const int from = (rank() + size() - step) % size();
    exchange(send + at(to), to, {receive.data + at(from), block, receive.type}, from);
  }
}

void MpiCommunicator::do_shift(const std::byte* send, Elements receive) {
  const InCollective here(*state_, "shift");
  exchange(send, (rank() + 1) % size(), receive, (rank() + size() - 1) % size());
}

namespace {

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

void set_default(const char* variable, const char* value) { ::setenv(variable, value, 0); }

// InfiniBand, RoCE, Omni-Path and EFA are listed in /sys/class/infiniband, Slingshot in cxi, Aries
// in gni. Assumes a fabric if there is no /sys.
bool may_have_fabric() {
  std::error_code ignored;
  const auto exists = [&](const char* path) { return std::filesystem::exists(path, ignored); };
  return !exists("/sys/class/net") || exists("/sys/class/infiniband") || exists("/sys/class/cxi") ||
         exists("/sys/class/gni");
}

bool user_chose_transport() {
  if (is_set("OMPI_MCA_pml") || is_set("OMPI_MCA_mtl")) return true;
  const char* home = std::getenv("HOME");
  std::error_code ignored;
  return home != nullptr &&
         std::filesystem::exists(std::string(home) + "/.openmpi/mca-params.conf", ignored);
}

void set_defaults() {
  // Open MPI's own handlers deadlock if the heap is corrupted: the job would hang.
  set_default("OMPI_MCA_opal_signal", "");
  // Measured with Open MPI 4.1.4 and 2 ranks on one machine: MPI_Init takes 220 ms, 200 of them in
  // the search of pml/cm for Omni-Path and libfabric devices; with pml/ob1 set it takes 17 ms
  // (8 ranks on 2 cores: 470 and 150 ms). Without such a device the search selects ob1 too; ob1
  // keeps all its transports: self, vader within a host, tcp between hosts. Under srun, with two
  // ranks on one host and one on another, 5 of 300 starts then failed in MPI_Init (a null callback
  // of btl/tcp, or a segment that is not there yet), and none of 400 with the search.
  const bool is_under_mpirun = is_set("OMPI_COMM_WORLD_SIZE");
  if (is_under_mpirun && !may_have_fabric() && !user_chose_transport()) {
    set_default("OMPI_MCA_pml", "ob1");
  }
}

bool mpi_is_running() noexcept {
  int initialized = 0;
  int finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && MPI_Finalized(&finalized) == MPI_SUCCESS &&
         initialized != 0 && finalized == 0;
}

}  // namespace

MpiSession::MpiSession() : exceptions_(std::uncaught_exceptions()) {
  int initialized = 0;  // stays true after MPI_Finalize
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) {
    throw ConfigError("MPI was started already, and a process can start it only once",
                      "let run_replicas() start it: call it once, and not after MPI_Init()");
  }
  set_defaults();
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    MPI_Finalize();
    throw CommError("MPI_Init_thread: this MPI library does not support MPI_THREAD_FUNNELED");
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_ || !mpi_is_running()) return;
  MPI_Finalize();
}

bool launcher_recovers() {
  const char* const value = std::getenv("OMPI_MCA_orte_enable_recovery");
  return value != nullptr && is_on(value);
}

namespace {

/// mpirun 4.1.4 kills its ranks 1 s after SIGTERM and ends; rarely, it hangs instead.
constexpr auto launcher_patience = std::chrono::seconds(30);

/// Kills all tasks of this Slurm step, this process included.
void kill_step() {
  const auto text = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::string program = "scancel";
  std::string signal = "--signal=KILL";
  std::string step = text("SLURM_JOB_ID") + '.' + text("SLURM_STEP_ID");
  const std::array<char*, 4> words = {program.data(), signal.data(), step.data(), nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, words[0], nullptr, nullptr, words.data(), environ) == 0) {
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace

bool end_launcher() noexcept {
  return is_mpirun(program_of(::getppid())) && end_process(::getppid(), launcher_patience);
}

bool is_child_of_daemon() { return program_of(::getppid()) == "orted"; }

void finalize_mpi() noexcept {
  if (mpi_is_running()) MPI_Finalize();
}

void abort_job(int code) noexcept {
  remove_temporaries();
  const pid_t parent = ::getppid();
  const std::string program = program_of(parent);  // orted: mpirun's on hosts other than its own
  if (launcher_recovers() && (is_mpirun(program) || program == "orted")) {
    end_process(parent, launcher_patience);
    std::_Exit(code);
  }
  if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, code);
  if (srun_recovers()) kill_step();
  std::_Exit(code);
}

// Uses MPI_COMM_WORLD itself, on which no other messages are sent.
bool all_ranks_leave(double seconds) {
  MPI_Request all = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &all), "MPI_Ibarrier");
  return completes(all, seconds);
}

const char* name_of(MpiCall call) noexcept {
  switch (call) {
    case MpiCall::all_reduce: return "MPI_Allreduce";
    case MpiCall::all_gather: return "MPI_Allgather";
    case MpiCall::broadcast: return "MPI_Bcast";
    case MpiCall::all_to_all: return "MPI_Alltoall";
    case MpiCall::shift: return "MPI_Sendrecv";
  }
  return "";
}

void call_mpi(MpiCall call, std::span<const float> send, std::span<float> receive, Op op) {
  if (receive.size() > MpiCommunicator::longest_call) {
    throw std::invalid_argument("call_mpi: more elements than a call of MPI takes");
  }
  MPI_Comm world = MPI_COMM_WORLD;
  const int ranks = query(world, MPI_Comm_size, "MPI_Comm_size");
  const int all = static_cast<int>(receive.size());
  const int block = all / ranks;
  const void* const from = send.empty() ? MPI_IN_PLACE : send.data();
  const auto check = [&](int code) { check_mpi(code, name_of(call)); };
  switch (call) {
    case MpiCall::all_reduce:
      return check(MPI_Allreduce(from, receive.data(), all, MPI_FLOAT, operation(op), world));
    case MpiCall::all_gather:
      return check(MPI_Allgather(from, block, MPI_FLOAT, receive.data(), block, MPI_FLOAT, world));
    case MpiCall::broadcast: return check(MPI_Bcast(receive.data(), all, MPI_FLOAT, 0, world));
    case MpiCall::all_to_all:
      return check(MPI_Alltoall(from, block, MPI_FLOAT, receive.data(), block, MPI_FLOAT, world));
    case MpiCall::shift: break;
  }
  const int rank = query(world, MPI_Comm_rank, "MPI_Comm_rank");
  const int next = (rank + 1) % ranks;
  const int previous = (rank + ranks - 1) % ranks;
  check(send.empty() ? MPI_Sendrecv_replace(receive.data(), all, MPI_FLOAT, next, 0, previous, 0,
                                            world, MPI_STATUS_IGNORE)
                     : MPI_Sendrecv(send.data(), all, MPI_FLOAT, next, 0, receive.data(), all,
                                    MPI_FLOAT, previous, 0, world, MPI_STATUS_IGNORE));
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));  // Open MPI appends package, ident and date
}

}  // namespace lockstep::comm

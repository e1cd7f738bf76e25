#include "collectives/mpi_session.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "collectives/communicator.hpp"
#include "collectives/mpi_check.hpp"

namespace lockstep::comm {
namespace {

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

void set_default(const char* variable, const char* value) { ::setenv(variable, value, 0); }

// InfiniBand, RoCE, Omni-Path and EFA show themselves in the first folder, Slingshot in the
// second, Aries in the third. Without /sys nothing can be told.
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
  // Open MPI's own handlers deadlock when the heap is damaged: the job would hang for ever.
  set_default("OMPI_MCA_opal_signal", "");
  // Measured with Open MPI 4.1.4 and 2 ranks on one machine: MPI_Init takes 220 ms, 200 of them in
  // the search of pml/cm for Omni-Path and libfabric devices; with pml/ob1 named it takes 17 ms
  // (8 ranks on 2 cores: 470 and 150 ms). ob1 is what the search ends with where there is no such
  // device, and it keeps all its transports: self, vader within a host, tcp between hosts.
  if (!may_have_fabric() && !user_chose_transport()) set_default("OMPI_MCA_pml", "ob1");
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
  if (initialized != 0) throw std::logic_error("MpiSession: MPI was started already");
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

void abort_job(int code) noexcept {
  if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

// MPI_COMM_WORLD itself, on which nothing else is ever sent.
bool all_ranks_leave(double seconds) {
  MPI_Request all = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(MPI_COMM_WORLD, &all), "MPI_Ibarrier");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int here = 0;
  for (;;) {
    check_mpi(MPI_Test(&all, &here, MPI_STATUS_IGNORE), "MPI_Test");
    if (here != 0 || std::chrono::steady_clock::now() > end) return here != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));  // Open MPI goes on with package, ident and date
}

}  // namespace lockstep::comm

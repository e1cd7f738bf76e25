#include "collectives/mpi_check.hpp"

#include <array>
#include <string>

#include "collectives/communicator.hpp"

namespace lockstep::comm {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw CommError(std::string(call) + ": " +
                  std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace lockstep::comm

// How the MPI backends read return codes. Private to them: the only header that includes mpi.h.
#pragma once

#include <mpi.h>

namespace lockstep::comm {

/// Throws CommError with `call` and MPI's own text unless `code` is MPI_SUCCESS. Local.
void check_mpi(int code, const char* call);

}  // namespace lockstep::comm

// Is a person watching? Under mpirun that is harder to tell than it seems.
#pragma once

#include <optional>

namespace lockstep::apps {

/// Columns of the terminal that this process's output ends up on; nothing where it is no terminal,
/// or one that cannot move its cursor (TERM=dumb).
///
/// Under mpirun a rank's stdout is a pseudo-terminal of size 0x0 whatever stands behind it, so the
/// parent's own stdout decides where the parent is mpirun on this machine. Local.
std::optional<int> terminal_columns();

}  // namespace lockstep::apps

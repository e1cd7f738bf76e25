// The header that most programs include: the public API except for custom layers, networks without
// a replica, checkpoints, tables, random numbers and plots of runs, which have headers of their own
// (lib/README.md, Installed).
//
//   run_replicas         main() on ranks: threads or MPI          launch/launch.hpp
//   Strategy, Dataset    data parallelism, as in tf.distribute    distribute/strategy.hpp
//   Mesh, Layout         ranks in a grid; tensors cut over it     distribute/mesh.hpp
//   DTensor, Tape        such tensors, and their gradients        distribute/operations.hpp
//   Replica              a network with its training step         train/replica.hpp
#pragma once

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/data/source.hpp"
#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/strategy.hpp"
#include "lockstep/launch/launch.hpp"
#include "lockstep/train/replica.hpp"
#include "lockstep/train/saved_variables.hpp"
#include "lockstep/version.hpp"

// The header that most programs include: the public API except custom layers and checkpoints.
//
//   run_replicas         main() on ranks: threads or MPI          launch/launch.hpp
//   Strategy, Dataset    data parallelism, as in tf.distribute    distribute/strategy.hpp
//   Mesh, DTensor        tensors over ranks, as in DTensor        distribute/dtensor.hpp
//   Replica              a network with its training step         train/replica.hpp
#pragma once

#include "collectives/agreement.hpp"
#include "data/source.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/text.hpp"
#include "lib/distribute/dtensor.hpp"
#include "lib/distribute/strategy.hpp"
#include "lib/launch/launch.hpp"
#include "lib/train/replica.hpp"
#include "lib/version.hpp"

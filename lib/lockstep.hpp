// All that most programs on the library include.
//
//   strategy, values     tf.distribute's model over any communicator    distribute/strategy.hpp
//   mesh, layout         DTensor's model: tensors spread over ranks     distribute/dtensor_math.hpp
//   Replica              a network and its step in one object           train/replica.hpp
//   run_replicas         main(), on ranks                               launch/replicas.hpp
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

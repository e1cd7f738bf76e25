// A network to be saved and read in tests of checkpoints.
#pragma once

#include <memory>

#include "lockstep/nn/network.hpp"

namespace lockstep::test {

/// 5-3-2 with first weights, stored in panels, so that padding and order differ from the file's.
struct SmallNetwork {
  std::unique_ptr<Products<float>> products = make_strict_products(Simd::automatic);
  nn::Network<float> network{{5, {3}, 2}, 1, *products};

  SmallNetwork() { nn::initialise(network, {22, 23}); }
};

}  // namespace lockstep::test

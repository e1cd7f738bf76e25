// Initial weights: a function of seed and shape only, so the same on any number of ranks.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::nn {

/// The two-word seed of TensorFlow's stateless generators.
struct SeedPair {
  std::uint64_t first;
  std::uint64_t second;
};

/// Fills `values` with floats in [low, high), bitwise equal to tf.random.stateless_uniform: with
/// elements `first`, first + 1, ... of the whole.
///
/// Ranks    local.
/// Source   TensorFlow 2, core/kernels/stateless_random_ops (GenerateKey, then Philox 4x32-10 by
///          groups of four); u * (high - low) + low, each operation rounded to float32.
void stateless_uniform(SeedPair seed, float low, float high, std::span<float> values,
                       std::uint64_t first = 0);

/// sqrt(6) / sqrt(inputs + outputs), in float32.
float glorot_limit(std::size_t inputs, std::size_t outputs);

/// Fills a weight matrix [inputs, outputs] uniformly in +-glorot_limit(inputs, outputs).
///
/// Ranks    local.
/// Source   Glorot & Bengio 2010, eq. 16; in float32 as in the DTensor tutorial.
void glorot_uniform(SeedPair seed, std::size_t inputs, std::size_t outputs,
                    std::span<float> values);

}  // namespace lockstep::nn

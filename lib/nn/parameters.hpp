// Every weight of a network in one block, every gradient in another.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/aligned.hpp"
#include "lib/base/hash.hpp"
#include "lib/numerics/matrix.hpp"

namespace lockstep::nn {

/// A named weight: a matrix [rows, cols], or a vector [cols] where rows is 1 and `vector` is set.
struct Tensor {
  std::string name;  ///< "0.weight"
  std::size_t rows = 1;
  std::size_t cols = 0;
  bool vector = false;
  std::size_t offset = 0;  ///< first element in both blocks; a multiple of 16

  std::size_t size() const noexcept { return rows * cols; }
};

/// Owns weights and gradients as two flat blocks of equal layout.
///
/// Layers see matrices into the blocks; optimizer, collectives and checkpoints see flat spans.
/// Each tensor begins on a 64-byte boundary; the elements between tensors are zero and stay zero.
/// Views live as long as this object. Not copyable: there is one block of weights a replica.
template <class Real>
class ParameterBlock {
 public:
  /// Lays `tensors` out in order; their offsets are set here. All weights are zero.
  /// Errors   throws std::bad_alloc.
  explicit ParameterBlock(std::vector<Tensor> tensors);

  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }

  /// Number of weights, without padding.
  std::size_t parameters() const noexcept;

  Matrix<Real> value(std::size_t tensor) noexcept { return view(values_, tensor); }
  Matrix<Real> gradient(std::size_t tensor) noexcept { return view(gradients_, tensor); }

  /// Both blocks whole, padding included: equal lengths.
  std::span<Real> values() noexcept { return values_.span(); }
  std::span<const Real> values() const noexcept { return values_.span(); }
  std::span<Real> gradients() noexcept { return gradients_.span(); }

 private:
  Matrix<Real> view(AlignedBuffer<Real>& block, std::size_t tensor) noexcept {
    const Tensor& t = tensors_[tensor];
    return {block.data() + t.offset, t.rows, t.cols};
  }

  std::vector<Tensor> tensors_;
  AlignedBuffer<Real> values_;
  AlignedBuffer<Real> gradients_;
};

/// Hash of names, shapes and weights in logical order: padding and layout do not touch it.
std::uint64_t weights_hash(const ParameterBlock<float>& block);

}  // namespace lockstep::nn

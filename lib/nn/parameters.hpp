// Every weight of a network in one block, every gradient in another.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/aligned.hpp"
#include "lib/base/hash.hpp"
#include "lib/numerics/products.hpp"

namespace lockstep::nn {

/// What a tensor's elements are at first: zero, one, or Glorot uniform by numbers of inputs and
/// outputs.
struct Start {
  float value = 0;
  std::size_t fan_in = 0;  ///< 0: not random
  std::size_t fan_out = 0;

  static Start ones() { return {1, 0, 0}; }
  static Start glorot(std::size_t fan_in, std::size_t fan_out) { return {0, fan_in, fan_out}; }
};

/// What a tensor is a part of, where a tensor is shared out over ranks.
struct Cut {
  std::size_t rows = 0;  ///< of the whole
  std::size_t cols = 0;
  std::size_t first_row = 0;  ///< where the part begins
  std::size_t first_col = 0;
};

/// A named weight: logically a matrix [rows, cols], or a vector [cols] where `vector` is set.
struct ParameterSpec {
  std::string name;  ///< "0.weight"
  std::size_t rows = 1;
  std::size_t cols = 0;
  bool vector = false;
  std::size_t stored = 0;  ///< elements as the products store it, their padding included
  std::size_t offset = 0;  ///< first element in both blocks; a multiple of 16
  Start start = {};
  std::optional<Cut> cut = {};  ///< none: the whole tensor is here

  std::size_t size() const noexcept { return rows * cols; }  ///< logical
  std::size_t whole_rows() const noexcept { return cut ? cut->rows : rows; }
  std::size_t whole_cols() const noexcept { return cut ? cut->cols : cols; }
  std::size_t whole_size() const noexcept { return whole_rows() * whole_cols(); }
};

/// Owns weights and gradients as two flat blocks of equal layout.
///
/// Layers see stored tensors; optimizer and collectives see flat spans; checkpoints and hashes see
/// the logical tensors. Each tensor begins on a 64-byte boundary; elements between tensors are
/// zero and stay zero. Views live as long as this object. Not copyable: there is one block of
/// weights a replica.
template <class Real>
class ParameterBlock {
 public:
  /// Lays `tensors` out in order; their offsets are set here. All weights are zero. Both blocks
  /// are as long as `slices` equal slices of whole cache lines. `products` and `memory` must
  /// outlive the block.
  /// Errors   throws std::bad_alloc.
  ParameterBlock(std::vector<ParameterSpec> tensors, const Products<Real>& products,
                 std::size_t slices, std::pmr::memory_resource& memory);

  const std::vector<ParameterSpec>& tensors() const noexcept { return tensors_; }

  /// Number of weights, without padding.
  std::size_t parameters() const noexcept;

  /// A tensor as it is stored.
  std::span<Real> value(std::size_t tensor) noexcept { return view(values_.span(), tensor); }
  std::span<const Real> value(std::size_t tensor) const noexcept {
    return view(values_.span(), tensor);
  }
  std::span<Real> gradient(std::size_t tensor) noexcept { return view(gradients_.span(), tensor); }

  /// Copies of a tensor in logical order, row-major; and the way back.
  std::vector<Real> logical_value(std::size_t tensor) const;
  std::vector<Real> logical_gradient(std::size_t tensor) const;
  void set_logical_value(std::size_t tensor, std::span<const Real> logical);

  /// Takes its part of a whole tensor, which is all of it unless the tensor is cut.
  void set_from_whole(std::size_t tensor, std::span<const Real> whole);

  /// Both blocks whole, padding included: equal lengths.
  std::span<Real> values() noexcept { return values_.span(); }
  std::span<const Real> values() const noexcept { return values_.span(); }
  std::span<Real> gradients() noexcept { return gradients_.span(); }

 private:
  template <class Element>
  std::span<Element> view(std::span<Element> block, std::size_t tensor) const noexcept {
    return block.subspan(tensors_[tensor].offset, tensors_[tensor].stored);
  }
  std::vector<Real> logical(std::span<const Real> block, std::size_t tensor) const;

  std::vector<ParameterSpec> tensors_;
  const Products<Real>& products_;
  AlignedBuffer<Real> values_;
  AlignedBuffer<Real> gradients_;
};

/// Hash of names, shapes and weights in logical order: padding and layout do not touch it.
class WeightsHash {
 public:
  /// `values`: the whole tensor, row-major.
  void add(const ParameterSpec& tensor, std::span<const float> values);
  std::uint64_t value() const { return hash_.value(); }

 private:
  Hash hash_;
};

/// Of all tensors in order; none is cut.
std::uint64_t weights_hash(const ParameterBlock<float>& block);

}  // namespace lockstep::nn

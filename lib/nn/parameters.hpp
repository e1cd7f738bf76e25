// The parameters of a network: all weights in one block, all gradients in another.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/aligned.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/numerics/products.hpp"

namespace lockstep::nn {

/// The initial values of a tensor: zero, one, or Glorot uniform for fan_in inputs and fan_out
/// outputs.
struct Start {
  float value = 0;
  std::size_t fan_in = 0;  ///< 0: not random
  std::size_t fan_out = 0;

  static Start ones() { return {1, 0, 0}; }
  static Start glorot(std::size_t fan_in, std::size_t fan_out) { return {0, fan_in, fan_out}; }
};

/// The position of a shard in the whole tensor, for a tensor that is sharded over ranks.
struct Cut {
  std::size_t rows = 0;  ///< rows of the whole tensor
  std::size_t cols = 0;
  std::size_t first_row = 0;  ///< first row of the shard
  std::size_t first_col = 0;
};

/// A named tensor: logically a matrix [rows, cols], or a vector [cols] if `vector` is set.
struct ParameterSpec {
  std::string name;  ///< "0.weight"
  std::size_t rows = 1;
  std::size_t cols = 0;
  bool vector = false;
  std::size_t stored = 0;  ///< number of elements in the products' layout, including padding
  std::size_t offset = 0;  ///< first element in both blocks; a multiple of 16
  Start start = {};
  std::optional<Cut> cut = {};  ///< position of the shard; none: not sharded
  bool frozen = false;  ///< of a frozen layer: its gradients are zero, and no update changes it

  std::size_t size() const noexcept { return rows * cols; }  ///< logical
  std::size_t whole_rows() const noexcept { return cut ? cut->rows : rows; }
  std::size_t whole_cols() const noexcept { return cut ? cut->cols : cols; }
  std::size_t whole_size() const noexcept { return whole_rows() * whole_cols(); }

  /// [rows, cols] of the whole tensor, or [cols] of a vector.
  std::vector<std::uint64_t> whole_shape() const {
    if (vector) return {whole_cols()};
    return {whole_rows(), whole_cols()};
  }
};

/// The positions of named tensors in a flat block: of weights, of gradients, or of the moments of
/// an optimizer. Each tensor is aligned to 64 bytes; the padding between tensors is always zero.
template <class Real>
class ParameterLayout {
 public:
  /// Places `tensors` in order and sets their offsets. The length is that of `slices` equal slices
  /// of whole cache lines. `products` must outlive the layout and its copies.
  ParameterLayout(std::vector<ParameterSpec> tensors, const Products<Real>& products,
                  std::size_t slices);

  const std::vector<ParameterSpec>& tensors() const noexcept { return tensors_; }

  /// Number of elements of a block, including padding.
  std::size_t length() const noexcept { return length_; }

  /// A tensor of `block` in its stored layout.
  template <class Element>
  std::span<Element> stored(std::span<Element> block, std::size_t tensor) const noexcept {
    return block.subspan(tensors_[tensor].offset, tensors_[tensor].stored);
  }

  /// Copy a tensor from or to logical order, row-major.
  std::vector<Real> logical(std::span<const Real> block, std::size_t tensor) const;
  void set_logical(std::span<Real> block, std::size_t tensor, std::span<const Real> logical) const;

  /// Copies this rank's shard from a whole tensor; all of it if the tensor is not sharded.
  void set_from_whole(std::span<Real> block, std::size_t tensor, std::span<const Real> whole) const;

 private:
  std::vector<ParameterSpec> tensors_;
  const Products<Real>* products_;
  std::size_t length_;
};

/// Owns weights and gradients as two flat blocks of equal layout.
///
/// Layers use stored tensors; optimizer and collectives use flat spans; checkpoints and hashes use
/// logical tensors. Views are valid for the lifetime of this object. Not copyable: one block of
/// weights per replica.
template <class Real>
class ParameterBlock {
 public:
  /// All weights are zero. `tensors`, `products`, `slices`: see ParameterLayout. `products` and
  /// `memory` must outlive the block.
  /// Errors   throws std::bad_alloc.
  ParameterBlock(std::vector<ParameterSpec> tensors, const Products<Real>& products,
                 std::size_t slices, std::pmr::memory_resource& memory);

  const ParameterLayout<Real>& layout() const noexcept { return layout_; }
  const std::vector<ParameterSpec>& tensors() const noexcept { return layout_.tensors(); }

  /// Number of weights, without padding.
  std::size_t parameters() const noexcept;

  /// A tensor in its stored layout.
  std::span<Real> value(std::size_t tensor) noexcept { return layout_.stored(values(), tensor); }
  std::span<const Real> value(std::size_t tensor) const noexcept {
    return layout_.stored(values(), tensor);
  }
  std::span<Real> gradient(std::size_t tensor) noexcept {
    return layout_.stored(gradients(), tensor);
  }

  /// Those of ParameterLayout, for weights and gradients.
  std::vector<Real> logical_value(std::size_t tensor) const {
    return layout_.logical(values(), tensor);
  }
  std::vector<Real> logical_gradient(std::size_t tensor) const {
    return layout_.logical(gradients_.span(), tensor);
  }
  void set_logical_value(std::size_t tensor, std::span<const Real> logical) {
    layout_.set_logical(values(), tensor, logical);
  }
  void set_from_whole(std::size_t tensor, std::span<const Real> whole) {
    layout_.set_from_whole(values(), tensor, whole);
  }

  /// The whole blocks, including padding; they have equal lengths.
  std::span<Real> values() noexcept { return values_.span(); }
  std::span<const Real> values() const noexcept { return values_.span(); }
  std::span<Real> gradients() noexcept { return gradients_.span(); }

 private:
  ParameterLayout<Real> layout_;
  AlignedBuffer<Real> values_;
  AlignedBuffer<Real> gradients_;
};

/// Hash of names, shapes and weights in logical order; independent of padding and layout.
class WeightsHash {
 public:
  /// `values`: the whole tensor, row-major.
  void add(const ParameterSpec& tensor, std::span<const float> values);
  std::uint64_t value() const { return hash_.value(); }

 private:
  Hash hash_;
};

/// Hash of all tensors in order; none may be sharded.
std::uint64_t weights_hash(const ParameterBlock<float>& block);

}  // namespace lockstep::nn

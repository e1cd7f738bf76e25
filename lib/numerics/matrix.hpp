// The matrix view that layers, losses and products share.
#pragma once

#include <cassert>
#include <cstddef>
#include <span>
#include <type_traits>

#include "lockstep/base/range.hpp"

namespace lockstep {
/// A non-owning view of a dense row-major matrix: rows of `cols` elements, one after the other.
///
/// Cheap to copy. As with std::span, elements of a const Matrix<float> can be modified.
template <class Real>
struct Matrix {
  Real* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;

  Matrix() = default;
  Matrix(Real* first, std::size_t row_count, std::size_t col_count) noexcept
      : data(first), rows(row_count), cols(col_count) {}

  /// A mutable view converts to a const one.
  operator Matrix<const Real>() const noexcept requires(!std::is_const_v<Real>) {
    return {data, rows, cols};
  }

  Real& operator()(std::size_t row, std::size_t col) const noexcept {
    assert(row < rows && col < cols);
    return data[row * cols + col];
  }
  std::span<Real> row(std::size_t index) const noexcept {
    assert(index < rows);
    return {data + index * cols, cols};
  }
  std::span<Real> flat() const noexcept { return {data, rows * cols}; }

  /// The rows of a range.
  Matrix slice(Range range) const noexcept {
    assert(range.begin <= range.end && range.end <= rows);
    return {data + range.begin * cols, range.size(), cols};
  }
};

}  // namespace lockstep

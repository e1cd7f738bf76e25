// A small dense value with a shape: what elements, batches and results are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// Lengths of the axes, the outermost first; {} is a single value.
using Shape = std::vector<std::size_t>;

/// Elements of a tensor of that shape: the product; 1 for {}.
std::size_t elements_of(const Shape& shape) noexcept;

/// "(2, 3)", "(1,)" is "(1)", "()".
std::string to_text(const Shape& shape);

/// What arithmetic over replicas works on. Truth values are std::uint8_t.
template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8;

/// Values in row-major order, owned. Copies deep; local; no device.
///
/// A batch is a tensor whose axis 0 counts examples, of which there may be 0.
template <class T>
class Tensor {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> is no memory: use std::uint8_t");

 public:
  using Value = T;

  /// No examples: shape (0).
  Tensor() : shape_{0} {}

  /// Shape ().
  explicit Tensor(T value) : values_(1, std::move(value)) {}

  /// Shape (values.size()).
  explicit Tensor(std::vector<T> values) : shape_{values.size()}, values_(std::move(values)) {}

  Tensor(std::initializer_list<T> values) : Tensor(std::vector<T>(values)) {}

  /// Throws std::invalid_argument where the values are not as many as the shape says.
  Tensor(Shape shape, std::vector<T> values)
      : shape_(std::move(shape)), values_(std::move(values)) {
    if (elements_of(shape_) != values_.size()) {
      throw std::invalid_argument("Tensor: " + std::to_string(values_.size()) +
                                  " values for shape " + to_text(shape_));
    }
  }

  const Shape& shape() const noexcept { return shape_; }
  std::span<const T> values() const noexcept { return values_; }
  std::span<T> values() noexcept { return values_; }

  /// The one value. Throws std::invalid_argument where there is another number of them.
  const T& item() const {
    if (values_.size() != 1) {
      throw std::invalid_argument("Tensor::item: shape " + to_text(shape_) +
                                  " does not hold one value");
    }
    return values_.front();
  }

  /// Length of axis 0. Throws std::invalid_argument for shape ().
  std::size_t rows() const {
    if (shape_.empty()) throw std::invalid_argument("Tensor: shape () has no rows");
    return shape_.front();
  }

  /// A copy of rows [begin, end). Throws std::out_of_range.
  Tensor rows(std::size_t begin, std::size_t end) const {
    if (begin > end || end > rows()) {
      throw std::out_of_range("Tensor: no rows [" + std::to_string(begin) + ", " +
                              std::to_string(end) + ") in shape " + to_text(shape_));
    }
    Shape shape = shape_;
    shape[0] = 1;
    const std::size_t width = elements_of(shape);
    shape[0] = end - begin;
    const auto at = [&](std::size_t row) {
      return values_.begin() + static_cast<std::ptrdiff_t>(row * width);
    };
    return {std::move(shape), std::vector<T>(at(begin), at(end))};
  }

  /// The same shape with `function` of every value.
  template <class Function>
  auto map(Function function) const {
    using Result = std::decay_t<std::invoke_result_t<Function, const T&>>;
    std::vector<Result> results;
    results.reserve(values_.size());
    for (const T& value : values_) results.push_back(function(value));
    return Tensor<Result>(shape_, std::move(results));
  }

  bool operator==(const Tensor&) const = default;

 private:
  Shape shape_;
  std::vector<T> values_;
};

/// The name of an element's type: "float32", "int64"; "object" for what is no number and no text.
template <class T>
constexpr const char* type_name() noexcept {
  constexpr auto bytes = sizeof(T);
  if constexpr (std::is_same_v<T, std::string>) return "string";
  if constexpr (std::is_floating_point_v<T>) return bytes == 4 ? "float32" : "float64";
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return bytes == 1 ? "int8" : bytes == 2 ? "int16" : bytes == 4 ? "int32" : "int64";
  }
  if constexpr (std::is_integral_v<T>) {
    return bytes == 1 ? "uint8" : bytes == 2 ? "uint16" : bytes == 4 ? "uint32" : "uint64";
  }
  return "object";
}

}  // namespace lockstep

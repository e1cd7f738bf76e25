// Elements may be nested: pairs and tuples of numbers and tensors, batched and cut part by part.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"
#include "lib/distribute/tensor.hpp"

namespace lockstep {

template <class T>
struct IsTensor : std::false_type {};
template <class T>
struct IsTensor<Tensor<T>> : std::true_type {};

template <class T>
struct IsNested : std::false_type {};
template <class A, class B>
struct IsNested<std::pair<A, B>> : std::true_type {};
template <class... Parts>
struct IsNested<std::tuple<Parts...>> : std::true_type {};

/// A pair or a tuple: what is taken apart.
template <class T>
concept Nested = IsNested<std::remove_cvref_t<T>>::value;

/// What `batch` makes of elements T: Tensor<T> with axis 0 added, and of nested elements the same
/// structure of batches. A tensor gets one more axis.
template <class T>
struct BatchOf {
  using type = Tensor<T>;
};
template <class T>
struct BatchOf<Tensor<T>> {
  using type = Tensor<T>;
};
template <class A, class B>
struct BatchOf<std::pair<A, B>> {
  using type = std::pair<typename BatchOf<A>::type, typename BatchOf<B>::type>;
};
template <class... Parts>
struct BatchOf<std::tuple<Parts...>> {
  using type = std::tuple<typename BatchOf<Parts>::type...>;
};
template <class T>
using Batched = typename BatchOf<T>::type;

/// Tensors, and pairs and tuples of them: what has rows that can be cut.
template <class T>
struct IsBatch : IsTensor<T> {};
template <class A, class B>
struct IsBatch<std::pair<A, B>> : std::bool_constant<IsBatch<A>::value && IsBatch<B>::value> {};
template <class... Parts>
struct IsBatch<std::tuple<Parts...>> : std::bool_constant<(IsBatch<Parts>::value && ...)> {};
template <class T>
concept BatchLike = IsBatch<T>::value;

/// Calls `function(value)`, or with the parts of a nested value where it takes those.
template <class Function, class Value>
decltype(auto) call_with(Function&& function, Value&& value) {
  if constexpr (std::is_invocable_v<Function, Value>) {
    return std::invoke(std::forward<Function>(function), std::forward<Value>(value));
  } else {
    static_assert(Nested<Value>, "the function takes neither the element nor its parts");
    return std::apply(std::forward<Function>(function), std::forward<Value>(value));
  }
}

/// Examples of a batch: the length of axis 0 of all its parts.
/// Errors   throws DataError where parts differ; std::invalid_argument for a part of shape ().
template <BatchLike T>
std::size_t rows_of(const T& batch) {
  if constexpr (Nested<T>) {
    std::optional<std::size_t> rows;
    const auto look = [&](const auto& part) {
      const std::size_t mine = rows_of(part);
      if (rows.value_or(mine) != mine) {
        throw DataError("a batch whose parts have " + std::to_string(*rows) + " and " +
                            std::to_string(mine) + " examples",
                        "give all parts of a batch the same axis 0");
      }
      rows = mine;
    };
    std::apply([&](const auto&... parts) { (look(parts), ...); }, batch);
    return rows.value_or(0);
  } else {
    return batch.rows();
  }
}

/// Examples [begin, end) of a batch. Throws std::out_of_range.
template <BatchLike T>
T cut(const T& batch, std::size_t begin, std::size_t end) {
  if constexpr (Nested<T>) {
    return std::apply([&](const auto&... parts) { return T{cut(parts, begin, end)...}; }, batch);
  } else {
    return batch.rows(begin, end);
  }
}

namespace structure {

/// Throws DataError unless the rows of two tensors are alike.
void require_same_rows(const Shape& a, const Shape& b);

template <class T>
Tensor<T> join_tensors(const std::vector<Tensor<T>>& tensors) {
  Shape shape = tensors.front().shape();
  std::vector<T> values;
  shape.front() = 0;
  for (const auto& tensor : tensors) {
    require_same_rows(tensors.front().shape(), tensor.shape());
    shape.front() += tensor.rows();
    values.insert(values.end(), tensor.values().begin(), tensor.values().end());
  }
  return {std::move(shape), std::move(values)};
}

template <std::size_t I, class T>
auto column(const std::vector<T>& values) {
  std::vector<std::tuple_element_t<I, T>> parts;
  parts.reserve(values.size());
  for (const T& value : values) parts.push_back(std::get<I>(value));
  return parts;
}

template <class T, class Each>
auto by_columns(const std::vector<T>& values, Each each) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple(each(column<I>(values))...);
  }
  (std::make_index_sequence<std::tuple_size_v<T>>());
}

}  // namespace structure

/// The batches one after the other; at least one.
/// Errors   throws DataError where their rows have different shapes.
template <BatchLike T>
T join(const std::vector<T>& batches) {
  if constexpr (Nested<T>) {
    return std::make_from_tuple<T>(
        structure::by_columns(batches, [](const auto& parts) { return join(parts); }));
  } else {
    return structure::join_tensors(batches);
  }
}

/// Elements as one batch; none give batches of shape (0).
/// Errors   throws DataError where tensors among them have different shapes.
template <class T>
Batched<T> stack(const std::vector<T>& elements) {
  if constexpr (Nested<T>) {
    return std::make_from_tuple<Batched<T>>(
        structure::by_columns(elements, [](const auto& parts) { return stack(parts); }));
  } else if constexpr (IsTensor<T>::value) {
    if (elements.empty()) return {};
    std::vector<T> rows;
    rows.reserve(elements.size());
    for (const T& element : elements) {
      Shape shape = element.shape();
      shape.insert(shape.begin(), 1);
      rows.emplace_back(std::move(shape),
                        std::vector(element.values().begin(), element.values().end()));
    }
    return join(rows);
  } else {
    return Tensor<T>(elements);
  }
}

/// A value as people write it: "[5, 6]", "([1, 2], 0)".
template <class T>
std::string to_text(const T& value);

namespace structure {

template <class T>
std::string tensor_text(const Tensor<T>& tensor, std::size_t axis, std::size_t& at) {
  if (axis == tensor.shape().size()) return to_text(tensor.values()[at++]);
  std::string text = "[";
  for (std::size_t i = 0; i < tensor.shape()[axis]; ++i) {
    text += (i == 0 ? "" : ", ") + tensor_text(tensor, axis + 1, at);
  }
  return text + "]";
}

}  // namespace structure

template <class T>
std::string to_text(const T& value) {
  if constexpr (IsTensor<T>::value) {
    std::size_t at = 0;
    return structure::tensor_text(value, 0, at);
  } else if constexpr (Nested<T>) {
    std::string text;
    const auto add = [&](const auto& part) { text += (text.empty() ? "" : ", ") + to_text(part); };
    std::apply([&](const auto&... parts) { (add(parts), ...); }, value);
    return "(" + text + ")";
  } else if constexpr (std::is_floating_point_v<T>) {
    return shortest(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return value;
  }
}

/// Type and shape of a part of an element; none: a length that is not known, or not always the
/// same.
struct TensorSpec {
  std::string type;  ///< "float32"
  std::vector<std::optional<std::size_t>> shape;

  bool operator==(const TensorSpec&) const = default;
};

/// "float32 (?, 784)".
std::string to_text(const TensorSpec& spec);

/// One spec a part, nested parts in order.
using ElementSpec = std::vector<TensorSpec>;

/// The spec of batches like `batch` that hold `rows` examples.
template <BatchLike T>
ElementSpec spec_of(const T& batch, std::optional<std::size_t> rows) {
  ElementSpec spec;
  if constexpr (Nested<T>) {
    const auto add = [&](const auto& part) {
      for (auto& one : spec_of(part, rows)) spec.push_back(std::move(one));
    };
    std::apply([&](const auto&... parts) { (add(parts), ...); }, batch);
  } else {
    TensorSpec one{type_name<typename T::Value>(), {batch.shape().begin(), batch.shape().end()}};
    one.shape.front() = rows;
    spec.push_back(std::move(one));
  }
  return spec;
}

}  // namespace lockstep

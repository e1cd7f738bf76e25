// Tensors: the dense values of data sets and replicas. Also pairs, tuples and maps by name of
// elements, which are batched, cut and concatenated part by part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep {
/// The lengths of the axes, outermost first; {} is a single value.
using Shape = std::vector<std::size_t>;

/// The number of elements: the product of the lengths, or the greatest std::size_t if it is more;
/// 1 for {}.
std::size_t elements_of(const Shape& shape) noexcept;

/// "(2, 3)", "(1,)" is "(1)", "()".
std::string to_text(const Shape& shape);

/// In double quotes; quotes, backslashes, control characters, and bytes that are not UTF-8 escaped.
std::string to_text(const std::string& text);

/// The element types of arithmetic over replicas. Use std::uint8_t for booleans.
template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && sizeof(T) <= 8;

/// A shape and its values in row-major order, owned, in host memory. A copy is deep.
///
/// A batch is a tensor whose axis 0 counts examples; there may be 0.
template <class T>
class Tensor {
  static_assert(!std::is_same_v<T, bool>, "std::vector<bool> is not an array: use std::uint8_t");

 public:
  using Value = T;

  /// No examples: shape (0).
  Tensor() : shape_{0} {}

  /// Shape ().
  explicit Tensor(T value) : values_(1, std::move(value)) {}

  /// Shape (values.size()).
  explicit Tensor(std::vector<T> values) : shape_{values.size()}, values_(std::move(values)) {}

  Tensor(std::initializer_list<T> values) : Tensor(std::vector<T>(values)) {}

  /// Throws std::invalid_argument unless values.size() == elements_of(shape).
  Tensor(Shape shape, std::vector<T> values)
      : shape_(std::move(shape)), values_(std::move(values)) {
    if (elements_of(shape_) != values_.size()) {
      throw std::invalid_argument("Tensor: " + std::to_string(values_.size()) +
                                  " values for shape " + to_text(shape_));
    }
  }

  const Shape& shape() const& noexcept { return shape_; }
  Shape shape() && noexcept { return std::move(shape_); }
  std::span<const T> values() const& noexcept { return values_; }
  std::span<T> values() & noexcept { return values_; }
  std::vector<T> values() && { return std::move(values_); }  ///< of a temporary: no dangling span

  /// The single value. Throws std::invalid_argument unless there is exactly one.
  const T& item() const {
    if (values_.size() != 1) {
      throw std::invalid_argument("Tensor::item: shape " + to_text(shape_) +
                                  " does not hold one value");
    }
    return values_.front();
  }

  /// The length of axis 0. Throws std::invalid_argument for shape ().
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

  /// A tensor of the same shape with `function` applied to each value.
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

/// The name of an element type: "float32", "int64", "string"; "object" for all others.
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

/// A pair or a tuple.
template <class T>
concept Nested = IsNested<std::remove_cvref_t<T>>::value;

template <class T>
struct IsNamedParts : std::false_type {};
template <class Part>
struct IsNamedParts<std::map<std::string, Part>> : std::true_type {};

/// A map from names to parts of one type. All elements of a data set have the same names.
template <class T>
concept NamedParts = IsNamedParts<std::remove_cvref_t<T>>::value;

/// A value of several parts.
template <class T>
concept Structured = Nested<T> || NamedParts<T>;

/// A struct whose `fields()` returns a tuple of its members, values or references:
///
///   struct Digit {
///     Tensor<float> image;
///     std::int32_t label;
///     auto fields() const { return std::tie(image, label); }
///   };
template <class T>
concept WithFields = std::is_class_v<T> && requires(const T& value) {
  requires Nested<decltype(value.fields())>;
};

template <class T>
struct IsOneOfTensors : std::false_type {};
template <class... Values>
struct IsOneOfTensors<std::variant<Tensor<Values>...>> : std::true_type {};

/// A tensor whose element type is known when it is read: a std::variant of tensors. All elements of
/// a data set have the same type.
template <class T>
concept OneOfTensors = IsOneOfTensors<std::remove_cvref_t<T>>::value;

/// The batch of elements T: Tensor<T>. For tensors: a tensor with a new axis 0. For nested
/// elements: the same structure of batches. For structs with fields: the tuple of their batches.
template <class T>
struct BatchOf {
  static_assert(
      !requires(T & value) { value.fields(); },
      "batch: fields() of the element is not const, or returns neither a pair nor a tuple");
  using type = Tensor<T>;
};
template <class T>
struct BatchOf<Tensor<T>> {
  using type = Tensor<T>;
};
template <OneOfTensors T>
struct BatchOf<T> {
  using type = T;
};
template <class A, class B>
struct BatchOf<std::pair<A, B>> {
  using type = std::pair<typename BatchOf<A>::type, typename BatchOf<B>::type>;
};
template <class... Parts>
struct BatchOf<std::tuple<Parts...>> {
  using type = std::tuple<typename BatchOf<Parts>::type...>;
};
template <class Part>
struct BatchOf<std::map<std::string, Part>> {
  using type = std::map<std::string, typename BatchOf<Part>::type>;
};
template <class... Parts>
struct BatchOf<std::tuple<Parts&...>> : BatchOf<std::tuple<std::decay_t<Parts>...>> {};
template <WithFields T>
struct BatchOf<T> : BatchOf<decltype(std::declval<const T&>().fields())> {};
template <class T>
using Batched = typename BatchOf<T>::type;

/// Is<T>; for a pair, tuple or map: true if it holds for each of its parts, at any depth.
template <template <class> class Is, class T>
struct EachPart : Is<T> {};
template <template <class> class Is, class A, class B>
struct EachPart<Is, std::pair<A, B>>
    : std::bool_constant<EachPart<Is, A>::value && EachPart<Is, B>::value> {};
template <template <class> class Is, class... Parts>
struct EachPart<Is, std::tuple<Parts...>>
    : std::bool_constant<(EachPart<Is, Parts>::value && ...)> {};
template <template <class> class Is, class Part>
struct EachPart<Is, std::map<std::string, Part>> : EachPart<Is, Part> {};

/// Tensors, and pairs, tuples and maps of tensors, which can be cut by rows.
template <class T>
struct IsBatchPart : std::bool_constant<IsTensor<T>::value || IsOneOfTensors<T>::value> {};
template <class T>
concept BatchLike = EachPart<IsBatchPart, T>::value;

namespace structure {

/// Calls `function(part)` for each part, in order.
template <Structured T, class Function>
void each_part(T& value, Function&& function) {
  if constexpr (NamedParts<T>) {
    for (auto& [name, part] : value) function(part);
  } else {
    std::apply([&](auto&... parts) { (function(parts), ...); }, value);
  }
}

/// The structure with `function(part)` in place of each part; called in order.
template <Structured T, class Function>
auto with_parts(const T& value, Function&& function) {
  if constexpr (NamedParts<T>) {
    using Part = std::decay_t<decltype(function(value.begin()->second))>;
    std::map<std::string, Part> parts;
    for (const auto& [name, part] : value) parts.emplace(name, function(part));
    return parts;
  } else if constexpr (requires { value.first; }) {
    using First = std::decay_t<decltype(function(value.first))>;
    using Second = std::decay_t<decltype(function(value.second))>;
    return std::pair<First, Second>{function(value.first), function(value.second)};
  } else {
    return std::apply(
        [&](const auto&... parts) {
          return std::tuple<std::decay_t<decltype(function(parts))>...>{function(parts)...};
        },
        value);
  }
}

/// The names in quotes: maps of other names have another text.
template <class Part>
std::string names_of(const std::map<std::string, Part>& value) {
  return joined(value, ", ", [](const auto& named) { return to_text(named.first); });
}

/// `combine(parts)` of the parts of each name, moved from `values`. Throws DataError if the names
/// differ.
template <class Part, class Combine>
auto by_names(std::vector<std::map<std::string, Part>>& values, Combine combine) {
  std::map<std::string, decltype(combine(std::vector<Part>()))> combined;
  if (values.empty()) return combined;
  for (const auto& value : values) {
    if (std::equal(value.begin(), value.end(), values.front().begin(), values.front().end(),
                   [](const auto& a, const auto& b) { return a.first == b.first; })) {
      continue;
    }
    throw DataError(
        "elements with parts named " + names_of(values.front()) + " and " + names_of(value),
        "give all elements of a data set the same names");
  }
  for (const auto& [name, first] : values.front()) {
    std::vector<Part> parts;
    parts.reserve(values.size());
    for (auto& value : values) parts.push_back(std::move(value.find(name)->second));
    combined.emplace(name, combine(std::move(parts)));
  }
  return combined;
}

template <class Function, class Value, std::size_t... I>
constexpr bool takes_parts_of(std::index_sequence<I...>) {
  return std::is_invocable_v<Function, decltype(std::get<I>(std::declval<Value>()))...>;
}

/// True if std::apply(function, value) can be compiled.
template <class Function, class Value>
constexpr bool takes_parts() {
  if constexpr (Nested<Value>) {
    using Parts = std::remove_cvref_t<Value>;
    return takes_parts_of<Function, Value>(std::make_index_sequence<std::tuple_size_v<Parts>>());
  }
  return false;
}

}  // namespace structure

/// Calls `function(value)`, or `function(parts...)` of a nested value if it takes the parts.
template <class Function, class Value>
decltype(auto) call_with(Function&& function, Value&& value) {
  if constexpr (std::is_invocable_v<Function, Value>) {
    return std::invoke(std::forward<Function>(function), std::forward<Value>(value));
  } else if constexpr (structure::takes_parts<Function, Value>()) {
    return std::apply(std::forward<Function>(function), std::forward<Value>(value));
  } else {
    static_assert(structure::takes_parts<Function, Value>(),
                  "the function takes neither an element of the data set nor the parts of one");
    return true;  // no further errors
  }
}

/// A record of a data::Source: its features [features] and its label.
using Example = std::pair<Tensor<float>, std::int32_t>;

/// A record with values to predict: its features [features] and its values [targets].
using ValuesExample = std::pair<Tensor<float>, Tensor<float>>;

/// The same with the record's weight in losses.
using WeightedExample = std::tuple<Tensor<float>, std::int32_t, float>;
using WeightedValuesExample = std::tuple<Tensor<float>, Tensor<float>, float>;

/// The number of examples of a batch: the length of axis 0 of all its parts.
/// Errors   throws DataError if parts differ; std::invalid_argument for a part of shape ().
template <BatchLike T>
std::size_t rows_of(const T& batch) {
  if constexpr (Structured<T>) {
    std::optional<std::size_t> rows;
    const auto look = [&](const auto& part) {
      const std::size_t mine = rows_of(part);
      if (rows.value_or(mine) != mine) {
        throw DataError(
            "a batch whose parts have " + std::to_string(*rows) + " and " + std::to_string(mine) +
                " examples",
            "give all parts of a batch as many examples; for single elements, call batch() first");
      }
      rows = mine;
    };
    structure::each_part(batch, look);
    return rows.value_or(0);
  } else if constexpr (OneOfTensors<T>) {
    return std::visit([](const auto& tensor) { return tensor.rows(); }, batch);
  } else {
    return batch.rows();
  }
}

/// Examples [begin, end) of a batch. Throws std::out_of_range.
template <BatchLike T>
T cut(const T& batch, std::size_t begin, std::size_t end) {
  if constexpr (Structured<T>) {
    return structure::with_parts(batch, [&](const auto& part) { return cut(part, begin, end); });
  } else if constexpr (OneOfTensors<T>) {
    return std::visit([&](const auto& tensor) { return T(tensor.rows(begin, end)); }, batch);
  } else {
    return batch.rows(begin, end);
  }
}

namespace structure {

/// Throws DataError unless the shapes are equal except for axis 0.
void require_same_rows(const Shape& a, const Shape& b);

/// Throws DataError unless element `number` of a batch, from 0, has the shape of the first.
void require_same_shape(const Shape& first, const Shape& shape, std::size_t number);

/// Equal tensors along a new axis 0.
template <class T>
Tensor<T> stack_tensors(const std::vector<Tensor<T>>& elements) {
  if (elements.empty()) return {};
  Shape shape = elements.front().shape();
  std::vector<T> values;
  values.reserve(elements.size() * elements.front().values().size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    require_same_shape(shape, elements[i].shape(), i);
    values.insert(values.end(), elements[i].values().begin(), elements[i].values().end());
  }
  shape.insert(shape.begin(), elements.size());
  return {std::move(shape), std::move(values)};
}

template <class T>
Tensor<T> join_tensors(const std::vector<Tensor<T>>& tensors) {
  Shape shape = tensors.front().shape();
  std::vector<T> values;
  std::size_t rows = 0;
  for (const auto& tensor : tensors) {
    require_same_rows(shape, tensor.shape());
    rows += tensor.rows();
    values.insert(values.end(), tensor.values().begin(), tensor.values().end());
  }
  shape.front() = rows;
  return {std::move(shape), std::move(values)};
}

/// `combine(tensors)` of variants that hold the same type of tensor, moved from `values`. Throws
/// DataError if they do not.
template <OneOfTensors T, class Combine>
T by_type(std::vector<T>& values, Combine combine) {
  if (values.empty()) return {};
  return std::visit(
      [&](const auto& first) {
        using Held = std::decay_t<decltype(first)>;
        std::vector<Held> tensors;
        tensors.reserve(values.size());
        for (T& value : values) {
          if (value.index() != values.front().index()) {
            throw DataError("elements of different types do not make one batch",
                            "give all elements of a data set the same type");
          }
          tensors.push_back(std::move(std::get<Held>(value)));
        }
        return T(combine(std::move(tensors)));
      },
      values.front());
}

/// Part I of each value, moved from it.
template <std::size_t I, class T>
auto column(std::vector<T>& values) {
  std::vector<std::tuple_element_t<I, T>> parts;
  parts.reserve(values.size());
  for (T& value : values) parts.push_back(std::move(std::get<I>(value)));
  return parts;
}

template <class T, class Each>
auto by_columns(std::vector<T>& values, Each each) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::make_tuple(each(column<I>(values))...);
  }
  (std::make_index_sequence<std::tuple_size_v<T>>());
}

}  // namespace structure

/// The batches, at least one, concatenated along axis 0.
/// Errors   throws DataError if their rows have different shapes, or for shape ().
template <BatchLike T>
T join_batches(std::vector<T> batches) {
  [[maybe_unused]] const auto join = [](auto parts) { return join_batches(std::move(parts)); };
  if constexpr (Nested<T>) {
    return std::make_from_tuple<T>(structure::by_columns(batches, join));
  } else if constexpr (NamedParts<T>) {
    return structure::by_names(batches, join);
  } else if constexpr (OneOfTensors<T>) {
    return structure::by_type(batches, join);
  } else {
    return structure::join_tensors(batches);
  }
}

/// One batch of the elements; shape (0) if there are none.
/// Errors   throws DataError for tensors of different shapes and maps with different names.
template <class T>
Batched<T> batch_of(std::vector<T> elements) {
  [[maybe_unused]] const auto batch = [](auto parts) { return batch_of(std::move(parts)); };
  if constexpr (Nested<T>) {
    return std::make_from_tuple<Batched<T>>(structure::by_columns(elements, batch));
  } else if constexpr (NamedParts<T>) {
    return structure::by_names(elements, batch);
  } else if constexpr (OneOfTensors<T>) {
    return structure::by_type(elements, batch);
  } else if constexpr (WithFields<T>) {
    using Fields = decltype(structure::with_parts(elements.front().fields(), std::identity()));
    std::vector<Fields> fields;
    fields.reserve(elements.size());
    for (const T& element : elements) fields.emplace_back(element.fields());
    return batch_of(std::move(fields));
  } else if constexpr (IsTensor<T>::value) {
    return structure::stack_tensors(elements);
  } else {
    return Tensor<T>(std::move(elements));
  }
}

/// A value as text: "[5, 6]", "([1, 2], 0)", "{image: [1, 2], name: \"a\"}".
template <class T>
std::string to_text(const T& value);

namespace structure {

template <class T>
std::string tensor_text(const Tensor<T>& tensor, std::size_t axis, std::size_t& at) {
  const auto values = tensor.values();  // none where the tensor was moved from
  if (axis == tensor.shape().size()) return values.empty() ? "[]" : to_text(values[at++]);
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
  } else if constexpr (NamedParts<T>) {
    const auto part_text = [](const auto& named) {
      return named.first + ": " + to_text(named.second);
    };
    return "{" + joined(value, ", ", part_text) + "}";
  } else if constexpr (OneOfTensors<T>) {
    return std::visit([](const auto& tensor) { return to_text(tensor); }, value);
  } else if constexpr (WithFields<T>) {
    return to_text(value.fields());
  } else if constexpr (std::is_floating_point_v<T>) {
    return shortest(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return to_text(std::string(value));
  }
}

/// Type and shape of a part of an element. A length that is unknown or varies is nullopt.
struct TensorSpec {
  std::string type;  ///< "float32"
  std::vector<std::optional<std::size_t>> shape;

  bool operator==(const TensorSpec&) const = default;
};

/// "float32 (?, 784)".
std::string to_text(const TensorSpec& spec);

/// One spec per part, nested parts in order; those of a map in the order of its names.
using ElementSpec = std::vector<TensorSpec>;

/// The spec of batches like `batch` that hold `rows` examples.
/// Errors   throws std::invalid_argument for a part of shape ().
template <BatchLike T>
ElementSpec spec_of(const T& batch, std::optional<std::size_t> rows) {
  ElementSpec spec;
  if constexpr (Structured<T>) {
    structure::each_part(batch, [&](const auto& part) {
      for (auto& one : spec_of(part, rows)) spec.push_back(std::move(one));
    });
  } else if constexpr (OneOfTensors<T>) {
    return std::visit([&](const auto& tensor) { return spec_of(tensor, rows); }, batch);
  } else {
    batch.rows();  // throws for shape ()
    TensorSpec one{type_name<typename T::Value>(), {batch.shape().begin(), batch.shape().end()}};
    one.shape.front() = rows;
    spec.push_back(std::move(one));
  }
  return spec;
}

}  // namespace lockstep

// Tensors of all replicas, put together.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/agreement.hpp"
#include "lib/distribute/tensor.hpp"

namespace lockstep {

enum class ReduceOp { sum, mean };

namespace exchange {

/// What sums are taken in: double, or whole numbers that wrap around.
template <Number T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;

/// The lengths of a tensor's axes and its bytes, as text of any bytes; and the way back.
std::string pack(const Shape& shape, const void* values, std::size_t bytes);
Shape unpack_shape(const std::string& packed);
const char* unpack_values(const std::string& packed);

/// A tensor seen from one axis: [outer, length, inner].
struct AxisView {
  std::size_t outer = 1;
  std::size_t length = 0;
  std::size_t inner = 1;
};
AxisView view_axis(const Shape& shape, std::size_t axis);

/// Throws comm::AgreedError (2); every rank must find the same.
[[noreturn]] void refuse(const std::string& problem, const std::string& remedy);

/// Throws unless all shapes are equal but on `axis`; all ranks hold the same shapes.
void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis);

/// Every rank's tensor in rank order. Collective.
template <Number T>
std::vector<Tensor<T>> all_tensors(comm::Communicator& comm, const Tensor<T>& mine) {
  std::vector<Tensor<T>> all;
  const auto values = mine.values();
  for (const auto& packed :
       comm::gather_text(comm, pack(mine.shape(), values.data(), values.size_bytes()))) {
    Shape shape = unpack_shape(packed);
    std::vector<T> copy(elements_of(shape));
    if (!copy.empty()) std::memcpy(copy.data(), unpack_values(packed), copy.size() * sizeof(T));
    all.emplace_back(std::move(shape), std::move(copy));
  }
  return all;
}

/// Those that hold values; where none does, the first.
template <class T>
void drop_empty(std::vector<Tensor<T>>& all) {
  const Tensor<T> first = all.front();
  std::erase_if(all, [](const auto& tensor) { return tensor.values().empty(); });
  if (all.empty()) all.push_back(first);
}

template <class T>
void require_alike(const std::vector<Tensor<T>>& all, std::optional<std::size_t> axis) {
  std::vector<Shape> shapes;
  shapes.reserve(all.size());
  for (const auto& tensor : all) shapes.push_back(tensor.shape());
  require_alike(shapes, axis);
}

/// Sums along `axis`, which goes; each sum in order.
template <Number T>
Tensor<Wide<T>> sum_along(const Tensor<T>& tensor, std::size_t axis) {
  const AxisView view = view_axis(tensor.shape(), axis);
  std::vector<Wide<T>> sums(view.outer * view.inner);
  auto value = tensor.values().begin();
  for (std::size_t o = 0; o < view.outer; ++o) {
    for (std::size_t l = 0; l < view.length; ++l) {
      for (std::size_t i = 0; i < view.inner; ++i) {
        sums[o * view.inner + i] += static_cast<Wide<T>>(*value++);
      }
    }
  }
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  return {std::move(shape), std::move(sums)};
}

template <Number T>
Tensor<T> narrowed(const Tensor<Wide<T>>& sums, double divisor) {
  return sums.map([&](Wide<T> sum) {
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(sum / divisor);
    return static_cast<T>(sum);
  });
}

/// The sums of all ranks' tensors in rank order, in double or whole numbers. Collective.
template <Number T>
Tensor<T> add_up(comm::Communicator& comm, const Tensor<T>& mine) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  require_alike(all, std::nullopt);
  Tensor<T> total = std::move(all.front());
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t v = 0; v < total.values().size(); ++v) {
      total.values()[v] += all[i].values()[v];
    }
  }
  return total;
}

template <Number T>
void require_divisible(ReduceOp op) {
  if (op == ReduceOp::sum || std::is_floating_point_v<T>) return;
  refuse("a mean of whole numbers would be rounded", "map them to double first");
}

/// Over the replicas and along `axis`. Collective.
template <Number T>
Tensor<T> reduce_along(comm::Communicator& comm, ReduceOp op, const Tensor<T>& mine,
                       std::size_t axis) {
  require_divisible<T>(op);
  Tensor<Wide<T>> sums;
  std::uint64_t count = 0;
  comm::together(comm, [&] {
    if (mine.values().empty()) return;
    sums = sum_along(mine, axis);
    count = view_axis(mine.shape(), axis).length;
  });
  comm.all_reduce(std::span(&count, 1));
  if (op == ReduceOp::mean && count == 0) {
    refuse("the mean of no values", "reduce a batch that holds an example");
  }
  if (count == 0) return narrowed<T>(Tensor<Wide<T>>(Wide<T>{}), 1);
  return narrowed<T>(add_up(comm, sums), op == ReduceOp::mean ? static_cast<double>(count) : 1);
}

/// Over the replicas, value by value. Collective.
template <Number T>
Tensor<T> reduce_values(comm::Communicator& comm, ReduceOp op, Tensor<T> mine) {
  require_divisible<T>(op);
  comm::require_equal(comm, "the value to be reduced", {{"shape", to_text(mine.shape())}},
                      "reduce values of one shape, or along axis 0");
  if constexpr (std::is_floating_point_v<T> && sizeof(T) <= sizeof(double)) {
    comm.all_reduce(mine.values());
    if (op == ReduceOp::sum) return mine;
    return mine.map([&](T sum) { return sum / static_cast<T>(comm.size()); });
  } else {
    auto wide = mine.map([](T value) { return static_cast<std::uint64_t>(value); });
    comm.all_reduce(wide.values());
    return wide.map([](std::uint64_t sum) { return static_cast<T>(sum); });
  }
}

/// One behind the other along `axis`, in rank order. Collective.
template <Number T>
Tensor<T> gather_along(comm::Communicator& comm, const Tensor<T>& mine, std::size_t axis) {
  auto all = all_tensors(comm, mine);
  drop_empty(all);
  require_alike(all, axis);
  Shape shape = all.front().shape();
  shape[axis] = 0;
  for (const auto& tensor : all) shape[axis] += tensor.shape()[axis];
  std::vector<T> values;
  values.reserve(elements_of(shape));
  const std::size_t outer = view_axis(shape, axis).outer;
  for (std::size_t o = 0; o < outer; ++o) {
    for (const auto& tensor : all) {
      const auto run = tensor.values().size() / outer;
      const auto part = tensor.values().subspan(o * run, run);
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  return {std::move(shape), std::move(values)};
}

/// The hash of the bits, in words. Local.
std::string bits_of(const std::string& packed);

}  // namespace exchange
}  // namespace lockstep

#include "lockstep/distribute/values.hpp"

#include <cstring>

#include "lockstep/base/hash.hpp"

namespace lockstep::collective {
std::string pack(const Shape& shape, const void* values, std::size_t bytes) {
  std::vector<std::uint64_t> head = {shape.size()};
  head.insert(head.end(), shape.begin(), shape.end());
  std::string packed(reinterpret_cast<const char*>(head.data()), head.size() * sizeof(head[0]));
  if (bytes > 0) packed.append(static_cast<const char*>(values), bytes);
  return packed;
}

std::size_t axis_from_0(std::ptrdiff_t axis, std::size_t axes) noexcept {
  const auto count = static_cast<std::ptrdiff_t>(axes);
  return static_cast<std::size_t>(axis < 0 && axis + count >= 0 ? axis + count : axis);
}

namespace {

constexpr const char* how_axes_are_counted =
    "axes are counted from 0 for the first one, or from -1 for the last one";

std::string no_axis(const Shape& shape, std::size_t axis) {
  return "shape " + to_text(shape) + " has no axis " +
         std::to_string(static_cast<std::ptrdiff_t>(axis));
}

}  // namespace

AxisView view_axis(const Shape& shape, std::size_t axis) {
  if (axis >= shape.size()) throw ConfigError(no_axis(shape, axis), how_axes_are_counted);
  AxisView view{.length = shape[axis]};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < axis) view.outer *= shape[i];
    if (i > axis) view.inner *= shape[i];
  }
  return view;
}

void refuse(const std::string& problem, const std::string& remedy) {
  throw comm::AgreedError(ExitCode::usage, problem, remedy);
}

void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis) {
  for (Shape shape : shapes) {
    Shape first = shapes.front();
    if (axis && (*axis >= shape.size() || *axis >= first.size())) {
      refuse(no_axis(*axis >= shape.size() ? shape : first, *axis), how_axes_are_counted);
    }
    if (axis) shape[*axis] = first[*axis] = 0;
    if (shape == first) continue;
    refuse("replicas hold shapes " + to_text(shapes.front()) + " and " + to_text(shape) +
               (axis ? " (0: any length)" : ""),
           "give values of one shape");
  }
}

Shape take_shape(std::string_view& rest) {
  std::uint64_t axes = 0;
  std::memcpy(&axes, rest.data(), sizeof(axes));
  rest.remove_prefix(sizeof(axes));
  std::vector<std::uint64_t> lengths(axes);
  if (axes > 0) std::memcpy(lengths.data(), rest.data(), axes * sizeof(std::uint64_t));
  rest.remove_prefix(axes * sizeof(std::uint64_t));
  return {lengths.begin(), lengths.end()};
}

std::string take_text(std::string_view& rest) {
  const std::size_t length = take_shape(rest).front();
  std::string text(rest.substr(0, length));
  rest.remove_prefix(length);
  return text;
}

std::string bits_of(const std::string& packed) { return to_hex(hash_of(packed)); }

}  // namespace lockstep::collective

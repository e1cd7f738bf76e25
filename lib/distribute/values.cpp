#include "lockstep/distribute/values.hpp"

#include <cstring>

namespace lockstep::collective {
std::string pack(const Shape& shape, const void* values, std::size_t bytes) {
  std::vector<std::uint64_t> head = {shape.size()};
  head.insert(head.end(), shape.begin(), shape.end());
  std::string packed(reinterpret_cast<const char*>(head.data()), head.size() * sizeof(head[0]));
  if (bytes > 0) packed.append(static_cast<const char*>(values), bytes);
  return packed;
}

void refuse(const std::string& problem, const std::string& remedy) {
  throw comm::AgreedError(ExitCode::usage, problem, remedy);
}

namespace {

/// Throws the error of view_axis as an AgreedError.
void require_axis(const Shape& shape, std::size_t axis) {
  try {
    sharding::view_axis(shape, axis);
  } catch (const ConfigError& error) {
    throw comm::AgreedError(error.code(), error.what());
  }
}

}  // namespace

void require_alike(const std::vector<Shape>& shapes, std::optional<std::size_t> axis) {
  for (Shape shape : shapes) {
    Shape first = shapes.front();
    if (axis) {
      require_axis(shape, *axis);
      require_axis(first, *axis);
      shape[*axis] = first[*axis] = 0;
    }
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

}  // namespace lockstep::collective

#include "lockstep/distribute/tensor.hpp"

#include <limits>

#include "lockstep/distribute/tensor_math.hpp"

namespace lockstep {
std::size_t elements_of(const Shape& shape) noexcept {
  std::size_t product = 1;
  bool overflows = false;
  for (const std::size_t length : shape) {
    overflows |= __builtin_mul_overflow(product, length, &product);
  }
  const bool is_empty = contains(shape, std::size_t{0});
  return overflows && !is_empty ? std::numeric_limits<std::size_t>::max() : product;
}

std::string to_text(const Shape& shape) { return "(" + joined(shape) + ")"; }

std::string to_text(const std::string& text) {
  const bool readable = is_utf8(text);
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !readable)) {
      constexpr const char* digits = "0123456789abcdef";
      quoted += {'\\', 'x', digits[byte >> 4U], digits[byte & 0xFU]};
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

void structure::require_same_rows(const Shape& a, const Shape& b) {
  if (a.size() == b.size() && !a.empty() && std::equal(a.begin() + 1, a.end(), b.begin() + 1)) {
    return;
  }
  throw DataError("batches of shapes " + to_text(a) + " and " + to_text(b) +
                      " (axis 0 counts examples) do not make one batch",
                  "give all elements of a data set one shape");
}

void structure::require_same_shape(const Shape& first, const Shape& shape, std::size_t number) {
  if (shape == first) return;
  throw DataError("element " + std::to_string(number) + " of a batch has shape " + to_text(shape) +
                      ", those before it have " + to_text(first),
                  "give all elements of a data set one shape");
}

std::string to_text(const TensorSpec& spec) {
  const auto length_text = [](const auto& length) {
    return length ? std::to_string(*length) : "?";
  };
  return spec.type + " (" + joined(spec.shape, ", ", length_text) + ")";
}

std::size_t sharding::axis_from_0(std::ptrdiff_t axis, std::size_t axes) noexcept {
  const auto count = static_cast<std::ptrdiff_t>(axes);
  return static_cast<std::size_t>(axis < 0 && axis + count >= 0 ? axis + count : axis);
}

sharding::AxisView sharding::view_axis(const Shape& shape, std::size_t axis) {
  if (axis >= shape.size()) {
    throw ConfigError("shape " + to_text(shape) + " has no axis " +
                          std::to_string(static_cast<std::ptrdiff_t>(axis)),
                      "axes are counted from 0 for the first one, or from -1 for the last one");
  }
  AxisView view{.length = shape[axis]};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < axis) view.outer *= shape[i];
    if (i > axis) view.inner *= shape[i];
  }
  return view;
}

}  // namespace lockstep

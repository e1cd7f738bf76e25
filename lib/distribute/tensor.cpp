#include "lockstep/distribute/tensor.hpp"

#include <limits>

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

}  // namespace lockstep

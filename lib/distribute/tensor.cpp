#include "lockstep/distribute/tensor.hpp"

namespace lockstep {
std::size_t elements_of(const Shape& shape) noexcept {
  std::size_t product = 1;
  for (const std::size_t length : shape) product *= length;
  return product;
}

std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

void structure::require_same_rows(const Shape& a, const Shape& b) {
  if (a.size() == b.size() && !a.empty() && std::equal(a.begin() + 1, a.end(), b.begin() + 1)) {
    return;
  }
  throw DataError("elements of shapes " + to_text(a) + " and " + to_text(b) +
                      " (axis 0 counts examples) do not make one batch",
                  "give all elements of a data set one shape");
}

std::string to_text(const TensorSpec& spec) {
  std::string text;
  for (const auto& length : spec.shape) {
    text += (text.empty() ? "" : ", ") + (length ? std::to_string(*length) : "?");
  }
  return spec.type + " (" + text + ")";
}

}  // namespace lockstep

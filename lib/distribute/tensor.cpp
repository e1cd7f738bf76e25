#include "lib/distribute/tensor.hpp"

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

}  // namespace lockstep

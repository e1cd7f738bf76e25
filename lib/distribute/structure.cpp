#include "lib/distribute/structure.hpp"

namespace lockstep {

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

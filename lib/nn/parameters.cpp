#include "lockstep/nn/parameters.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/range.hpp"

namespace lockstep::nn {
namespace {

/// Sets the offsets; returns the length of the block.
std::size_t lay_out(std::vector<ParameterSpec>& tensors, std::size_t slices) {
  std::size_t at = 0;
  for (ParameterSpec& tensor : tensors) {
    tensor.offset = at;
    at += round_up(tensor.stored, line_floats);
  }
  return round_up(at, line_floats * slices);
}

}  // namespace

template <class Real>
ParameterLayout<Real>::ParameterLayout(std::vector<ParameterSpec> tensors,
                                       const Products<Real>& products, std::size_t slices)
    : tensors_(std::move(tensors)), products_(&products), length_(lay_out(tensors_, slices)) {}

template <class Real>
std::vector<Real> ParameterLayout<Real>::logical(std::span<const Real> block,
                                                 std::size_t tensor) const {
  const ParameterSpec& t = tensors_[tensor];
  const auto values = stored(block, tensor);
  std::vector<Real> result(t.size());
  if (t.vector) {
    std::copy_n(values.begin(), t.size(), result.begin());
  } else {
    products_->load(values, {result.data(), t.rows, t.cols});
  }
  return result;
}

template <class Real>
void ParameterLayout<Real>::set_logical(std::span<Real> block, std::size_t tensor,
                                        std::span<const Real> logical) const {
  const ParameterSpec& t = tensors_[tensor];
  const auto values = stored(block, tensor);
  if (t.vector) {
    std::copy(logical.begin(), logical.end(), values.begin());
  } else {
    products_->store({logical.data(), t.rows, t.cols}, values);
  }
}

template <class Real>
void ParameterLayout<Real>::set_from_whole(std::span<Real> block, std::size_t tensor,
                                           std::span<const Real> whole) const {
  const ParameterSpec& t = tensors_[tensor];
  if (!t.cut) return set_logical(block, tensor, whole);
  std::vector<Real> part;
  part.reserve(t.size());
  for (std::size_t row = 0; row < t.rows; ++row) {
    const auto values = whole.subspan((t.cut->first_row + row) * t.cut->cols + t.cut->first_col);
    part.insert(part.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(t.cols));
  }
  set_logical(block, tensor, part);
}

template <class Real>
ParameterBlock<Real>::ParameterBlock(std::vector<ParameterSpec> tensors,
                                     const Products<Real>& products, std::size_t slices,
                                     std::pmr::memory_resource& memory)
    : layout_(std::move(tensors), products, slices),
      values_(layout_.length(), memory),
      gradients_(layout_.length(), memory) {}

template <class Real>
std::size_t ParameterBlock<Real>::parameters() const noexcept {
  return std::transform_reduce(tensors().begin(), tensors().end(), std::size_t{0}, std::plus<>(),
                               [](const ParameterSpec& tensor) { return tensor.size(); });
}

void WeightsHash::add(const ParameterSpec& tensor, std::span<const float> values) {
  hash_.add(tensor.name);
  hash_.add(std::uint64_t{tensor.whole_rows()});
  hash_.add(std::uint64_t{tensor.whole_cols()});
  hash_.add(values);
}

std::uint64_t weights_hash(const ParameterBlock<float>& block) {
  WeightsHash hash;
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    hash.add(block.tensors()[i], block.logical_value(i));
  }
  return hash.value();
}

template class ParameterLayout<float>;
template class ParameterLayout<double>;
template class ParameterBlock<float>;
template class ParameterBlock<double>;

}  // namespace lockstep::nn

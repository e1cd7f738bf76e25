#include "lib/nn/parameters.hpp"

#include <numeric>
#include <utility>

namespace lockstep::nn {
namespace {

constexpr std::size_t padding = 16;  // elements: one cache line of floats

/// Sets the offsets; returns the length of a block.
std::size_t lay_out(std::vector<Tensor>& tensors) {
  std::size_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.offset = at;
    at += (tensor.size() + padding - 1) / padding * padding;
  }
  return at;
}

}  // namespace

template <class Real>
ParameterBlock<Real>::ParameterBlock(std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), values_(lay_out(tensors_)), gradients_(values_.size()) {}

template <class Real>
std::size_t ParameterBlock<Real>::parameters() const noexcept {
  return std::transform_reduce(tensors_.begin(), tensors_.end(), std::size_t{0}, std::plus<>(),
                               [](const Tensor& tensor) { return tensor.size(); });
}

std::uint64_t weights_hash(const ParameterBlock<float>& block) {
  Hash hash;
  for (const Tensor& tensor : block.tensors()) {
    hash.add(tensor.name);
    hash.add(std::uint64_t{tensor.rows});
    hash.add(std::uint64_t{tensor.cols});
    hash.add(block.values().subspan(tensor.offset, tensor.size()));
  }
  return hash.value();
}

template class ParameterBlock<float>;
template class ParameterBlock<double>;

}  // namespace lockstep::nn

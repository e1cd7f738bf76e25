#include "lib/train/whole_weights.hpp"

#include <algorithm>

namespace lockstep::train {

// A byte of the whole is zero on all ranks but the one that keeps it, so the greatest is that
// one's.
std::vector<float> whole_tensor(const nn::ParameterBlock<float>& block, std::size_t index,
                                const Groups& groups) {
  const nn::Tensor& tensor = block.tensors()[index];
  std::vector<float> part = block.logical_value(index);
  if (groups.model == nullptr || !tensor.cut) return part;
  std::vector<float> whole(tensor.whole_size());
  for (std::size_t row = 0; row < tensor.rows; ++row) {
    std::copy_n(
        part.data() + row * tensor.cols, tensor.cols,
        whole.data() + (tensor.cut->first_row + row) * tensor.cut->cols + tensor.cut->first_col);
  }
  const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(whole.data()),
                                      whole.size() * sizeof(float));
  groups.model->all_reduce(bytes, comm::Op::max);
  return whole;
}

std::uint64_t whole_hash(const nn::ParameterBlock<float>& block, const Groups& groups) {
  nn::WeightsHash hash;
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    hash.add(block.tensors()[i], whole_tensor(block, i, groups));
  }
  return hash.value();
}

std::unique_ptr<nn::Network<float>> whole_network(const nn::Network<float>& network,
                                                  Products<float>& products, const Groups& groups) {
  const bool first_replica = groups.batch.rank() == 0;  // the others hold the same
  if (groups.model == nullptr || !first_replica) return nullptr;
  std::unique_ptr<nn::Network<float>> whole;
  if (groups.model->rank() == 0) {
    whole = std::make_unique<nn::Network<float>>(network.shape(), 0, products);
    whole->set_loss(network.loss_function());
  }
  const auto& block = network.parameters();
  for (std::size_t i = 0; i < block.tensors().size(); ++i) {
    const auto tensor = whole_tensor(block, i, groups);
    if (whole) whole->parameters().set_logical_value(i, tensor);
  }
  return whole;
}

}  // namespace lockstep::train

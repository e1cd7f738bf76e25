// softmax, log_softmax, softmax_cross_entropy and argmax: operations on whole rows.
#include <algorithm>
#include <string>

#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/values.hpp"
#include "lockstep/nn/loss.hpp"

namespace lockstep {
namespace {

// Complete, and with the last axis whole on each rank. Collective.
template <MeshNumber T>
DTensor<T> with_whole_rows(const char* operation, const DTensor<T>& tensor) {
  if (tensor.shape().empty() || tensor.shape().back() == 0) {
    collective::refuse(std::string(operation) + ": shape " + to_text(tensor.shape()) +
                           " has no elements along a last axis",
                       "give a tensor [..., c] with c of at least 1");
  }
  const auto last = tensor.shape().size() - 1;
  return tensor.relayout(tensor.layout().summed().with_axis(last, Layout::unsharded));
}

// function(row, row of the result) for each row of the last axis, on this rank's piece. Local.
template <Differentiable T, class Function>
DTensor<T> by_rows(const DTensor<T>& z, Function function) {
  const auto& piece = z.unpack();
  const std::size_t length = piece.shape().back();
  std::vector<T> values(piece.values().size());
  for (std::size_t at = 0; at < values.size(); at += length) {
    function(piece.values().subspan(at, length), std::span<T>(values).subspan(at, length));
  }
  return sharding::Maker::make(z.mesh(), z.layout(), z.shape(),
                               Tensor<T>(piece.shape(), std::move(values)));
}

// [..., m] as [..., m, 1]. Local.
template <Differentiable T>
DTensor<T> as_column(const DTensor<T>& tensor) {
  Shape shape = tensor.shape();
  shape.push_back(1);
  return reshape(tensor, shape);
}

// The sum of each row, [..., 1]. Local if rows are whole.
template <Differentiable T>
DTensor<T> row_sums(const DTensor<T>& tensor) {
  return as_column(reduce_sum(tensor, -1));
}

template <Differentiable T>
DTensor<T> probabilities_of(const DTensor<T>& z) {
  return by_rows(z, [](std::span<const T> row, std::span<T> out) { nn::probabilities(row, out); });
}

}  // namespace

template <Differentiable T>
DTensor<T> softmax(const DTensor<T>& logits) {
  const auto z = with_whole_rows("softmax", logits);
  const auto y = probabilities_of(z);
  return sharding::on_tape("softmax", y, sharding::input(z, [y](const auto& gradient) {
                             return y * (gradient - row_sums(gradient * y));
                           }));
}

template <Differentiable T>
DTensor<T> log_softmax(const DTensor<T>& logits) {
  const auto z = with_whole_rows("log_softmax", logits);
  const auto y = by_rows(z, [](std::span<const T> row, std::span<T> out) {
    // Less the greatest first: far from 0 the logarithm of the sum would be rounded away.
    const T greatest = *std::max_element(row.begin(), row.end());
    std::transform(row.begin(), row.end(), out.begin(), [&](T v) { return v - greatest; });
    const T normaliser = nn::log_sum_exp(std::span<const T>(out));
    for (T& value : out) value -= normaliser;
  });
  return sharding::on_tape("log_softmax", y, sharding::input(z, [z](const auto& gradient) {
                             return gradient - probabilities_of(z) * row_sums(gradient);
                           }));
}

template <Differentiable T>
DTensor<T> softmax_cross_entropy(const DTensor<T>& logits, const DTensor<std::int32_t>& labels) {
  if (logits.shape().size() != 2 || labels.shape() != Shape{logits.shape()[0]}) {
    collective::refuse("softmax_cross_entropy: logits of shape " + to_text(logits.shape()) +
                           " and labels of shape " + to_text(labels.shape()),
                       "give logits [m, c] and labels [m]");
  }
  sharding::require_one_mesh("softmax_cross_entropy", logits.mesh(), labels.mesh());
  const auto z = with_whole_rows("softmax_cross_entropy", logits);
  const auto rows = z.layout().without_axis(1);
  const auto targets = labels.relayout(rows);
  const auto& piece = z.unpack();
  const std::size_t classes = z.shape()[1];
  comm::together(z.mesh().communicator(), [&] {
    nn::require_labels(targets.unpack().values(), piece.rows(), classes,
                       rows.owned(z.shape()[0], 0, z.mesh().rank()).begin);
  });
  std::vector<nn::ExampleResult> results(piece.rows());
  std::vector<T> slopes(piece.values().size());
  nn::softmax_cross_entropy<T>({piece.values().data(), piece.rows(), classes},
                               targets.unpack().values(), results,
                               {slopes.data(), piece.rows(), classes});
  std::vector<T> losses;
  losses.reserve(results.size());
  for (const auto& result : results) losses.push_back(static_cast<T>(result.loss));
  const auto slope = sharding::Maker::make(z.mesh(), z.layout(), z.shape(),
                                           Tensor<T>(piece.shape(), std::move(slopes)));
  return sharding::on_tape(
      "softmax_cross_entropy",
      sharding::Maker::make(z.mesh(), rows, Shape{z.shape()[0]}, Tensor<T>(std::move(losses))),
      sharding::input(z, [slope](const auto& gradient) { return slope * as_column(gradient); }));
}

template <Differentiable T>
DTensor<std::int32_t> argmax(const DTensor<T>& tensor) {
  const auto whole = with_whole_rows("argmax", tensor);
  const std::size_t last = whole.shape().size() - 1;
  const std::size_t length = whole.shape().back();
  const auto values = whole.unpack().values();
  std::vector<std::int32_t> indices;
  for (std::size_t at = 0; at < values.size(); at += length) {
    indices.push_back(static_cast<std::int32_t>(nn::predicted_class(values.subspan(at, length))));
  }
  const auto without_last = [](Shape shape) {
    shape.pop_back();
    return shape;
  };
  return sharding::Maker::make(
      whole.mesh(), whole.layout().without_axis(last), without_last(whole.shape()),
      Tensor<std::int32_t>(without_last(whole.unpack().shape()), std::move(indices)));
}

#define LOCKSTEP_INSTANTIATE(T)                                                               \
  template DTensor<T> softmax(const DTensor<T>&);                                             \
  template DTensor<T> log_softmax(const DTensor<T>&);                                         \
  template DTensor<T> softmax_cross_entropy(const DTensor<T>&, const DTensor<std::int32_t>&); \
  template DTensor<std::int32_t> argmax(const DTensor<T>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

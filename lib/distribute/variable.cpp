#include "lockstep/distribute/variable.hpp"

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/distribute/operations.hpp"
#include "lockstep/distribute/values.hpp"

namespace lockstep {
namespace {

// Compares the arguments of an initial value on all ranks. Collective.
void agree_on_initial(Mesh& mesh, const Shape& shape, const Layout& layout,
                      const std::string& values) {
  auto& comm = mesh.communicator();
  comm::require_equal(comm, "an initial value",
                      {{"shape", to_text(shape)}, {"layout", to_text(layout)}, {"values", values}},
                      "make the same tensor on every rank");
  if (layout.mesh() != mesh.shape() || layout.rank() != shape.size() || layout.is_partial()) {
    collective::refuse(
        "an initial value of shape " + to_text(shape) + " on mesh [" + to_text(mesh.shape()) +
            "] with " + to_text(layout),
        "make the layout with this mesh, one spec for each axis, without partial sums");
  }
}

// The indices that this rank owns of each axis.
std::vector<Range> owned_ranges(const Mesh& mesh, const Shape& shape, const Layout& layout) {
  std::vector<Range> ranges;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    ranges.push_back(layout.owned(shape[axis], axis, mesh.rank()));
  }
  return ranges;
}

// Calls draw(first, values) for each row of this rank's piece: `first` is the index of the row's
// first element in the whole tensor, row-major.
template <class Draw>
std::vector<float> drawn(const Mesh& mesh, const Shape& shape, const Layout& layout, Draw draw) {
  const auto ranges = owned_ranges(mesh, shape, layout);
  std::vector<float> piece(elements_of(layout.local_shape(shape, mesh.rank())));
  const std::size_t length = ranges.empty() ? 1 : ranges.back().size();
  for (std::size_t at = 0; at < piece.size(); at += length) {
    std::size_t rest = at / length;
    std::size_t first = ranges.empty() ? 0 : ranges.back().begin;
    std::size_t stride = ranges.empty() ? 1 : shape.back();
    for (std::size_t axis = ranges.size(); axis-- > 1; rest /= ranges[axis - 1].size()) {
      first += (ranges[axis - 1].begin + rest % ranges[axis - 1].size()) * stride;
      stride *= shape[axis - 1];
    }
    draw(first, std::span(piece).subspan(at, length));
  }
  return piece;
}

template <Differentiable T>
DTensor<T> uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, float low, float high,
                   const Layout& layout) {
  const auto piece = drawn(mesh, shape, layout, [&](std::size_t first, std::span<float> values) {
    nn::stateless_uniform(seed, low, high, values, first);
  });
  return sharding::Maker::make(
      mesh, layout, shape,
      Tensor<T>(layout.local_shape(shape, mesh.rank()), {piece.begin(), piece.end()}));
}

std::string seed_text(nn::SeedPair seed) {
  return "seed " + std::to_string(seed.first) + ", " + std::to_string(seed.second);
}

// The value in this layout, with a piece of its own: tapes tell tensors apart by their pieces, so
// two variables must not share one.
template <Differentiable T>
DTensor<T> own_copy(const DTensor<T>& value, const Layout& layout) {
  const auto moved = value.relayout(layout);
  return sharding::Maker::make(moved.mesh(), layout, moved.shape(), Tensor<T>(moved.unpack()));
}

template <Differentiable T>
void require_shape(const DVariable<T>& variable, const DTensor<T>& value) {
  if (value.shape() == variable.shape()) return;
  collective::refuse("variable \"" + variable.name() + "\" of shape " + to_text(variable.shape()) +
                         " is assigned a tensor of shape " + to_text(value.shape()),
                     "assign a tensor of the variable's shape");
}

}  // namespace

template <Differentiable T>
DVariable<T>::DVariable(std::string name, const DTensor<T>& value)
    : DTensor<T>(own_copy(value, value.layout().summed())), name_(std::move(name)) {}

template <Differentiable T>
void DVariable<T>::assign(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  require_shape(*this, value);
  static_cast<DTensor<T>&>(*this) = own_copy(value, this->layout());
}

template <Differentiable T>
void DVariable<T>::assign_add(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  set(add(*this, value));
}

template <Differentiable T>
void DVariable<T>::assign_sub(const DTensor<T>& value) {
  const sharding::RecordingPause pause;
  set(subtract(*this, value));
}

template <Differentiable T>
void DVariable<T>::set(const DTensor<T>& result) {
  require_shape(*this, result);
  static_cast<DTensor<T>&>(*this) = result.relayout(this->layout());
}

template <Differentiable T>
DTensor<T> filled(Mesh& mesh, const Shape& shape, T value, const Layout& layout) {
  agree_on_initial(mesh, shape, layout, shortest(value));
  const Shape local = layout.local_shape(shape, mesh.rank());
  return sharding::Maker::make(mesh, layout, shape,
                               Tensor<T>(local, std::vector<T>(elements_of(local), value)));
}

template <Differentiable T>
DTensor<T> stateless_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, float low,
                             float high, const Layout& layout) {
  agree_on_initial(mesh, shape, layout,
                   seed_text(seed) + ", from " + shortest(low) + " to " + shortest(high));
  return uniform<T>(mesh, shape, seed, low, high, layout);
}

template <Differentiable T>
DTensor<T> glorot_uniform(Mesh& mesh, const Shape& shape, nn::SeedPair seed, const Layout& layout) {
  agree_on_initial(mesh, shape, layout, seed_text(seed));
  if (shape.size() != 2) {
    collective::refuse("glorot_uniform: shape " + to_text(shape),
                       "give a matrix [inputs, outputs]");
  }
  const float limit = nn::glorot_limit(shape[0], shape[1]);
  return uniform<T>(mesh, shape, seed, -limit, limit, layout);
}

#define LOCKSTEP_INSTANTIATE(T)                                                          \
  template class DVariable<T>;                                                           \
  template DTensor<T> filled(Mesh&, const Shape&, T, const Layout&);                     \
  template DTensor<T> stateless_uniform(Mesh&, const Shape&, nn::SeedPair, float, float, \
                                        const Layout&);                                  \
  template DTensor<T> glorot_uniform(Mesh&, const Shape&, nn::SeedPair, const Layout&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
#undef LOCKSTEP_INSTANTIATE

}  // namespace lockstep

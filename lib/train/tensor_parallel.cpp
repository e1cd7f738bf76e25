#include "lockstep/train/tensor_parallel.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/integrity.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t vector_width = 16;
constexpr std::size_t min_rows = 16;      // minimum rows of a group, for full tiles
constexpr std::size_t groups_a_rank = 8;  // ranks idle about 1/8 of the time

enum class Sharding { columns, gathered_columns, rows };

/// Buffers that ranks of one group exchange.
template <class Real>
class SharedBuffer {
 public:
  explicit SharedBuffer(comm::Communicator& comm) : comm_(comm) {}

  std::span<Real> get(std::size_t count) {
    if (buffer_.size() < count) buffer_ = AlignedBuffer<Real>(count, comm_.memory());
    return buffer_.span().first(count);
  }

 private:
  comm::Communicator& comm_;
  AlignedBuffer<Real> buffer_;
};

template <class Real>
class ShardedDense final : public nn::Layer<Real> {
 public:
  ShardedDense(const nn::Dense& spec, std::size_t inputs, Sharding sharding,
               comm::Communicator& model)
      : nn::Layer<Real>(sharding == Sharding::rows ? own(inputs, model).size() : inputs,
                        sharding == Sharding::columns ? own(spec.width, model).size() : spec.width),
        whole_inputs_(inputs),
        whole_outputs_(spec.width),
        in_(sharding == Sharding::rows ? own(inputs, model) : Range{0, inputs}),
        out_(sharding == Sharding::rows ? Range{0, spec.width} : own(spec.width, model)),
        activation_(spec.activation),
        sharding_(sharding),
        model_(model),
        sent_(model),
        received_(model) {}

  Activation activation() const noexcept override { return activation_; }

  std::vector<nn::ParameterSpec> tensors(const std::string& prefix,
                                         const Products<Real>& products) const override {
    const bool keeps_bias = sharding_ != Sharding::rows || first();
    nn::ParameterSpec weight = {prefix + ".weight", in_.size(), out_.size()};
    weight.stored = products.weight_size(in_.size(), out_.size());
    weight.start = nn::Start::glorot(whole_inputs_, whole_outputs_);
    weight.cut = {whole_inputs_, whole_outputs_, in_.begin, out_.begin};
    nn::ParameterSpec bias = {prefix + ".bias", 1, keeps_bias ? out_.size() : 0, true};
    bias.stored = products.bias_size(bias.cols);
    bias.cut = {1, whole_outputs_, 0, out_.begin};
    return {weight, bias};
  }

  void forward(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) override {
    if (sharding_ == Sharding::columns) {
      return pass.products.forward(x, weights(pass), activation_, y);
    }
    if (sharding_ == Sharding::gathered_columns) return forward_gathered(pass, x, y);
    go_on_over_ranks(y, [&](std::size_t begin, std::size_t count, Output output) {
      pass.products.forward(nn::rows_of(x, begin, count), weights(pass),
                            last() ? activation_ : Activation::identity,
                            nn::rows_of(y, begin, count), output);
    });
  }

  void backward_input(const nn::Pass<Real>& pass, Matrix<const Real> dz, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx) override {
    if (sharding_ == Sharding::rows) {
      return pass.products.backward_input(dz, weights(pass), x, below, dx);
    }
    const auto mine = own_columns(pass, dz);
    go_on_over_ranks(dx, [&](std::size_t begin, std::size_t count, Output output) {
      pass.products.backward_input(
          nn::rows_of(mine, begin, count), weights(pass), nn::rows_of(x, begin, count),
          last() ? below : Activation::identity, nn::rows_of(dx, begin, count), output);
    });
  }

  void weight_gradients(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<const Real> dz,
                        std::size_t leaf, const nn::GradientSlice<Real>& out) override {
    const auto mine = own_columns(pass, dz);
    out.with(pass.tensor, [&](Range slice, std::span<Real> dw) {
      pass.products.backward_weights(x, mine, leaf, slice, dw);
    });
    out.with(pass.tensor + 1, [&](Range slice, std::span<Real> db) {
      pass.products.backward_bias(mine, leaf, slice, db);
    });
  }

 private:
  static Range own(std::size_t width, const comm::Communicator& model) {
    return shard_of(width, model.rank(), model.size());
  }
  bool first() const noexcept { return model_.rank() == 0; }
  bool last() const noexcept { return model_.rank() + 1 == model_.size(); }

  LayerWeights<Real> weights(const nn::Pass<Real>& pass) const {
    return {in_.size(), out_.size(), pass.block.value(pass.tensor),
            pass.block.value(pass.tensor + 1)};
  }

  /// The columns of dz for this rank's weights.
  Matrix<const Real> own_columns(const nn::Pass<Real>& pass, Matrix<const Real> dz) {
    if (sharding_ != Sharding::gathered_columns) return dz;
    const auto copy = pass.scratch.get(nn::Scratch<Real>::columns, dz.rows * out_.size());
    const Matrix<Real> mine = {copy.data(), dz.rows, out_.size()};
    for (std::size_t i = 0; i < dz.rows; ++i) {
      std::copy_n(dz.data + i * dz.cols + out_.begin, out_.size(), mine.data + i * mine.cols);
    }
    return {mine.data, mine.rows, mine.cols};
  }

  /// All-gathers blocks of equal length, as wide as the widest shard.
  void forward_gathered(const nn::Pass<Real>& pass, Matrix<const Real> x, Matrix<Real> y) {
    const auto ranks = static_cast<std::size_t>(model_.size());
    std::size_t widest = 0;
    for (int rank = 0; rank < model_.size(); ++rank) {
      widest = std::max(widest, shard_of(whole_outputs_, rank, model_.size()).size());
    }
    const std::size_t block = y.rows * widest;
    const auto all = sent_.get(ranks * block);
    Real* const mine = all.data() + static_cast<std::size_t>(model_.rank()) * block;
    pass.products.forward(x, weights(pass), activation_, {mine, y.rows, out_.size()});
    model_.all_gather(all);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Range part = shard_of(whole_outputs_, static_cast<int>(rank), model_.size());
      for (std::size_t i = 0; i < y.rows; ++i) {
        std::copy_n(all.data() + rank * block + i * part.size(), part.size(),
                    y.data + i * y.cols + part.begin);
      }
    }
  }

  /// Fills `sums` on every rank: compute(first row, rows, chain) adds this rank's part to rows of
  /// it. In round t rank r computes group t - r, concurrently with the other ranks.
  template <class Compute>
  void go_on_over_ranks(Matrix<Real> sums, Compute compute) {
    const auto rank = static_cast<std::size_t>(model_.rank());
    const auto ranks = static_cast<std::size_t>(model_.size());
    if (sums.rows == 0) return;
    const std::size_t max = std::max(min_rows, sums.rows / (groups_a_rank * ranks));
    const std::size_t groups = (sums.rows + max - 1) / max;
    const std::size_t values = max * sums.cols;
    const auto sent = sent_.get(values);
    const auto received = received_.get(values);
    for (std::size_t round = 0; round + 1 < groups + ranks; ++round) {
      const bool busy = round >= rank && round - rank < groups;
      const std::size_t begin = busy ? (round - rank) * max : 0;
      const std::size_t count = busy ? std::min(max, sums.rows - begin) : 0;
      Real* const rows = sums.data + begin * sums.cols;
      if (busy && !first()) std::copy_n(received.data(), count * sums.cols, rows);
      if (busy) compute(begin, count, first() ? Output::overwrite : Output::accumulate);
      if (round + 2 == groups + ranks) break;  // the last rank's last group
      std::copy_n(rows, count * sums.cols, sent.data());
      model_.shift(std::span<const Real>(sent), received);
    }
    model_.broadcast(sums.flat(), model_.size() - 1);
  }

  std::size_t whole_inputs_;
  std::size_t whole_outputs_;
  Range in_;   // of the whole layer's inputs
  Range out_;  // of its outputs
  Activation activation_;
  Sharding sharding_;
  comm::Communicator& model_;
  SharedBuffer<Real> sent_;
  SharedBuffer<Real> received_;
};

void require_width(std::size_t layer, std::size_t width, int ranks) {
  if (width >= static_cast<std::size_t>(ranks)) return;
  throw ConfigError("mesh model=" + std::to_string(ranks) + ": layer " + std::to_string(layer + 1) +
                        " has " + std::to_string(width) + " outputs, too few to share out",
                    "use a smaller model dimension, or wider layers");
}

}  // namespace

Range shard_of(std::size_t width, int rank, int ranks) noexcept {
  const auto parts = static_cast<std::size_t>(ranks);
  const std::size_t unit = width >= vector_width * parts ? vector_width : 1;
  const std::size_t units = (width + unit - 1) / unit;
  const auto begin = [&](std::size_t part) { return std::min(width, units * part / parts * unit); };
  return {begin(static_cast<std::size_t>(rank)), begin(static_cast<std::size_t>(rank) + 1)};
}

template <class Real>
std::vector<nn::NumberedLayer<Real>> make_sharded_layers(const nn::NetworkShape& shape,
                                                         comm::Communicator& model) {
  auto layers = nn::make_layers<Real>(shape);
  const auto sizes = shape.sizes();
  const auto uses = nn::uses_of_values(shape, sizes);
  const auto dense = [&](std::size_t i) {
    return i < layers.size() ? std::get_if<nn::Dense>(&shape.layers[layers[i].number].function)
                             : nullptr;
  };
  const auto feeds_only_next = [&](std::size_t i) {
    const std::size_t value = layers[i].number + 1;
    return dense(i + 1) != nullptr && sizes[layers[i + 1].number].from[0] == value &&
           uses[value] == 1;
  };
  bool after_columns = false;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const nn::Dense* spec = dense(i);
    if (spec == nullptr) continue;
    require_width(layers[i].number, spec->width, model.size());
    const auto sharding = after_columns        ? Sharding::rows
                          : feeds_only_next(i) ? Sharding::columns
                                               : Sharding::gathered_columns;
    after_columns = sharding == Sharding::columns;
    layers[i].layer = std::make_unique<ShardedDense<Real>>(
        *spec, sizes[layers[i].number].inputs[0].size(), sharding, model);
  }
  return layers;
}

std::vector<nn::NumberedLayer<float>> make_layers_of(const nn::NetworkShape& shape,
                                                     const Groups& groups) {
  if (groups.model == nullptr) return {};
  return make_sharded_layers<float>(shape, *groups.model);
}

template std::vector<nn::NumberedLayer<float>> make_sharded_layers(const nn::NetworkShape&,
                                                                   comm::Communicator&);
template std::vector<nn::NumberedLayer<double>> make_sharded_layers(const nn::NetworkShape&,
                                                                    comm::Communicator&);

std::unique_ptr<Mesh> make_mesh(comm::Communicator& ranks, const MeshSizes& sizes) {
  return std::make_unique<Mesh>(
      ranks, std::vector<MeshDimension>{{"batch", static_cast<int>(sizes.batch)},
                                        {"model", static_cast<int>(sizes.model)}});
}

Groups::Groups(Mesh& mesh)
    : all(mesh.communicator()),
      batch(mesh.communicator("batch")),
      model(mesh.size("model") > 1 ? &mesh.communicator("model") : nullptr) {}

void Groups::fail_together(const std::function<void()>& work) const {
  if (model == nullptr) return work();
  struct Failure {
    int code = 0;  // 0: none
    bool is_fault = false;
    std::uint64_t step = 0;
    std::uint64_t good_steps = 0;
  };
  std::vector<Failure> failures(static_cast<std::size_t>(model->size()));
  Failure& mine = failures[static_cast<std::size_t>(model->rank())];
  std::string text;
  try {
    work();
  } catch (const FaultFound& fault) {
    mine = {static_cast<int>(fault.code()), true, fault.step(), fault.good_steps()};
    text = fault.what();
  } catch (const comm::AgreedError& error) {
    mine.code = static_cast<int>(error.code());
    text = error.what();
  }
  if (model->all_agree(mine.code == 0)) return;
  const auto blocks = std::as_writable_bytes(std::span(failures));
  model->all_gather(std::span(&blocks, 1));
  const auto texts = comm::gather_text(*model, text);
  const auto first = std::find_if(failures.begin(), failures.end(),
                                  [](const Failure& failure) { return failure.code != 0; });
  const comm::AgreedError error(static_cast<ExitCode>(first->code),
                                texts[static_cast<std::size_t>(first - failures.begin())]);
  if (!first->is_fault) throw error;
  throw FaultFound(error, first->step, std::nullopt, first->good_steps);
}

// Each byte is zero on all ranks except the one that holds it, so the maximum is that rank's byte.
std::vector<float> whole_tensor(const nn::ParameterLayout<float>& layout,
                                std::span<const float> block, std::size_t index,
                                const Groups& groups) {
  const nn::ParameterSpec& tensor = layout.tensors()[index];
  std::vector<float> part = layout.logical(block, index);
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
    hash.add(block.tensors()[i], whole_tensor(block.layout(), block.values(), i, groups));
  }
  return hash.value();
}

}  // namespace lockstep::train

#include "lockstep/train/tensor_parallel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/train/integrity.hpp"

namespace lockstep::train {
namespace {

constexpr std::size_t vector_width = 16;
constexpr std::size_t pieces_a_rank = 8;  // ranks idle about 1/8 of the time

/// A result cut into pieces that ranks compute one after the other, as square as possible: a piece
/// takes the inputs of its rows and the weights of its columns, both of which should be few.
class Pieces {
 public:
  /// Cuts a matrix into about `wanted` pieces, or fewer where they would be too small.
  Pieces(std::size_t rows, std::size_t columns, std::size_t wanted) noexcept
      : rows_(rows), columns_(columns) {
    constexpr std::size_t row_unit = 16;     // full tiles
    constexpr std::size_t column_unit = 64;  // whole panels
    const auto whole = [](double length, std::size_t unit) {
      return static_cast<std::size_t>(std::ceil(length / static_cast<double>(unit))) * unit;
    };
    const double area =
        static_cast<double>(rows) * static_cast<double>(columns) / static_cast<double>(wanted);
    const double side = std::sqrt(area);
    height_ = std::min(rows, whole(side, row_unit));
    width_ = std::min(columns, whole(area / static_cast<double>(height_), column_unit));
    if (width_ < columns) return;
    height_ = std::min(rows, whole(area / static_cast<double>(width_), row_unit));
  }

  std::size_t count() const noexcept { return down() * ceil_divide(columns_, width_); }
  std::size_t most_values() const noexcept { return height_ * width_; }

  /// Those of the same columns follow each other: they take the same weights.
  Range rows_of(std::size_t piece) const noexcept { return cut(piece % down(), height_, rows_); }
  Range columns_of(std::size_t piece) const noexcept {
    return cut(piece / down(), width_, columns_);
  }

 private:
  std::size_t down() const noexcept { return ceil_divide(rows_, height_); }
  static Range cut(std::size_t index, std::size_t length, std::size_t end) noexcept {
    return {index * length, std::min(end, (index + 1) * length)};
  }

  std::size_t rows_;
  std::size_t columns_;
  std::size_t height_ = 0;  // of a piece; the last may be lower
  std::size_t width_ = 0;   // and narrower
};

/// Copies a piece of `matrix` to a message, one row after the other.
void pack(Matrix<const float> matrix, Range rows, Range columns, std::span<float> message) {
  auto out = message.begin();
  for (std::size_t i = rows.begin; i < rows.end; ++i) {
    out = std::copy_n(matrix.data + i * matrix.cols + columns.begin, columns.size(), out);
  }
}

void unpack(std::span<const float> message, Range rows, Range columns, Matrix<float> matrix) {
  const float* in = message.data();
  for (std::size_t i = rows.begin; i < rows.end; ++i, in += columns.size()) {
    std::copy_n(in, columns.size(), matrix.data + i * matrix.cols + columns.begin);
  }
}

/// Buffers that ranks of one group exchange.
class SharedBuffer {
 public:
  explicit SharedBuffer(comm::Communicator& comm) : comm_(comm) {}

  std::span<float> get(std::size_t count) {
    if (buffer_.size() < count) buffer_ = AlignedBuffer<float>(count, comm_.memory());
    return buffer_.span().first(count);
  }

 private:
  comm::Communicator& comm_;
  AlignedBuffer<float> buffer_;
};

class ShardedDense final : public nn::Layer<float> {
 public:
  ShardedDense(const nn::Dense& spec, std::size_t inputs, Sharding sharding,
               comm::Communicator& model)
      : nn::Layer<float>(
            sharding == Sharding::rows ? own(inputs, model).size() : inputs,
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
                                         const Products<float>& products) const override {
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

  void forward(const nn::Pass<float>& pass, Matrix<const float> x, Matrix<float> y) override {
    if (sharding_ == Sharding::columns) {
      return pass.products.forward(x, weights(pass), activation_, y);
    }
    if (sharding_ == Sharding::gathered_columns) return forward_gathered(pass, x, y);
    accumulate_over_ranks(y, [&](Range rows, const Part& part) {
      pass.products.forward(x.slice(rows), weights(pass),
                            last() ? activation_ : Activation::identity, y.slice(rows), part);
    });
  }

  void backward_input(const nn::Pass<float>& pass, Matrix<const float> dz, Matrix<const float> x,
                      Activation below, Matrix<float> dx) override {
    if (sharding_ == Sharding::rows) {
      return pass.products.backward_input(dz, weights(pass), x, below, dx);
    }
    const auto mine = own_columns(pass, dz);
    accumulate_over_ranks(dx, [&](Range rows, const Part& part) {
      pass.products.backward_input(mine.slice(rows), weights(pass), x.slice(rows),
                                   last() ? below : Activation::identity, dx.slice(rows), part);
    });
  }

  void weight_gradients(const nn::Pass<float>& pass, Matrix<const float> x, Matrix<const float> dz,
                        std::size_t leaf, const nn::GradientSlice<float>& out) override {
    const auto mine = own_columns(pass, dz);
    out.with(pass.tensor, [&](Range slice, std::span<float> dw) {
      pass.products.backward_weights(x, mine, leaf, slice, dw);
    });
    out.with(pass.tensor + 1, [&](Range slice, std::span<float> db) {
      pass.products.backward_bias(mine, leaf, slice, db);
    });
  }

 private:
  static Range own(std::size_t width, const comm::Communicator& model) {
    return shard_of(width, model.rank(), model.size());
  }
  bool first() const noexcept { return model_.rank() == 0; }
  bool last() const noexcept { return model_.rank() + 1 == model_.size(); }

  LayerWeights<float> weights(const nn::Pass<float>& pass) const {
    return {in_.size(), out_.size(), pass.block.value(pass.tensor),
            pass.block.value(pass.tensor + 1)};
  }

  /// The columns of dz for this rank's weights.
  Matrix<const float> own_columns(const nn::Pass<float>& pass, Matrix<const float> dz) {
    if (sharding_ != Sharding::gathered_columns) return dz;
    const auto copy = pass.scratch.get(nn::Scratch<float>::columns, dz.rows * out_.size());
    pack(dz, {0, dz.rows}, out_, copy);
    return {copy.data(), dz.rows, out_.size()};
  }

  /// All-gathers blocks of equal length, as wide as the widest shard.
  void forward_gathered(const nn::Pass<float>& pass, Matrix<const float> x, Matrix<float> y) {
    const auto ranks = static_cast<std::size_t>(model_.size());
    std::size_t widest = 0;
    for (int rank = 0; rank < model_.size(); ++rank) {
      widest = std::max(widest, shard_of(whole_outputs_, rank, model_.size()).size());
    }
    const std::size_t block = y.rows * widest;
    const auto all = sent_.get(ranks * block);
    float* const mine = all.data() + static_cast<std::size_t>(model_.rank()) * block;
    pass.products.forward(x, weights(pass), activation_, {mine, y.rows, out_.size()});
    model_.all_gather(all);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Range part = shard_of(whole_outputs_, static_cast<int>(rank), model_.size());
      unpack(all.subspan(rank * block, block), {0, y.rows}, part, y);
    }
  }

  /// Fills `sums` on every rank: compute(rows, part) adds this rank's terms to a piece of it. In
  /// round t rank r computes piece t - r, concurrently with the other ranks, and passes it on.
  template <class Compute>
  void accumulate_over_ranks(Matrix<float> sums, Compute compute) {
    if (sums.rows == 0) return;
    const auto rank = static_cast<std::size_t>(model_.rank());
    const auto ranks = static_cast<std::size_t>(model_.size());
    const Pieces pieces(sums.rows, sums.cols, pieces_a_rank * ranks);
    const auto sent = sent_.get(pieces.most_values());
    const auto received = received_.get(pieces.most_values());
    const std::size_t rounds = pieces.count() + ranks - 1;
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round >= rank && round - rank < pieces.count()) {
        const Range rows = pieces.rows_of(round - rank);
        const Range columns = pieces.columns_of(round - rank);
        if (!first()) unpack(received, rows, columns, sums);
        compute(rows, Part{first() ? Output::overwrite : Output::accumulate, columns});
        if (!last()) pack(sums, rows, columns, sent);
      }
      if (round + 1 < rounds) model_.shift(std::span<const float>(sent), received);
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
  SharedBuffer sent_;
  SharedBuffer received_;
};

}  // namespace

Range shard_of(std::size_t width, int rank, int ranks) noexcept {
  const auto parts = static_cast<std::size_t>(ranks);
  const std::size_t unit = width >= vector_width * parts ? vector_width : 1;
  const std::size_t units = ceil_divide(width, unit);
  const auto begin = [&](std::size_t part) {
    return std::min(width, share_begin(units, part, parts) * unit);
  };
  return {begin(static_cast<std::size_t>(rank)), begin(static_cast<std::size_t>(rank) + 1)};
}

std::vector<Sharding> shardings_of(const nn::NetworkShape& shape, std::uint64_t ranks) {
  std::vector<Sharding> shardings(shape.layers.size(), Sharding::none);
  if (ranks == 1) return shardings;
  const auto sizes = shape.sizes();
  const auto uses = nn::uses_of_values(shape, sizes);
  const auto is_dense = [&](std::size_t i) {
    return i < sizes.size() && std::holds_alternative<nn::Dense>(shape.layers[i].function);
  };
  const auto feeds_only_next = [&](std::size_t i) {
    std::size_t next = i + 1;
    while (next < sizes.size() && is_flatten(shape.layers[next])) ++next;
    return is_dense(next) && sizes[next].from[0] == i + 1 && uses[i + 1] == 1;
  };
  std::size_t widest = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_dense(i)) widest = std::max(widest, sizes[i].output.size());
  }
  if (widest < ranks) {
    const std::string count = std::to_string(ranks);
    throw ConfigError(
        "mesh model=" + count + ": no dense layer has " + count + " outputs, one for each rank",
        "use a smaller model dimension, or wider layers");
  }
  // The outputs of a vector are computed together.
  const std::size_t least =
      std::max<std::size_t>(ranks, widest > vector_width ? vector_width + 1 : 1);
  bool after_columns = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_flatten(shape.layers[i])) continue;
    if (after_columns) {
      shardings[i] = Sharding::rows;
    } else if (is_dense(i) && sizes[i].output.size() >= least) {
      shardings[i] = feeds_only_next(i) ? Sharding::columns : Sharding::gathered_columns;
    }
    after_columns = shardings[i] == Sharding::columns;
  }
  return shardings;
}

std::vector<nn::NumberedLayer<float>> make_layers_of(const nn::NetworkShape& shape,
                                                     const Groups& groups) {
  if (groups.model == nullptr) return {};
  auto layers = nn::make_layers<float>(shape);
  const auto sizes = shape.sizes();
  const auto shardings = shardings_of(shape, groups.model_ranks());
  for (auto& [number, layer] : layers) {
    if (shardings[number] == Sharding::none) continue;
    layer = std::make_unique<ShardedDense>(std::get<nn::Dense>(shape.layers[number].function),
                                           sizes[number].inputs[0].size(), shardings[number],
                                           *groups.model);
  }
  return layers;
}

std::unique_ptr<Mesh> make_mesh(comm::Communicator& ranks, const MeshSizes& sizes) {
  comm::together(ranks, [&] {
    constexpr std::uint64_t max = std::numeric_limits<int>::max();
    if (std::max(sizes.batch, sizes.model) <= max) return;
    throw ConfigError("mesh batch=" + std::to_string(sizes.batch) +
                          ", model=" + std::to_string(sizes.model) + " has too many ranks",
                      "give sizes whose product is the number of ranks");
  });
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
  Failure mine;
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
  const auto failures = comm::gather_each(*model, mine);
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

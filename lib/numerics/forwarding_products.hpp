// Products that pass every call on to others: a base for wrappers that change some of them, as in
// ReplicaOptions::wrap_products.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "lockstep/numerics/products.hpp"

namespace lockstep {

/// Calls `inner` for everything. Local, as Products is.
template <class Real>
class ForwardingProducts : public Products<Real> {
 public:
  explicit ForwardingProducts(std::unique_ptr<Products<Real>> inner) : inner_(std::move(inner)) {}

  const char* name() const noexcept override { return inner_->name(); }
  std::size_t weight_size(std::size_t inputs, std::size_t outputs) const override {
    return inner_->weight_size(inputs, outputs);
  }
  std::size_t weight_index(std::size_t inputs, std::size_t outputs, std::size_t k,
                           std::size_t j) const override {
    return inner_->weight_index(inputs, outputs, k, j);
  }
  std::size_t bias_size(std::size_t outputs) const override { return inner_->bias_size(outputs); }
  void store(Matrix<const Real> logical, std::span<Real> stored) const override {
    inner_->store(logical, stored);
  }
  void load(std::span<const Real> stored, Matrix<Real> logical) const override {
    inner_->load(stored, logical);
  }
  void forward(Matrix<const Real> x, const LayerWeights<Real>& w, Activation activation,
               Matrix<Real> y, Output output) override {
    inner_->forward(x, w, activation, y, output);
  }
  void backward_input(Matrix<const Real> dz, const LayerWeights<Real>& w, Matrix<const Real> x,
                      Activation below, Matrix<Real> dx, Output output) override {
    inner_->backward_input(dz, w, x, below, dx, output);
  }
  void backward_weights(Matrix<const Real> x, Matrix<const Real> dz, std::size_t leaf, Range slice,
                        std::span<Real> dw) override {
    inner_->backward_weights(x, dz, leaf, slice, dw);
  }
  void backward_bias(Matrix<const Real> dz, std::size_t leaf, Range slice,
                     std::span<Real> db) override {
    inner_->backward_bias(dz, leaf, slice, db);
  }

 private:
  std::unique_ptr<Products<Real>> inner_;
};

}  // namespace lockstep

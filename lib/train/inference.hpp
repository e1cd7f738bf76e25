// Forward passes of evaluation and prediction, wherever a replica computes them.
#pragma once

#include "lib/nn/network.hpp"

namespace lockstep::train {

/// A trained network that is given rows in memory of the host. Local; one thread.
class Inference {
 public:
  Inference() = default;
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;
  virtual ~Inference() = default;

  virtual const nn::NetworkShape& shape() const noexcept = 0;

  /// Where the features of the next forward() belong.  [rows, features]
  virtual Matrix<float> inputs(std::size_t rows) = 0;

  /// Logits of inputs(rows), valid until the next call.  [rows, classes]
  virtual Matrix<const float> forward(std::size_t rows) = 0;
};

/// On this processor.
class NetworkInference final : public Inference {
 public:
  /// `network` must outlive this.
  explicit NetworkInference(nn::Network<float>& network) : network_(network) {}

  const nn::NetworkShape& shape() const noexcept override { return network_.shape(); }
  Matrix<float> inputs(std::size_t rows) override { return network_.inputs({0, rows}); }
  Matrix<const float> forward(std::size_t rows) override { return network_.forward({0, rows}); }

 private:
  nn::Network<float>& network_;
};

}  // namespace lockstep::train

#include "data/batches.hpp"

#include <stdexcept>

namespace lockstep::data {

BatchReader::BatchReader(Source& source, const Plan& plan, int rank, Transform* transform)
    : source_(source),
      transform_(transform),
      plan_(plan),
      rank_(static_cast<std::uint64_t>(rank)),
      labels_(plan.largest_piece()) {
  require_worker(rank_, plan.options().ranks);
  if (source.records() != plan.options().records) {
    throw std::invalid_argument("BatchReader: the plan is for another number of records");
  }
  ids_.reserve(plan.largest_piece());
}

Batch BatchReader::read(std::uint64_t epoch, std::uint64_t step, std::span<float> x) {
  const auto labels = look_up(epoch, step);
  source_.read(ids_, x, labels);
  if (transform_ != nullptr) transform_->apply(epoch, ids_, x);
  return batch_at(step);
}

Batch BatchReader::read_bytes(std::uint64_t epoch, std::uint64_t step, std::span<std::uint8_t> x) {
  if (!gives_bytes()) throw std::logic_error("BatchReader: these features are not given as bytes");
  const auto labels = look_up(epoch, step);
  source_.read_bytes(ids_, x, labels);
  return batch_at(step);
}

std::span<std::int32_t> BatchReader::look_up(std::uint64_t epoch, std::uint64_t step) {
  plan_.records(epoch, step, rank_, ids_);
  return std::span(labels_).first(ids_.size());
}

Batch BatchReader::batch_at(std::uint64_t step) const noexcept {
  return {.piece = piece(step),
          .labels = std::span(labels_).first(ids_.size()),
          .ids = ids_,
          .global_examples = plan_.examples(step),
          .leaf = plan_.leaf(step),
          .block = plan_.block(step),
          .summed_rows = plan_.summed_rows(step),
          .plan = &plan_,
          .step = step};
}

}  // namespace lockstep::data

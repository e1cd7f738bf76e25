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
  plan_.records(epoch, step, rank_, ids_);
  const auto labels = std::span(labels_).first(ids_.size());
  source_.read(ids_, x, labels);
  if (transform_ != nullptr) transform_->apply(epoch, ids_, x);
  return {.piece = piece(step),
          .labels = labels,
          .ids = ids_,
          .global_examples = plan_.examples(step),
          .leaf = plan_.leaf(step),
          .block = plan_.block(step),
          .summed_rows = plan_.summed_rows(step),
          .plan = &plan_,
          .step = step};
}

}  // namespace lockstep::data

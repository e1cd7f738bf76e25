#include "data/batches.hpp"

#include <stdexcept>

namespace lockstep::data {

BatchReader::BatchReader(Source& source, const Plan& plan, int rank)
    : source_(source),
      plan_(plan),
      rank_(static_cast<std::uint64_t>(rank)),
      x_(plan.largest_piece() * source.features()),
      labels_(plan.largest_piece()) {
  if (source.records() != plan.options().records) {
    throw std::invalid_argument("BatchReader: the plan is for another number of records");
  }
  ids_.reserve(plan.largest_piece());
}

Batch BatchReader::read(std::uint64_t epoch, std::uint64_t step) {
  plan_.records(epoch, step, rank_, ids_);
  const auto x = x_.span().first(ids_.size() * source_.features());
  const auto labels = std::span(labels_).first(ids_.size());
  source_.read(ids_, x, labels);
  return {x, labels, ids_, plan_.examples(step)};
}

}  // namespace lockstep::data

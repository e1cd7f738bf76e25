#include "lockstep/train/nonfinite.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>
#include <vector>

#include "lockstep/base/text.hpp"
#include "lockstep/collectives/agreement.hpp"
#include "lockstep/optim/optimizer.hpp"

namespace lockstep::train {

bool all_finite(std::span<const float> values) noexcept {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

namespace {

/// The number of the record in `row`, an index in the rank's piece; without ids its position in the
/// epoch (Plan::positions).
std::string number_text(std::size_t row, const data::Batch& batch) {
  const bool has_id = !batch.ids.empty();
  return std::to_string(has_id ? batch.ids[row]
                               : batch.plan->positions(batch.step, batch.rank).begin + row);
}

/// "records 3, 8, 9 and 2 more (counted from 0)"; at least one row.
std::string text_of(const std::vector<std::size_t>& rows, const data::Batch& batch) {
  constexpr std::size_t max_named = 3;
  std::string numbers = joined(std::span(rows).first(std::min(rows.size(), max_named)), ", ",
                               [&](std::size_t row) { return number_text(row, batch); });
  if (rows.size() > max_named) {
    numbers += " and " + std::to_string(rows.size() - max_named) + " more";
  }
  const std::string plural = rows.size() > 1 ? "s " : " ";
  if (!batch.ids.empty()) return "record" + plural + numbers + " (counted from 0)";
  return "example" + plural + numbers + " of the epoch (counted from 0)";
}

/// The same, or "all of its 32 examples".
std::string rows_text(const std::vector<std::size_t>& rows, const data::Batch& batch) {
  if (rows.size() == 1 || rows.size() < batch.piece.size()) return text_of(rows, batch);
  return "all of its " + std::to_string(rows.size()) + " examples";
}

std::string greatest_loss(std::span<const nn::ExampleResult> results, const data::Batch& batch) {
  const auto greatest = std::max_element(results.begin(), results.end(),
                                         [](auto& a, auto& b) { return a.loss < b.loss; });
  if (greatest == results.end()) return "";
  std::ostringstream loss;
  loss << greatest->loss;
  return "the greatest loss of its examples is " + loss.str() + ", of " +
         text_of({static_cast<std::size_t>(greatest - results.begin())}, batch);
}

}  // namespace

std::string example_text(std::size_t row, const data::Batch& batch) {
  if (batch.ids.empty() || batch.source == nullptr) return text_of({row}, batch);
  return batch.source->place_of(batch.ids[row]);
}

namespace {

/// The first place in the order of a step.
constexpr std::uint64_t place_of_features = 0;

/// Number of places in the order of a step before the sums over examples.
std::uint64_t places_of_examples(const nn::Network<float>& network) {
  return 1 + 3 * network.layers() + 1;
}

/// Finds the first of the examples whose values layer `i` does not take.
bool find_bad_input(const nn::Network<float>& network, const ExampleValues& values, std::size_t i,
                    NonfiniteValue& found) {
  const Matrix<const float> x = values.activation(network.input_of(i));
  for (std::size_t row = 0; row < x.rows; ++row) {
    const std::string problem = network.input_problem(i, x.row(row));
    if (problem.empty()) continue;
    found.text = example_text(values.first + row, values.batch) + ": " +
                 network.shape().layer_text(network.number_of(i)) + ": " + problem;
    found.rows = {values.first + row};
    found.is_bad_input = true;
    return true;
  }
  ++found.order;
  return false;
}

}  // namespace

void NonfiniteValue::add(const NonfiniteValue& other) {
  if (other.order < order) {
    *this = other;
  } else if (other.order == order) {
    rows.insert(rows.end(), other.rows.begin(), other.rows.end());
  }
}

NonfiniteValue find_nonfinite(const nn::Network<float>& network, const ExampleValues& values) {
  NonfiniteValue found = {.order = place_of_features};
  const auto is_found = [&](const std::string& what, std::size_t count, auto&& is_finite) {
    for (std::size_t row = 0; row < count; ++row) {
      if (!is_finite(row)) found.rows.push_back(values.first + row);
    }
    found.text = what;
    if (found.rows.empty()) ++found.order;
    return !found.rows.empty();
  };
  const auto is_found_in = [&](const std::string& what, Matrix<const float> rows) {
    return is_found(what, rows.rows, [&](std::size_t row) { return all_finite(rows.row(row)); });
  };
  const auto layer = [&](std::size_t i) {
    return network.shape().layer_text(network.number_of(i));
  };

  if (is_found_in("the features", values.activation(0))) return found;
  for (std::size_t i = 0; i < network.layers(); ++i) {
    if (find_bad_input(network, values, i, found)) return found;
    if (is_found_in("the output of " + layer(i), values.activation(i + 1))) return found;
  }
  if (is_found("the loss", values.results.size(),
               [&](std::size_t row) { return std::isfinite(values.results[row].loss); })) {
    return found;
  }
  for (std::size_t i = network.layers(); i-- > 0;) {
    if (is_found_in("the gradient by the output of " + layer(i), values.gradient(i))) return found;
  }
  return {};
}

NonfiniteValue find_nonfinite(const nn::Network<float>& network,
                              std::span<const optim::GradientSums> sums, double weight) {
  const std::uint64_t place = places_of_examples(network);
  for (const nn::ParameterSpec& tensor : network.parameters().tensors()) {
    for (const auto& [some, begin] : sums) {
      const std::size_t end = begin + some.size();
      const std::size_t first = std::clamp(tensor.offset, begin, end);
      const std::size_t last = std::clamp(tensor.offset + tensor.stored, first, end);
      if (optim::is_finite(some.subspan(first - begin, last - first), weight)) continue;
      return {.order = place, .text = "the gradient of " + tensor.name};
    }
  }
  const auto weights = network.parameters().values();
  for (const nn::ParameterSpec& tensor : network.parameters().tensors()) {
    if (all_finite(weights.subspan(tensor.offset, tensor.stored))) continue;
    return {.order = place + 1, .text = "the updated weights of " + tensor.name};
  }
  return {};
}

NonfiniteText describe_nonfinite(const char* what, const NonfiniteValue& mine,
                                 const data::Batch& batch,
                                 std::span<const nn::ExampleResult> results, const Groups& groups) {
  comm::Communicator& comm = groups.batch;
  struct Found {
    std::uint64_t order = NonfiniteValue::none;
    double greatest_loss = -1;  // -1: no examples, or NaN alone
    bool has_examples = false;
    bool is_bad_input = false;
  };
  Found own;
  own.order = mine.order;
  own.has_examples = !mine.rows.empty();
  own.is_bad_input = mine.is_bad_input;
  for (const auto& result : results) own.greatest_loss = std::max(own.greatest_loss, result.loss);
  const auto found = comm::gather_each(comm, own);
  const bool names_rows = !mine.rows.empty() && !mine.is_bad_input;
  const auto texts = comm::gather_text(
      comm, names_rows ? mine.text + ", for " + rows_text(mine.rows, batch) : mine.text);
  const auto greatest = comm::gather_text(comm, greatest_loss(results, batch));
  const auto hosts = comm::gather_text(comm, groups.all.place().host);
  const auto name = [&](std::size_t rank) {
    return "rank " + std::to_string(comm.world_rank(static_cast<int>(rank))) + " on " + hosts[rank];
  };

  std::string text = std::string("the ") + what + " is not finite";
  const auto first = std::ranges::min_element(found, {}, &Found::order);
  const auto rank = static_cast<std::size_t>(first - found.begin());
  if (first->order != NonfiniteValue::none) {
    if (first->is_bad_input) return {.text = texts[rank], .is_bad_input = true};
    text += ": " + name(rank) + " has the first such value in " + texts[rank];
    if (first->has_examples) {
      return {.text = text, .in_features = first->order == place_of_features};
    }
  }
  const auto other = static_cast<std::size_t>(
      std::ranges::max_element(found, {}, &Found::greatest_loss) - found.begin());
  return {text + "; on " + name(other) + " " + greatest[other]};
}

void throw_diverged(std::uint64_t step, const std::string& what, const std::string& remedy) {
  throw comm::AgreedError(
      ExitCode::diverged,
      "training diverged at step " + std::to_string(step) + " (counted from 1): " + what, remedy);
}

}  // namespace lockstep::train

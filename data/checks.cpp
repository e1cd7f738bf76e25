#include "data/checks.hpp"

#include <stdexcept>
#include <string>

#include "lib/base/errors.hpp"

namespace lockstep::data {

std::optional<std::uint64_t> checked_limit(const ReadOptions& options) {
  if (options.limit == 0U) {
    throw ConfigError("a limit of 0 records leaves nothing to read",
                      "give --train-limit and --test-limit at least 1, or leave them out");
  }
  if (options.classes < 1) {
    throw ConfigError("the number of classes is " + std::to_string(options.classes),
                      "give --classes at least 1");
  }
  return options.limit;
}

void check_read(const Source& source, std::span<const std::uint64_t> ids, std::span<float> x,
                std::span<std::int32_t> labels) {
  if (labels.size() != ids.size() || x.size() != ids.size() * source.features()) {
    throw std::invalid_argument("read: " + std::to_string(ids.size()) + " records do not fit " +
                                std::to_string(x.size()) + " features and " +
                                std::to_string(labels.size()) + " labels");
  }
  const std::uint64_t records = source.records();
  for (const std::uint64_t id : ids) {
    if (id < records) continue;
    throw std::out_of_range("read: record " + std::to_string(id) + " of " +
                            std::to_string(records));
  }
}

}  // namespace lockstep::data

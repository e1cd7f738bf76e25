#include "data/checks.hpp"

#include <limits>
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

std::int32_t checked_label(std::int64_t label, int classes, std::uint64_t record,
                           const std::string& place) {
  if (label >= 0 && label < classes) return static_cast<std::int32_t>(label);
  const bool mendable = label >= 0 && label < std::numeric_limits<std::int32_t>::max();
  throw DataError(place + ": the label of record " + std::to_string(record) + " is " +
                      std::to_string(label) + ", outside [0, " + std::to_string(classes) + ")",
                  mendable
                      ? "give --classes " + std::to_string(label + 1) + " or more, or mend the file"
                      : "mend the file: labels are counted from 0");
}

std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

std::string shape_text(std::span<const std::uint64_t> dims) {
  if (dims.empty()) return "1";
  std::string text;
  for (const std::uint64_t dim : dims) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

std::string bare_name(const std::filesystem::path& path) {
  return (path.extension() == ".gz" ? path.stem() : path.filename()).string();
}

void check_read(const Source& source, std::span<const std::uint64_t> ids, std::size_t features,
                std::size_t labels) {
  if (labels != ids.size() || features != ids.size() * source.features()) {
    throw std::invalid_argument("read: " + std::to_string(ids.size()) + " records do not fit " +
                                std::to_string(features) + " features and " +
                                std::to_string(labels) + " labels");
  }
  const std::uint64_t records = source.records();
  for (const std::uint64_t id : ids) {
    if (id < records) continue;
    throw std::out_of_range("read: record " + std::to_string(id) + " of " +
                            std::to_string(records));
  }
}

void check_read_bytes(const Source& source, std::span<const std::uint64_t> ids,
                      std::size_t features, std::size_t labels) {
  if (source.element() != Element::byte) {
    throw std::logic_error("read_bytes: features are numbers, not bytes: " + source.identity());
  }
  check_read(source, ids, features, labels);
}

}  // namespace lockstep::data

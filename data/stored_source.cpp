#include "lockstep/data/stored_source.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/philox.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/plan.hpp"

namespace lockstep::data {
namespace {

/// The most bytes of consecutive records per disk read.
constexpr std::uint64_t max_bytes_at_once = std::uint64_t{1} << 20;

}  // namespace

StoredSource::StoredSource(const char* format, std::filesystem::path path,
                           const ReadOptions& options)
    : content_(std::move(path)),
      limit_(checked_limit(options)),
      given_classes_(options.classes),
      classes_(options.classes.value_or(max_found_classes)),
      sampled_blocks_(options.sampled_blocks),
      format_(format),
      divide_by_(options.divide_by) {
  checked_divisor(divide_by_, 1.0F);
}

void StoredSource::describe(Element element, std::vector<std::uint64_t> shape) {
  element_ = element;
  features_ = 1;
  for (const std::uint64_t dim : shape) features_ *= static_cast<std::size_t>(dim);
  shape_ = std::move(shape);
  if (element == Element::byte) scale_.emplace(divide_by_);
  divisor_ = scale_ ? scale_->divisor() : checked_divisor(divide_by_, 1.0F);
}

void StoredSource::lack_labels(std::uint64_t records) {
  labels_.assign(static_cast<std::size_t>(std::min(records, limit_.value_or(records))), 0);
}

std::uint64_t StoredSource::classes() const noexcept {
  if (given_classes_) return static_cast<std::uint64_t>(*given_classes_);
  return static_cast<std::uint64_t>(*std::max_element(labels_.begin(), labels_.end())) + 1;
}

std::string StoredSource::place_of(std::uint64_t id) const {
  const auto& file = labels_path_.empty() ? path() : labels_path_;
  return file.string() + ": record " + std::to_string(id);
}

std::string StoredSource::identity() const {
  Hash labels;
  labels.add_bytes(std::as_bytes(std::span(labels_)));
  Hash sample;
  content_.add_sample(sample, offset(records()), sampled_blocks_);
  return std::string(format_) + " " + bare_name(path()) +
         (labels_path_.empty() ? "" : " + " + bare_name(labels_path_)) + ": " +
         std::to_string(records()) + " records, " + shape_text(shape_) + " = " +
         std::to_string(features_) + (element_ == Element::byte ? " bytes" : " numbers") +
         ", labels " + to_hex(labels.value()) + ", sample " + to_hex(sample.value());
}

void StoredSource::scale_bytes(std::span<const std::uint8_t> bytes,
                               std::span<float> x) const noexcept {
  scale_->apply(bytes, x);
}

void StoredSource::divide(std::span<float> x) const noexcept {
  if (divisor_ != 1.0F) data::divide(x, divisor_);
}

void StoredSource::decode_bytes(std::uint64_t, std::size_t, std::span<const std::uint8_t> bytes,
                                std::span<std::uint8_t> x) {
  std::copy(bytes.begin(), bytes.end(), x.begin());
}

template <class Take>
void StoredSource::each_run(std::span<const std::uint64_t> ids, std::span<std::int32_t> labels,
                            Take take) {
  for (std::size_t i = 0; i < ids.size();) {
    const std::uint64_t first = ids[i];
    const std::uint64_t begin = offset(first);
    // The hardware prefetcher covers consecutive records, not shuffled ones.
    constexpr std::size_t ahead = 4;
    if (i + ahead < ids.size() && ids[i + ahead] != ids[i + ahead - 1] + 1) {
      const std::uint64_t later = offset(ids[i + ahead]);
      content_.prefetch(later, offset(ids[i + ahead] + 1) - later);
    }
    std::size_t run = 1;  // consecutive ids are read together
    while (i + run < ids.size() && ids[i + run] == first + run &&
           offset(first + run + 1) - begin <= max_bytes_at_once) {
      ++run;
    }
    const auto size = static_cast<std::size_t>(offset(first + run) - begin);
    if (scratch_.size() < size) scratch_.resize(size);
    const auto bytes = std::span(scratch_).first(size);
    content_.read_at(begin, bytes);
    bytes_read_ += size;
    take(i, first, run, bytes);
    for (std::size_t k = 0; k < run; ++k) labels[i + k] = labels_[first + k];
    i += run;
  }
  content_.check_mapped();
}

void StoredSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  each_run(ids, labels, [&](std::size_t row, std::uint64_t first, std::size_t run, auto bytes) {
    decode(first, run, bytes, x.subspan(row * features_, run * features_));
  });
}

void StoredSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                              std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  each_run(ids, labels, [&](std::size_t row, std::uint64_t first, std::size_t run, auto bytes) {
    decode_bytes(first, run, bytes, x.subspan(row * features_, run * features_));
  });
}

ConcatSource::ConcatSource(std::vector<std::unique_ptr<Source>> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) throw std::invalid_argument("ConcatSource: no parts");
  const auto require_equal = [](const std::string& what, auto one, auto other) {
    if (one == other) return;
    throw std::invalid_argument("ConcatSource: the " + what + " of a part is " +
                                std::to_string(other) + ", not " + std::to_string(one));
  };
  std::uint64_t records = 0;
  for (const auto& part : parts_) {
    require_equal("number of features", features(), part->features());
    require_equal("divisor", divisor(), part->divisor());
    require_equal("number of values to predict", targets(), part->targets());
    if (part->element() != Element::byte) element_ = Element::number;
    records += part->records();
    ends_.push_back(records);
  }
}

std::string ConcatSource::identity() const {
  std::string text =
      std::to_string(records()) + " records in " + std::to_string(parts_.size()) + " parts";
  for (const auto& part : parts_) text += "; " + part->identity();
  return text;
}

std::uint64_t ConcatSource::classes() const noexcept {
  std::uint64_t classes = 0;
  for (const auto& part : parts_) classes = std::max(classes, part->classes());
  return classes;
}

std::pair<const Source*, std::uint64_t> ConcatSource::part_of(std::uint64_t id) const noexcept {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), id);
  const auto part = static_cast<std::size_t>(end - ends_.begin());
  return {parts_[part].get(), id - (part == 0 ? 0 : ends_[part - 1])};
}

std::optional<std::int32_t> ConcatSource::known_label(std::uint64_t id) const noexcept {
  const auto [part, record] = part_of(id);
  return part->known_label(record);
}

void ConcatSource::target_values(std::uint64_t id, std::span<float> values) const noexcept {
  const auto [part, record] = part_of(id);
  part->target_values(record, values);
}

std::string ConcatSource::place_of(std::uint64_t id) const {
  const auto [part, record] = part_of(id);
  return part->place_of(record);
}

void ConcatSource::set_moments(const std::shared_ptr<const TableSchema>& table) {
  for (const auto& part : parts_) part->set_moments(table);
}

std::vector<std::string> ConcatSource::warnings() const {
  std::vector<std::string> texts;
  for (const auto& part : parts_) {
    for (auto& text : part->warnings()) texts.push_back(std::move(text));
  }
  return texts;
}

std::uint64_t ConcatSource::bytes_read() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->bytes_read();
  return bytes;
}

std::vector<std::uint64_t> ConcatSource::file_records() const {
  std::vector<std::uint64_t> records;
  for (const auto& part : parts_) {
    const auto files = part->file_records();
    if (files.empty()) return {};
    records.insert(records.end(), files.begin(), files.end());
  }
  return records;
}

template <class Read>
void ConcatSource::each_run(std::span<const std::uint64_t> ids, Read read) {
  for (std::size_t i = 0; i < ids.size();) {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), ids[i]);
    const auto part = static_cast<std::size_t>(end - ends_.begin());
    const std::uint64_t begin = part == 0 ? 0 : ends_[part - 1];
    const std::size_t row = i;
    local_ids_.clear();
    for (; i < ids.size() && ids[i] >= begin && ids[i] < *end; ++i) {
      local_ids_.push_back(ids[i] - begin);
    }
    read(*parts_[part], row, i - row);
  }
}

void ConcatSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  each_run(ids, [&](Source& part, std::size_t row, std::size_t count) {
    part.read(local_ids_, x.subspan(row * features(), count * features()),
              labels.subspan(row, count));
  });
}

void ConcatSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                              std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  each_run(ids, [&](Source& part, std::size_t row, std::size_t count) {
    part.read_bytes(local_ids_, x.subspan(row * features(), count * features()),
                    labels.subspan(row, count));
  });
}

SplitRecords split_records(std::uint64_t records, double share, std::uint64_t seed, Split split) {
  const bool is_test = split == Split::test;
  const std::string option = (is_test ? "`test_split=" : "`validation=") + shortest(share) + '`';
  if (!(share > 0 && share < 1)) {
    throw ConfigError(option + " is not between 0 and 1",
                      std::string("give the share of the records that are the ") +
                          (is_test ? "test" : "validation") + " set, such as 0.2");
  }
  const auto count = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(records)));
  if (count >= records) {
    throw ConfigError(option + " leaves no training record of " + counted(records, "record"),
                      "give more records, or a smaller share");
  }
  const RandomUse use = is_test ? RandomUse::split : RandomUse::validation;
  const Permutation order(records, seed_for(use, seed), 0);
  SplitRecords ids;
  ids.taken.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) ids.taken[i] = order(i);
  std::sort(ids.taken.begin(), ids.taken.end());
  ids.others.reserve(records - count);
  for (std::uint64_t id = 0, next = 0; id < records; ++id) {
    if (next < count && ids.taken[next] == id) {
      ++next;
    } else {
      ids.others.push_back(id);
    }
  }
  return ids;
}

SubsetSource::SubsetSource(std::shared_ptr<Source> whole, std::vector<std::uint64_t> ids,
                           std::string name)
    : whole_(std::move(whole)), ids_(std::move(ids)), name_(std::move(name)) {}

std::vector<std::uint64_t> SubsetSource::file_records() const {
  std::vector<std::uint64_t> records;
  std::uint64_t end = 0;
  auto at = ids_.begin();
  for (const std::uint64_t of_file : whole_->file_records()) {
    end += of_file;
    const auto next = std::lower_bound(at, ids_.end(), end);
    if (next != at) records.push_back(static_cast<std::uint64_t>(next - at));
    at = next;
  }
  return records;
}

template <class Read>
void SubsetSource::read_whole(std::span<const std::uint64_t> ids, Read read) {
  asked_.resize(ids.size());
  std::transform(ids.begin(), ids.end(), asked_.begin(), [&](auto id) { return ids_[id]; });
  const std::lock_guard lock(whole_->reading());
  Source& source = *whole_;
  const std::uint64_t before = source.bytes_read();
  read(source, std::span<const std::uint64_t>(asked_));
  bytes_read_ += source.bytes_read() - before;
}

void SubsetSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                        std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  read_whole(ids, [&](Source& whole, auto of_whole) { whole.read(of_whole, x, labels); });
}

void SubsetSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                              std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  read_whole(ids, [&](Source& whole, auto of_whole) { whole.read_bytes(of_whole, x, labels); });
}

void take_validation(DataSet& set, const DataSetOptions& options) {
  if (!options.validation) return;
  const double share = *options.validation;
  SplitRecords ids = split_records(set.train->records(), share, options.seed, Split::validation);
  const std::shared_ptr<Source> whole = std::move(set.train);
  const std::string name =
      "validation " + shortest(share) + " by seed " + std::to_string(options.seed);
  set.train = std::make_unique<SubsetSource>(whole, std::move(ids.others), "all but " + name);
  set.validation = std::make_unique<SubsetSource>(whole, std::move(ids.taken), name);
}

// Shared checks.

std::optional<std::uint64_t> checked_limit(const ReadOptions& options) {
  if (options.limit == 0U) {
    throw ConfigError("a limit of 0 records leaves nothing to read",
                      "give `train_limit` and `test_limit` at least 1, or leave them out");
  }
  if (options.classes && *options.classes < 1) {
    throw ConfigError("the number of classes is " + std::to_string(*options.classes),
                      "give `classes` at least 1");
  }
  return options.limit;
}

void refuse_label(std::int64_t label, int classes, std::uint64_t record, const std::string& place) {
  const bool mendable = label >= 0 && label < std::numeric_limits<std::int32_t>::max();
  throw DataError(place + ": the label of record " + std::to_string(record) + " is " +
                      std::to_string(label) + ", outside [0, " + std::to_string(classes) + ")",
                  mendable
                      ? "give `classes=" + std::to_string(label + 1) + "` or more, or mend the file"
                      : "mend the file: labels are counted from 0");
}

std::string shape_text(std::span<const std::uint64_t> dims) {
  return dims.empty() ? "1" : joined(dims, "x");
}

namespace {

/// a * b; empty on overflow.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) noexcept {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) return std::nullopt;
  return a * b;
}

}  // namespace

std::optional<std::uint64_t> record_bytes(std::uint64_t records,
                                          std::span<const std::uint64_t> dims,
                                          std::uint64_t element_bytes) noexcept {
  std::optional<std::uint64_t> bytes = element_bytes;
  for (const std::uint64_t dim : dims) bytes = bytes ? product(*bytes, dim) : bytes;
  const auto total = bytes ? product(*bytes, records) : bytes;
  return total && *total <= max_stored_bytes ? bytes : std::nullopt;
}

void finish_array(Content& content, std::uint64_t expected, std::uint64_t keep,
                  const std::string& array_makes, const std::string& too_short) {
  if (content.compressed()) {
    if (expected > content.max_bytes()) throw DataError(too_short, fetch_again);
    content.finish(expected, keep);
  }
  const std::uint64_t size = content.size();
  if (size == expected) return;
  throw DataError(content.place(std::min(size, expected)) + ": " + array_makes + " a file of " +
                      std::to_string(expected) + " bytes, but it has " + std::to_string(size),
                  fetch_again);
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

#include "lockstep/train/safetensors.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t length_bytes = 8;              // of the header's length
constexpr std::uint64_t max_header_bytes = 100 << 20;  // limit of safetensors

/// The header: name -> type, shape, and bytes [begin, end) behind the header.
std::string header_of(const std::vector<TensorSpec>& tensors) {
  ordered_json header;
  header["__metadata__"] = {{"format", "lockstep"}};
  std::uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t end = at + tensor.size() * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the tensors
  return text;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const auto dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

[[noreturn]] void fail_at(const JsonPlace& place, std::uint64_t byte, const std::string& reason) {
  throw DataError(data::place(place.path, byte) + ": " + reason, place.remedy);
}

/// Reads the header; returns it and its length.
std::pair<ordered_json, std::uint64_t> read_header(const data::RegularFile& file,
                                                   const JsonPlace& place) {
  if (file.size() < length_bytes) fail_at(place, file.size(), "ends within the header's length");
  std::uint64_t length = 0;
  file.read_at(0, {reinterpret_cast<std::uint8_t*>(&length), sizeof length});
  const std::uint64_t max = std::min(file.size() - length_bytes, max_header_bytes);
  if (length > max) {
    fail_at(place, 0,
            "a header of " + std::to_string(length) + " bytes, where " + std::to_string(max) +
                " can be");
  }
  ordered_json header = parse_object(text_at(file, length_bytes, length), place);
  header.erase("__metadata__");
  return {std::move(header), length};
}

/// The tensor's bytes behind the header. Throws if type, shape or size are not the expected ones.
Range bytes_of(const ordered_json& header, const TensorSpec& tensor, std::uint64_t data_bytes,
               const JsonPlace& place) {
  const auto fail_here = [&](const std::string& reason) {
    fail(place, "tensor " + tensor.name + " " + reason);
  };
  const auto& entry = field(header, tensor.name.c_str(), place);
  const std::string type = text_in(entry, "dtype", place);
  if (type != "F32") fail_here("is of type " + type + ", not F32");
  const auto shape = counts_in(entry, "shape", place);
  if (shape != tensor.shape) {
    fail_here("has the shape " + shape_text(shape) + ", not " + shape_text(tensor.shape));
  }
  const auto offsets = counts_in(entry, "data_offsets", place);
  const bool ordered = offsets.size() == 2 && offsets[0] <= offsets[1];
  if (!ordered || offsets[1] - offsets[0] != tensor.size() * sizeof(float)) {
    fail_here("has data_offsets that are not its " + std::to_string(tensor.size()) + " floats'");
  }
  if (offsets[1] > data_bytes) {
    fail_here("ends at byte " + std::to_string(offsets[1]) + " behind the header, where " +
              std::to_string(data_bytes) + " are: the file is cut off");
  }
  return {offsets[0], offsets[1]};
}

/// Sizes are checked before, so ranges that cover the data have neither gap nor overlap.
void require_cover(std::vector<Range> ranges, std::uint64_t data_begin, std::uint64_t data_bytes,
                   const JsonPlace& place) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) {  // tensors without elements first
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  std::uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin != at) {
      fail_at(place, data_begin + at, "tensors leave a gap here, or overlap");
    }
    at = range.end;
  }
  if (at != data_bytes) {
    fail_at(place, data_begin + at,
            std::to_string(data_bytes - at) + " bytes that no tensor describes");
  }
}

}  // namespace

std::uint64_t TensorSpec::size() const noexcept {
  std::uint64_t size = 1;
  for (const auto dim : shape) size *= dim;
  return size;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors)
    : file_(path) {
  const std::string header = header_of(tensors);
  const std::uint64_t length = header.size();
  std::uint64_t bytes = length_bytes + length;
  for (const TensorSpec& tensor : tensors) bytes += tensor.size() * sizeof(float);
  file_.reserve(bytes);
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::add(std::span<const float> values) { write(std::as_bytes(values)); }

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  file_.write(bytes);
  hash_.add_bytes(bytes);
  bytes_ += bytes.size();
}

FileSum SafetensorsWriter::finish() {
  file_.finish();
  file_.publish();
  return {bytes_, hash_.value()};
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const std::string& remedy)
    : file_(path) {
  const JsonPlace place = {path, 1, remedy};
  const auto [header, length] = read_header(file_, place);
  data_begin_ = length_bytes + length;
  const std::uint64_t data_bytes = file_.size() - data_begin_;
  ranges_.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    ranges_.push_back(bytes_of(header, tensor, data_bytes, place));
  }
  for (const auto& [name, entry] : header.items()) {
    const bool known = std::any_of(tensors.begin(), tensors.end(),
                                   [&](const TensorSpec& tensor) { return tensor.name == name; });
    if (!known) fail(place, "tensor " + name + " has no place in this network");
  }
  require_cover(ranges_, data_begin_, data_bytes, place);
}

std::vector<float> SafetensorsReader::read(std::size_t index) const {
  const Range range = ranges_[index];
  std::vector<float> values(range.size() / sizeof(float));
  file_.read_at(data_begin_ + range.begin,
                {reinterpret_cast<std::uint8_t*>(values.data()), range.size()});
  return values;
}

}  // namespace lockstep::train

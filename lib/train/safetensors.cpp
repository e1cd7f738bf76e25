#include "lockstep/train/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/train/json_fields.hpp"

namespace lockstep::train {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t length_bytes = 8;              // of the header's length
constexpr std::uint64_t max_header_bytes = 100 << 20;  // limit of safetensors

/// The header: name -> type, shape, and bytes [begin, end) behind the header.
std::string header_of(const std::vector<TensorSpec>& tensors, const Metadata& metadata) {
  ordered_json header;
  header["__metadata__"] = {{"format", "lockstep"}};
  for (const auto& [name, text] : metadata) header["__metadata__"][name] = text;
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

[[noreturn]] void fail_at(const JsonPlace& place, std::uint64_t byte, const std::string& reason) {
  throw DataError(data::place(place.path, byte) + ": " + reason, place.remedy);
}

/// The number of elements of a shape. Throws if it has more than `max`.
std::uint64_t elements_in(const StoredTensor& tensor, std::uint64_t max, const JsonPlace& place) {
  std::uint64_t elements = 1;
  for (const auto dim : tensor.spec.shape) {
    if (dim != 0 && elements > max / dim) {
      fail(place, "tensor " + tensor.spec.name + " has the shape " + shape_text(tensor.spec.shape) +
                      " of " + tensor.type + ", for which the file is too short");
    }
    elements *= dim;
  }
  return elements;
}

/// The bytes of a value of a type that read() converts; 0 for others.
std::uint64_t width_of(const std::string& type) {
  if (type == "F64") return 8;
  if (type == "F32") return 4;
  return type == "F16" || type == "BF16" ? 2 : 0;
}

/// The bytes of a tensor behind the header, of which there are `data_bytes`.
Range bytes_in(const ordered_json& entry, const StoredTensor& tensor, std::uint64_t data_bytes,
               const JsonPlace& place) {
  const auto fail_here = [&](const std::string& reason) {
    fail(place, "tensor " + tensor.spec.name + " " + reason);
  };
  const std::uint64_t width = width_of(tensor.type);
  const std::uint64_t elements = width == 0 ? 0 : elements_in(tensor, data_bytes / width, place);
  const auto offsets = counts_in(entry, "data_offsets", place);
  const bool ordered = offsets.size() == 2 && offsets[0] <= offsets[1];
  if (!ordered || (width > 0 && offsets[1] - offsets[0] != elements * width)) {
    fail_here("has data_offsets that are not those of its " + std::to_string(elements) +
              " values of " + tensor.type);
  }
  if (offsets[1] > data_bytes) {
    fail_here("ends at byte " + std::to_string(offsets[1]) + " behind the header, where " +
              std::to_string(data_bytes) + " are: the file is cut off");
  }
  return {offsets[0], offsets[1]};
}

/// IEEE 754's binary16.
float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero, or denormal: a multiple of 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign == 0 ? value : -value;
  }
  constexpr std::uint32_t bias = 127 - 15;
  const std::uint32_t wide = exponent == 0x1FU ? 0xFFU : exponent + bias;
  return std::bit_cast<float>(sign | wide << 23U | fraction << 13U);
}

float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }

float to_float(double value) { return static_cast<float>(value); }

template <class Value>
std::vector<Value> read_values(const data::RegularFile& file, std::uint64_t at,
                               std::uint64_t bytes) {
  std::vector<Value> values(bytes / sizeof(Value));
  file.read_at(at, {reinterpret_cast<std::uint8_t*>(values.data()), bytes});
  return values;
}

template <class Value, class Convert>
std::vector<float> to_floats(const std::vector<Value>& values, Convert convert) {
  std::vector<float> floats(values.size());
  std::transform(values.begin(), values.end(), floats.begin(), convert);
  return floats;
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

void require_finite(std::span<const float> values, const std::string& place,
                    const std::string& tensor, const std::string& remedy) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return;
  throw DataError(place + ": value " + std::to_string(bad - values.begin()) + " of tensor '" +
                      tensor + "' is " + std::to_string(*bad) + ", and weights must be finite",
                  remedy);
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  return "[" + joined(shape) + "]";
}

std::uint64_t TensorSpec::size() const noexcept {
  std::uint64_t size = 1;
  for (const auto dim : shape) size *= dim;
  return size;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const Metadata& metadata)
    : file_(path) {
  const std::string header = header_of(tensors, metadata);
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

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, const std::string& remedy)
    : file_(path), remedy_(remedy) {
  const JsonPlace place = {path, 1, remedy};
  if (file_.size() < length_bytes) fail_at(place, file_.size(), "ends within the header's length");
  std::uint64_t length = 0;
  file_.read_at(0, {reinterpret_cast<std::uint8_t*>(&length), sizeof length});
  const std::uint64_t max = std::min(file_.size() - length_bytes, max_header_bytes);
  if (length > max) {
    fail_at(place, 0,
            "a header of " + std::to_string(length) + " bytes, where " + std::to_string(max) +
                " can be");
  }
  data_begin_ = length_bytes + length;
  const std::uint64_t data_bytes = file_.size() - data_begin_;
  std::vector<Range> ranges;
  const ordered_json header = parse_object(text_at(file_, length_bytes, length), place);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, text] : entry.items()) {
        if (text.is_string()) metadata_.emplace(key, text.get<std::string>());
      }
      continue;
    }
    if (!entry.is_object()) fail(place, "tensor " + name + " has no description");
    StoredTensor tensor = {
        {name, counts_in(entry, "shape", place)}, text_in(entry, "dtype", place), {}};
    tensor.bytes = bytes_in(entry, tensor, data_bytes, place);
    ranges.push_back(tensor.bytes);
    tensors_.push_back(std::move(tensor));
  }
  require_cover(ranges, data_begin_, data_bytes, place);
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& expected,
                                     const std::string& remedy)
    : SafetensorsReader(path, remedy) {
  const JsonPlace place = {path, 1, remedy};
  std::map<std::string, StoredTensor> stored;
  for (StoredTensor& tensor : tensors_) stored.emplace(tensor.spec.name, std::move(tensor));
  tensors_.clear();
  for (const TensorSpec& wanted : expected) {
    const auto found = stored.find(wanted.name);
    if (found == stored.end()) fail(place, "tensor " + wanted.name + " is missing");
    StoredTensor& tensor = found->second;
    if (tensor.type != "F32") {
      fail(place, "tensor " + wanted.name + " is of type " + tensor.type + ", not F32");
    }
    if (tensor.spec.shape != wanted.shape) {
      fail(place, "tensor " + wanted.name + " has the shape " + shape_text(tensor.spec.shape) +
                      ", not " + shape_text(wanted.shape));
    }
    tensors_.push_back(std::move(tensor));
    stored.erase(found);
  }
  if (stored.empty()) return;
  fail(place, "tensor " + stored.begin()->first + " has no place in this network");
}

std::vector<float> SafetensorsReader::read(std::size_t index) const {
  const StoredTensor& tensor = tensors_[index];
  const std::uint64_t at = data_begin_ + tensor.bytes.begin;
  const std::uint64_t bytes = tensor.bytes.size();
  if (tensor.type == "F32") return read_values<float>(file_, at, bytes);
  if (tensor.type == "F64") return to_floats(read_values<double>(file_, at, bytes), to_float);
  if (tensor.type == "F16") {
    return to_floats(read_values<std::uint16_t>(file_, at, bytes), half_to_float);
  }
  if (tensor.type == "BF16") {
    return to_floats(read_values<std::uint16_t>(file_, at, bytes), bf16_to_float);
  }
  fail({path(), 1, remedy_},
       "tensor " + tensor.spec.name + " is of type " + tensor.type + ", not F32, F64, F16 or BF16");
}

}  // namespace lockstep::train

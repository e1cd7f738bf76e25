#include "lockstep/data/npy.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
namespace {

/// Calls `take(index, value)` for every element of `bytes`, as a T.
template <class T, class Take>
void each_of(std::span<const std::uint8_t> bytes, bool swapped, Take take) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    std::uint8_t raw[sizeof(T)];
    std::memcpy(raw, bytes.data() + i * sizeof(T), sizeof(T));
    if (swapped) std::reverse(raw, raw + sizeof(T));
    T value;
    std::memcpy(&value, raw, sizeof value);
    take(i, value);
  }
}

template <class Take>
void each_element(const NpyType& type, std::span<const std::uint8_t> bytes, Take take) {
  const bool is_signed = type.kind == 'i';
  if (type.kind == 'f') {
    return type.bytes == 4 ? each_of<float>(bytes, type.swapped, take)
                           : each_of<double>(bytes, type.swapped, take);
  }
  switch (type.bytes) {
    case 1:
      return is_signed ? each_of<std::int8_t>(bytes, false, take)
                       : each_of<std::uint8_t>(bytes, false, take);
    case 2:
      return is_signed ? each_of<std::int16_t>(bytes, type.swapped, take)
                       : each_of<std::uint16_t>(bytes, type.swapped, take);
    case 4:
      return is_signed ? each_of<std::int32_t>(bytes, type.swapped, take)
                       : each_of<std::uint32_t>(bytes, type.swapped, take);
    default:
      return is_signed ? each_of<std::int64_t>(bytes, type.swapped, take)
                       : each_of<std::uint64_t>(bytes, type.swapped, take);
  }
}

bool is_bytes(const NpyType& type) noexcept { return type.kind == 'u' && type.bytes == 1; }

}  // namespace

std::string npy_header(const char* descr, std::span<const std::uint64_t> shape) {
  std::string text = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(shape[i]) + ",";
  }
  text += "), }";
  constexpr std::size_t before = 10;  // bytes before the text
  constexpr std::size_t alignment = 64;
  while ((before + text.size() + 1) % alignment != 0) text += ' ';
  text += '\n';
  std::string header = "\x93NUMPY";
  header +=
      {'\1', '\0', static_cast<char>(text.size() & 0xFFU), static_cast<char>(text.size() >> 8U)};
  return header + text;
}

namespace {

/// True for records of 1, 3 or 4 matrices, each larger than any number of channels of an image.
bool has_channels_first(std::span<const std::uint64_t> shape) {
  if (shape.size() != 4) return false;
  const bool is_channels = shape[1] == 1 || shape[1] == 3 || shape[1] == 4;
  return is_channels && shape[2] > 4 && shape[3] > 4;
}

}  // namespace

NpySource::NpySource(const std::filesystem::path& images, const std::filesystem::path& labels,
                     const ReadOptions& options)
    : StoredSource("npy", images, options),
      header_(read_npy_header(content_, limit_.value_or(Content::all))) {
  if (header_.shape.size() < 2) {
    throw DataError(content_.place(10) + ": images have one dimension, expected (records, ...)",
                    "check whether images and labels are exchanged");
  }
  if (has_channels_first(header_.shape)) {
    throw DataError(content_.place(10) + ": images of shape (" + shape_text(header_.shape) +
                        ") have their channels first, as PyTorch's",
                    "put them last: numpy.save(path, images.transpose(0, 2, 3, 1))");
  }
  describe(is_bytes(header_.type) ? Element::byte : Element::number,
           {header_.shape.begin() + 1, header_.shape.end()});
  if (options.needs_labels) {
    load_labels(labels);
  } else {
    lack_labels(header_.shape[0]);
  }
  content_.map();
}

void NpySource::load_labels(const std::filesystem::path& path) {
  Content content(path);
  const std::uint64_t wanted = std::min(header_.shape[0], limit_.value_or(header_.shape[0]));
  const NpyHeader header = read_npy_header(content, wanted);
  if (header.record_elements != 1 || header.shape.size() > 2) {
    const bool may_be_one_hot = header.shape.size() == 2;
    throw DataError(content.place(10) + ": labels of shape (" + shape_text(header.shape) +
                        "), expected one number a record",
                    std::string(may_be_one_hot ? "if these are one-hot labels, save "
                                                 "labels.argmax(axis=1); else "
                                               : "") +
                        "check whether images and labels are exchanged");
  }
  if (!header.type.is_integer()) {
    throw DataError(content.place(10) + ": labels of type '" + header.descr + "' are not integers",
                    "if these are classes, save labels.astype('int64'); numbers to predict are "
                    "read from tables alone, such as a CSV file with `label_column=NAME`");
  }
  if (header.shape[0] != header_.shape[0]) {
    throw DataError(content.place(10) + ": holds " + std::to_string(header.shape[0]) +
                        " labels, but " + content_.path().string() + " holds " +
                        std::to_string(header_.shape[0]) + " images",
                    archive_of(path) != path ? "save arrays of equal length"
                                             : "use two files that were published together");
  }
  labels_.reserve(static_cast<std::size_t>(wanted));
  constexpr std::uint64_t chunk = 1 << 16;
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t first = 0; first < wanted; first += chunk) {
    bytes.resize(static_cast<std::size_t>(std::min(chunk, wanted - first)) * header.type.bytes);
    const std::uint64_t offset = header.header_bytes + first * header.type.bytes;
    content.read_at(offset, bytes);
    each_element(header.type, bytes, [&](std::size_t i, auto value) {
      const auto label = value > decltype(value){0} && static_cast<std::uint64_t>(value) >> 63 != 0
                             ? std::numeric_limits<std::int64_t>::max()  // above every class
                             : static_cast<std::int64_t>(value);
      labels_.push_back(checked_label(label, classes_, first + i, [&] {
        return content.place(offset + i * header.type.bytes);
      }));
    });
  }
  labels_path_ = path;
}

std::uint64_t NpySource::offset(std::uint64_t index) const noexcept {
  return header_.header_bytes + index * header_.record_bytes();
}

void NpySource::decode(std::uint64_t first, std::size_t, std::span<const std::uint8_t> bytes,
                       std::span<float> x) {
  if (is_bytes(header_.type)) return scale_bytes(bytes, x);
  const auto check = [&](std::size_t i, float value) {
    if (std::isfinite(value)) return;
    throw DataError(content_.place(offset(first) + i * header_.type.bytes) +
                        ": a feature of record " + std::to_string(first + i / features()) +
                        " is not finite (in float32)",
                    "mend the array: numpy.isfinite finds such elements");
  };
  each_element(header_.type, bytes, [&](std::size_t i, auto value) {
    x[i] = static_cast<float>(value);
    check(i, x[i]);
  });
  divide(x);
}

namespace {

constexpr std::uint64_t max_header_bytes = std::uint64_t{1} << 16;
constexpr std::size_t max_npy_dims = 32;  // NumPy's own limit
const char* const save_again = "save it again with numpy.save, from an array of one plain type";

/// Parses the header's dictionary: Python literals, three known keys.
class DictParser {
 public:
  DictParser(std::string_view text, std::string place) : text_(text), place_(std::move(place)) {}

  NpyHeader parse() {
    expect('{');
    while (!take('}')) {
      entry();
      if (take(',')) continue;
      expect('}');
      break;
    }
    blanks();
    if (at_ != text_.size()) fail("something follows the header's dictionary");
    if (!descr_ || !fortran_order_ || !shape_)
      fail("the header lacks descr, fortran_order or shape");
    NpyHeader header;
    header.descr = *descr_;
    header.shape = *shape_;
    return header;
  }

  bool fortran_order() const noexcept { return fortran_order_.value_or(false); }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(place_ + ": " + problem, save_again);
  }

  void blanks() noexcept {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != 0)
      ++at_;
  }
  bool take(char c) noexcept {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("the header is not a dictionary: '") + c + "' is missing");
  }

  std::string quoted() {
    const char quote = take('\'') ? '\'' : take('"') ? '"' : '\0';
    if (quote == '\0') fail("a text in the header is not quoted; arrays of records are not read");
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("a quote in the header is never closed");
    std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    blanks();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("fortran_order is neither True nor False");
  }

  std::vector<std::uint64_t> tuple() {
    std::vector<std::uint64_t> numbers;
    expect('(');
    while (!take(')')) {
      blanks();
      std::uint64_t number = 0;
      const char* const begin = text_.data() + at_;
      const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), number);
      if (error != std::errc() || numbers.size() == max_npy_dims) fail("the shape is damaged");
      numbers.push_back(number);
      at_ += static_cast<std::size_t>(stop - begin);
      if (take(',')) continue;
      expect(')');
      break;
    }
    return numbers;
  }

  void entry() {
    const std::string key = quoted();
    expect(':');
    if (key == "descr" && !descr_) {
      descr_ = quoted();
    } else if (key == "fortran_order" && !fortran_order_) {
      fortran_order_ = boolean();
    } else if (key == "shape" && !shape_) {
      shape_ = tuple();
    } else {
      fail("the header has an unknown entry " + in_quotes(key) + ", or it twice");
    }
  }

  std::string_view text_;
  std::string place_;
  std::size_t at_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::uint64_t>> shape_;
};

NpyType type_of(const std::string& descr, const std::string& place) {
  constexpr std::array<std::string_view, 11> known{"b1", "u1", "i1", "u2", "i2", "u4",
                                                   "i4", "u8", "i8", "f4", "f8"};
  const char order = descr.empty() ? '\0' : descr[0];
  const bool ordered = order == '<' || order == '>' || order == '=' || order == '|';
  const std::string_view type = ordered ? std::string_view(descr).substr(1) : "";
  const bool sized = order != '|' || type.ends_with('1');
  if (!sized || !contains(known, type)) {
    throw DataError(place + ": elements of type " + in_quotes(descr) + " are not read",
                    "save the array as uint8, float32 or another plain integer or float type: "
                    "numpy.save(path, array.astype('float32'))");
  }
  const auto bytes = static_cast<std::size_t>(type[1] - '0');
  return {type[0], bytes, bytes > 1 && order == '>'};
}

/// Reads the dictionary's text; sets `header_bytes` to the offset of the first element.
std::string dictionary_of(Content& content, std::uint64_t& header_bytes) {
  std::array<std::uint8_t, 8> start{};
  content.read_at(0, start);
  if (std::memcmp(start.data(), "\x93NUMPY", 6) != 0) {
    throw DataError(content.place(0) + ": not an NPY file: it does not begin with \\x93NUMPY",
                    fetch_again);
  }
  const std::uint8_t version = start[6];
  if (version < 1 || version > 3 || start[7] != 0) {
    throw DataError(content.place(6) + ": NPY version " + std::to_string(version) + "." +
                        std::to_string(start[7]) + " is not read, only 1.0, 2.0 and 3.0",
                    save_again);
  }
  std::array<std::uint8_t, 4> size{};
  const std::size_t size_bytes = version == 1 ? 2 : 4;
  content.read_at(8, std::span(size).first(size_bytes));
  const std::uint64_t length = std::uint64_t{size[0]} | std::uint64_t{size[1]} << 8 |
                               std::uint64_t{size[2]} << 16 | std::uint64_t{size[3]} << 24;
  header_bytes = 8 + size_bytes + length;
  if (length > max_header_bytes || header_bytes > content.max_bytes()) {
    throw DataError(content.place(8) + ": a header of " + std::to_string(length) +
                        " bytes does not fit this file",
                    fetch_again);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  content.read_at(8 + size_bytes, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

/// Sets the fields derived from the shape.
void measure(NpyHeader& header, const std::string& place) {
  const std::string shape = "(" + shape_text(header.shape) + ")";
  if (header.shape.empty()) throw DataError(place + ": an array without dimensions", save_again);
  if (header.shape[0] == 0) throw DataError(place + ": holds 0 records", "give it at least one");
  const auto dims = std::span<const std::uint64_t>(header.shape).subspan(1);
  if (contains(dims, 0U)) {
    throw DataError(place + ": records of shape " + shape + " have no element", save_again);
  }
  const auto bytes = record_bytes(header.shape[0], dims, header.type.bytes);
  if (!bytes) {
    throw DataError(place + ": an array of shape " + shape + " is more than any file holds",
                    fetch_again);
  }
  header.record_elements = *bytes / header.type.bytes;
}

}  // namespace

NpyHeader read_npy_header(Content& content, std::uint64_t keep) {
  std::uint64_t header_bytes = 0;
  const std::string text = dictionary_of(content, header_bytes);
  const std::string place = content.place(10);
  DictParser parser(text, place);
  NpyHeader header = parser.parse();
  header.header_bytes = header_bytes;
  header.type = type_of(header.descr, place);
  if (parser.fortran_order() && header.shape.size() > 1) {
    throw DataError(place + ": the array is in Fortran's order, column by column",
                    "save it in C's order: numpy.save(path, numpy.ascontiguousarray(array))");
  }
  measure(header, place);
  const auto end = [&header](std::uint64_t records) {
    return header.header_bytes + records * header.record_bytes();
  };
  const std::uint64_t expected = end(header.shape[0]);
  finish_array(
      content, expected, end(std::min(keep, header.shape[0])),
      "an array of shape (" + shape_text(header.shape) + ") of '" + header.descr + "' makes",
      place + ": " + std::to_string(expected) +
          " bytes cannot come from so short a compressed file");
  return header;
}

namespace {

/// Removes `part` and an underscore from the begin or the end of `name`; false if neither has it.
bool remove_part(std::string& name, const std::string& part) {
  if (name.starts_with(part + "_")) {
    name.erase(0, part.size() + 1);
  } else if (name.ends_with("_" + part)) {
    name.resize(name.size() - part.size() - 1);
  } else {
    return false;
  }
  return true;
}

}  // namespace

NpzArrays find_npz_arrays(const std::filesystem::path& archive, bool needs_labels) {
  constexpr std::array<std::string_view, 4> images{"x", "images", "data", "features"};
  constexpr std::array<std::string_view, 4> labels{"y", "labels", "target", "targets"};
  std::map<std::string, RecordFiles> parts;
  std::vector<std::string> names;
  for (const std::string& file : names_in_archive(archive)) {
    if (!file.ends_with(".npy")) continue;
    std::string name = file.substr(0, file.size() - 4);
    names.push_back(name);
    name = lower_case(name);
    const std::string part = remove_part(name, "train")  ? "train"
                             : remove_part(name, "test") ? "test"
                                                         : "";
    if (!contains(images, name) && !contains(labels, name)) continue;
    RecordFiles& pair = parts[part];
    auto& place = contains(images, name) ? pair.records : pair.labels;
    if (!place.empty()) {
      throw DataError(archive.string() + ": both " +
                          std::filesystem::path(place).filename().string() + " and " + file +
                          " could be the " + (contains(images, name) ? "images" : "labels"),
                      save_arrays);
    }
    place = (archive / file).string();
  }
  NpzArrays arrays;
  for (const auto& [part, pair] : parts) {
    const bool is_half = pair.records.empty() || (needs_labels && pair.labels.empty());
    if (is_half && part.empty() && parts.size() > 1) continue;  // other arrays
    if (is_half) {
      const bool no_labels = pair.labels.empty();
      throw DataError((no_labels ? pair.records : pair.labels) + ": has no " +
                          (no_labels ? "labels" : "images") + " beside it",
                      save_arrays);
    }
    (part == "train" ? arrays.train : part == "test" ? arrays.test : arrays.unnamed) = pair;
  }
  if (parts.empty()) {
    throw DataError(archive.string() + ": no arrays of images and labels, but " + listed(names),
                    save_arrays);
  }
  return arrays;
}

}  // namespace lockstep::data

#include "lockstep/data/writer.hpp"

#include <array>
#include <bit>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/range.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/npy.hpp"
#include "lockstep/data/tfrecord.hpp"

namespace lockstep::data {
namespace {

/// "train", or "train-00003-of-00016".
std::string stem_of(const Target& target, std::uint64_t file) {
  if (target.files == 1) return target.stem;
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05llu-of-%05llu", static_cast<unsigned long long>(file),
                static_cast<unsigned long long>(target.files));
  return target.stem + numbers;
}

}  // namespace

std::uint64_t RecordShape::features() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t dim : dims) product *= dim;
  return product;
}

std::vector<RecordFiles> files_of(const Target& target) {
  std::vector<RecordFiles> files;
  for (std::uint64_t i = 0; i < target.files; ++i) {
    const std::string stem = (target.folder / stem_of(target, i)).string();
    switch (target.format) {
      case Format::cifar:
      case Format::picture: break;
      case Format::idx:
        files.push_back({stem + "-images-idx3-ubyte", stem + "-labels-idx1-ubyte"});
        break;
      case Format::npy: files.push_back({stem + "-images.npy", stem + "-labels.npy"}); break;
      case Format::csv:
      case Format::tfrecord: files.push_back({stem + "." + name_of(target.format), {}});
    }
  }
  return files;
}

namespace {

constexpr std::size_t write_chunk_bytes = std::size_t{1} << 20;

/// Writes a file in chunks of about 1 MB. All members throw OutputError.
class BufferedFile {
 public:
  explicit BufferedFile(const std::filesystem::path& path)
      : file_(std::make_unique<NewFile>(path)) {}

  std::vector<std::uint8_t>& buffer() noexcept { return buffer_; }

  /// Writes the buffer to the file if it is full enough.
  void flush_some() {
    if (buffer_.size() < write_chunk_bytes) return;
    file_->write(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

  /// Writes the rest, syncs the file to disk, closes it and returns it.
  std::unique_ptr<NewFile> finish() {
    file_->write(std::as_bytes(std::span(buffer_)));
    file_->finish();
    return std::move(file_);
  }

 private:
  std::unique_ptr<NewFile> file_;
  std::vector<std::uint8_t> buffer_;
};

/// Writes one file or pair.
class FormatWriter {
 public:
  explicit FormatWriter(const RecordFiles& files) : records_(files.records) {
    if (!files.labels.empty()) labels_.emplace(files.labels);
  }
  FormatWriter(const FormatWriter&) = delete;
  FormatWriter& operator=(const FormatWriter&) = delete;
  virtual ~FormatWriter() = default;

  void flush_some() {
    records_.flush_some();
    if (labels_) labels_->flush_some();
  }

  /// Appends the complete files to `files`.
  void finish(std::vector<std::unique_ptr<NewFile>>& files) {
    files.push_back(records_.finish());
    if (labels_) files.push_back(labels_->finish());
  }

 protected:
  std::vector<std::uint8_t>& records() noexcept { return records_.buffer(); }
  std::vector<std::uint8_t>& labels() noexcept { return labels_->buffer(); }

 private:
  BufferedFile records_;
  std::optional<BufferedFile> labels_;
};

/// Writes a header if the format has one, then features and labels.
class RecordWriter : public FormatWriter {
 public:
  using FormatWriter::FormatWriter;

  /// Appends record `index`. Throws ConfigError if the format cannot store it.
  virtual void add(std::uint64_t index, std::span<const float> features, std::int32_t label) = 0;
};

using Bytes = std::vector<std::uint8_t>;

void put_text(Bytes& bytes, std::string_view text) {
  bytes.insert(bytes.end(), text.begin(), text.end());
}

template <class Number>
void put_little(Bytes& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<std::uint8_t>(number >> (8 * i)));
  }
}

void put_big(Bytes& bytes, std::uint64_t number) {
  for (const int shift : {24, 16, 8, 0})
    bytes.push_back(static_cast<std::uint8_t>(number >> shift));
}

template <class Number>
void put_decimal(Bytes& bytes, Number number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  put_text(bytes, {text.data(), static_cast<std::size_t>(end - text.data())});
}

void put_features(Bytes& bytes, Element element, std::span<const float> features) {
  for (const float value : features) {
    if (element == Element::byte) {
      bytes.push_back(static_cast<std::uint8_t>(value));
    } else {
      put_little(bytes, std::bit_cast<std::uint32_t>(value));
    }
  }
}

class IdxWriter final : public RecordWriter {
 public:
  IdxWriter(const RecordFiles& files, const RecordShape& what)
      : RecordWriter(files), path_(files.records) {
    constexpr std::uint64_t max = std::numeric_limits<std::uint32_t>::max();
    constexpr std::size_t max_dims = 3;
    bool fits = what.records <= max && !what.dims.empty() && what.dims.size() <= max_dims;
    for (const std::uint64_t dim : what.dims) fits = fits && dim > 0 && dim <= max;
    if (!fits) {
      throw ConfigError("IDX holds at most 2^32 - 1 records of 1 to 3 dimensions",
                        "choose another `format`, or more `files`");
    }
    put_big(records(), 0x801 + what.dims.size());
    put_big(records(), what.records);
    for (const std::uint64_t dim : what.dims) put_big(records(), dim);
    put_big(labels(), 0x801);
    put_big(labels(), what.records);
  }

  void add(std::uint64_t index, std::span<const float> features, std::int32_t label) override {
    for (const float value : features) records().push_back(byte_of(value, index, "a feature"));
    labels().push_back(byte_of(static_cast<float>(label), index, "the label"));
  }

 private:
  std::uint8_t byte_of(float value, std::uint64_t index, const char* what) const {
    if (value >= 0.0F && value <= 255.0F && value == std::floor(value)) {
      return static_cast<std::uint8_t>(value);
    }
    throw ConfigError(path_ + ": IDX holds whole numbers of 0 to 255, but " + what + " of record " +
                          std::to_string(index) + " is " + shortest(value),
                      "choose another `format`: npy, tfrecord or csv");
  }

  std::string path_;
};

class CsvWriter final : public RecordWriter {
 public:
  CsvWriter(const RecordFiles& files, const RecordShape& what) : RecordWriter(files) {
    if (what.features() >= max_csv_columns) {
      throw ConfigError(files.records + ": a CSV file has at most " + grouped(max_csv_columns) +
                            " columns, but there are " + grouped(what.features()) +
                            " features and a label",
                        "choose another `format`: npy or tfrecord");
    }
    put_text(records(), "label");
    for (std::uint64_t i = 0; i < what.features(); ++i) {
      put_text(records(), ",x" + std::to_string(i));
    }
    records().push_back('\n');
  }

  void add(std::uint64_t, std::span<const float> features, std::int32_t label) override {
    put_decimal(records(), label);
    for (const float value : features) {
      records().push_back(',');
      put_decimal(records(), value);
    }
    records().push_back('\n');
  }
};

class NpyWriter final : public RecordWriter {
 public:
  NpyWriter(const RecordFiles& files, const RecordShape& what)
      : RecordWriter(files), element_(what.element) {
    std::vector<std::uint64_t> shape = {what.records};
    put_text(labels(), npy_header("<i4", shape));
    shape.insert(shape.end(), what.dims.begin(), what.dims.end());
    put_text(records(), npy_header(what.element == Element::byte ? "|u1" : "<f4", shape));
  }

  void add(std::uint64_t, std::span<const float> features, std::int32_t label) override {
    put_features(records(), element_, features);
    put_little(labels(), static_cast<std::uint32_t>(label));
  }

 private:
  Element element_;
};

class TfRecordWriter final : public RecordWriter {
 public:
  TfRecordWriter(const RecordFiles& files, Element element)
      : RecordWriter(files), element_(element) {}

  void add(std::uint64_t, std::span<const float> features, std::int32_t label) override {
    list_.clear();
    values_.clear();
    put_features(values_, element_, features);
    put_field(list_, 1, values_);  // of a BytesList, or of a FloatList, packed
    make_feature(element_ == Element::byte ? 1 : 2);
    features_.clear();
    add_entry("image");
    values_.clear();
    put_varint(values_, static_cast<std::uint64_t>(std::int64_t{label}));
    list_.clear();
    put_field(list_, 1, values_);  // Int64List.value, packed
    make_feature(3);
    add_entry("label");
    example_.clear();
    put_field(example_, 1, features_);
    put_record();
  }

 private:
  static void put_varint(Bytes& bytes, std::uint64_t number) {
    for (; number >= 0x80U; number >>= 7)
      bytes.push_back(static_cast<std::uint8_t>(number | 0x80U));
    bytes.push_back(static_cast<std::uint8_t>(number));
  }

  static void put_field(Bytes& bytes, std::uint8_t field, std::span<const std::uint8_t> value) {
    bytes.push_back(static_cast<std::uint8_t>(field << 3 | 2));  // wire type: bytes
    put_varint(bytes, value.size());
    bytes.insert(bytes.end(), value.begin(), value.end());
  }

  /// Builds a Feature with `list_` as field `kind`.
  void make_feature(std::uint8_t kind) {
    feature_.clear();
    put_field(feature_, kind, list_);
  }

  /// Appends `feature_` to the map with the key `key`.
  void add_entry(std::string_view key) {
    entry_.clear();
    put_field(entry_, 1, {reinterpret_cast<const std::uint8_t*>(key.data()), key.size()});
    put_field(entry_, 2, feature_);
    put_field(features_, 1, entry_);
  }

  void put_record() {
    Bytes& out = records();
    const std::size_t begin = out.size();
    put_little(out, std::uint64_t{example_.size()});
    put_little(out, masked(crc32c(std::span(out).subspan(begin))));
    out.insert(out.end(), example_.begin(), example_.end());
    put_little(out, masked(crc32c(example_)));
  }

  Element element_;
  Bytes values_, list_, feature_, entry_, features_, example_;
};

/// A table of texts.
class TextWriter final : public FormatWriter {
 public:
  using FormatWriter::FormatWriter;

  void add(std::span<const std::string> fields) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (i > 0) records().push_back(',');
      put_text(records(), csv_field(fields[i]));
    }
    records().push_back('\n');
  }
};

/// Throws ConfigError for a shape that the format cannot store. `shape.records` is the number of
/// records in this file.
std::unique_ptr<RecordWriter> new_record_writer(Format format, const RecordFiles& files,
                                                const RecordShape& shape) {
  switch (format) {
    case Format::idx: return std::make_unique<IdxWriter>(files, shape);
    case Format::csv: return std::make_unique<CsvWriter>(files, shape);
    case Format::npy: return std::make_unique<NpyWriter>(files, shape);
    case Format::tfrecord: return std::make_unique<TfRecordWriter>(files, shape.element);
    case Format::cifar:
    case Format::picture: break;
  }
  throw ConfigError(std::string("format ") + name_of(format) + " is read, but not written");
}

/// Writes the files of a target: `make(files, records)` returns a writer of that many records, to
/// which `add(writer, index)` adds one.
template <class Make, class Add>
FinishedFiles finish_files(const Target& target, std::uint64_t records, Make make, Add add) {
  require_files(target, records);
  const auto paths = files_of(target);
  std::vector<std::unique_ptr<NewFile>> finished;
  for (std::uint64_t file = 0; file < target.files; ++file) {
    const std::uint64_t first = share_begin(records, file, target.files);
    const std::uint64_t last = share_begin(records, file + 1, target.files);
    auto writer = make(paths[static_cast<std::size_t>(file)], last - first);
    for (std::uint64_t index = first; index < last; ++index) {
      add(*writer, index);
      writer->flush_some();
    }
    writer->finish(finished);
  }
  return FinishedFiles(std::move(finished));
}

}  // namespace

void FinishedFiles::publish() {
  for (const auto& file : files_) file->publish();
}

void require_files(const Target& target, std::uint64_t records) {
  if (target.files > 0 && target.files <= records) return;
  throw ConfigError(std::to_string(records) + " " + target.stem + " records do not fill " +
                        std::to_string(target.files) + " files",
                    "ask for at least one file, and at most as many as there are records");
}

FinishedFiles finish_records(const Target& target, const RecordShape& shape,
                             const RecordAt& record) {
  std::vector<float> features(static_cast<std::size_t>(shape.features()));
  const auto make = [&](const RecordFiles& files, std::uint64_t records) {
    RecordShape of_file = shape;
    of_file.records = records;
    return new_record_writer(target.format, files, of_file);
  };
  return finish_files(target, shape.records, make, [&](RecordWriter& writer, std::uint64_t index) {
    const std::int32_t label = record(index, features);
    writer.add(index, features, label);
  });
}

FinishedFiles finish_texts(const Target& target, std::uint64_t records,
                           const std::vector<std::string>& header, const TextsAt& record) {
  assert(target.format == Format::csv);
  const auto make = [&](const RecordFiles& files, std::uint64_t) {
    auto writer = std::make_unique<TextWriter>(files);
    if (!header.empty()) writer->add(header);
    return writer;
  };
  return finish_files(target, records, make,
                      [&](TextWriter& writer, std::uint64_t index) { writer.add(record(index)); });
}

}  // namespace lockstep::data

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <random>
#include <stdexcept>

#include "lockstep/data/batches.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/stored_source.hpp"
#include "lockstep/data/synthetic.hpp"
#include "lockstep/data/transform.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using data::Element;
using data::Format;

constexpr std::uint64_t record_count = 40;

/// Any byte, the same for the same record and feature.
std::int32_t random_record(std::uint64_t index, std::span<float> features) {
  std::mt19937 random(static_cast<unsigned>(index));
  for (float& feature : features) feature = static_cast<float>(random() % 256);
  return static_cast<std::int32_t>(index % 10);
}

/// A folder whose two parts hold `record_count` records each.
struct Written {
  Written(Format format, std::uint64_t files, Element element = Element::byte) {
    for (const char* part : {"train", "test"}) {
      write_records({folder.path(), part, format, files}, {record_count, {7, 5}, element},
                    random_record);
    }
  }

  /// Packs every file, and removes the plain one.
  void pack() const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      files.push_back(entry.path());
    }
    for (const auto& file : files) {
      folder.write(file.filename().string() + ".gz", gzip(read_bytes(file)));
      std::filesystem::remove(file);
    }
  }

  std::unique_ptr<data::Source> open(std::optional<float> divide_by = {}) const {
    return data::open_data_part(folder.path().string(), data::Part::train,
                                {.train_limit = {}, .test_limit = {}, .divide_by = divide_by});
  }

  TemporaryFolder folder;
};

/// Runs of ids, ids again, ids at random.
std::vector<std::uint64_t> mixed_ids(std::uint64_t records, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint64_t> ids;
  while (ids.size() < 100) {
    const std::uint64_t first = random() % records;
    const std::uint64_t run = random() % 2 == 0 ? 1 : 1 + random() % 9;
    for (std::uint64_t id = first; id < std::min(first + run, records); ++id) ids.push_back(id);
  }
  return ids;
}

/// Reads both ways, and compares labels and every bit of the features.
void check_same(data::Source& source, const std::vector<std::uint64_t>& ids) {
  const std::uint64_t before = source.bytes_read();
  const Records floats = read(source, ids);
  const std::uint64_t between = source.bytes_read();
  std::vector<std::uint8_t> bytes(floats.x.size(), 77);
  std::vector<std::int32_t> classes(ids.size(), -1);
  source.read_bytes(ids, bytes, classes);
  REQUIRE(source.bytes_read() - between == between - before);
  REQUIRE(classes == floats.labels);
  std::size_t different = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    volatile auto value = static_cast<float>(bytes[i]);  // one division at a time
    const float divided = value / source.divisor();
    different += std::bit_cast<std::uint32_t>(divided) == std::bit_cast<std::uint32_t>(floats.x[i])
                     ? 0U
                     : 1U;
  }
  REQUIRE(different == 0);
}

TEST_CASE("bytes divided are what read gives, bit for bit, in every format", "[data][bytes]") {
  const Format format = GENERATE(Format::idx, Format::npy, Format::tfrecord);
  const std::uint64_t files = GENERATE(1, 3);
  const bool packed = GENERATE(false, true);
  const Written written(format, files);
  if (packed) written.pack();
  for (const auto divide_by : {std::optional<float>(), std::optional(1.0F), std::optional(3.0F),
                               std::optional(0.7F), std::optional(1e-38F), std::optional(3e38F)}) {
    const auto source = written.open(divide_by);
    REQUIRE(source->element() == Element::byte);
    REQUIRE(source->divisor() == divide_by.value_or(255.0F));
    check_same(*source, {});
    for (unsigned seed = 0; seed < 5; ++seed) {
      check_same(*source, mixed_ids(source->records(), seed));
    }
  }
}

TEST_CASE("drawings are given as bytes too", "[data][bytes]") {
  const auto& set = *data::drawn_set(GENERATE("synthetic", "synthetic-rgb"));
  const float divide_by = GENERATE(255.0F, 3.0F, 0.7F);
  data::SyntheticSource source(set, data::Part::train,
                               {.limit = 600, .divide_by = divide_by, .classes = 10});
  check_same(source, mixed_ids(600, 1));
  data::SyntheticSource fresh(set, data::Part::train, {});
  std::vector<std::uint8_t> bytes(source.features());
  std::vector<std::int32_t> label(1);
  fresh.read_bytes(std::vector<std::uint64_t>{300}, bytes, label);  // drawn by it alone
  const Records expected = read(fresh, {300});
  CHECK(label == expected.labels);
  CHECK(std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte > 0; }));
}

TEST_CASE("numbers are not given as bytes", "[data][bytes]") {
  const Format format = GENERATE(Format::csv, Format::npy, Format::tfrecord);
  const Written written(format, GENERATE(1, 3), Element::number);
  const auto source = written.open();
  std::vector<std::uint8_t> bytes(source->features());
  std::vector<std::int32_t> label(1);
  const std::vector<std::uint64_t> ids{0};
  CHECK_THAT(message_of<std::logic_error>([&] { source->read_bytes(ids, bytes, label); }),
             Contains("numbers, not bytes"));
  CHECK(source->bytes_read() == 0);
}

/// Says that it has bytes, and does not override read_bytes.
class Forgetful final : public data::Source {
 public:
  std::uint64_t records() const noexcept override { return 1; }
  std::size_t features() const noexcept override { return 1; }
  float divisor() const noexcept override { return 1; }
  Element element() const noexcept override { return Element::byte; }
  std::string identity() const override { return "forgetful"; }
  void read(std::span<const std::uint64_t>, std::span<float>, std::span<std::int32_t>) override {}
};

TEST_CASE("a source that does not give its bytes says so", "[data][bytes]") {
  Forgetful source;
  std::vector<std::uint8_t> bytes(1);
  std::vector<std::int32_t> label(1);
  CHECK_THAT(message_of<std::logic_error>(
                 [&] { source.read_bytes(std::vector<std::uint64_t>{0}, bytes, label); }),
             Contains("gives no bytes") && Contains("forgetful"));
}

TEST_CASE("bytes for records and lengths that do not fit are refused", "[data][bytes]") {
  const Written written(Format::idx, GENERATE(1, 2));
  const auto source = written.open();
  std::vector<std::uint8_t> bytes(2 * source->features());
  std::vector<std::int32_t> classes(2);
  const std::vector<std::uint64_t> ids{0, 1};
  const std::vector<std::uint64_t> beyond{0, record_count};
  CHECK_THROWS_AS(source->read_bytes(beyond, bytes, classes), std::out_of_range);
  CHECK_THROWS_AS(source->read_bytes(ids, std::span(bytes).first(1), classes),
                  std::invalid_argument);
  CHECK_THROWS_AS(source->read_bytes(ids, bytes, std::span(classes).first(1)),
                  std::invalid_argument);
}

TEST_CASE("a TFRecord whose bytes were damaged meanwhile is refused as bytes", "[data][bytes]") {
  const Written written(Format::tfrecord, 1);
  const auto source = written.open();
  const auto path = written.folder.path() / "train.tfrecord";
  Bytes file = read_bytes(path);
  file[file.size() - 10] ^= 1;  // in the last record
  written.folder.write("train.tfrecord", file);
  std::vector<std::uint8_t> bytes(source->features());
  std::vector<std::int32_t> label(1);
  source->read_bytes(std::vector<std::uint64_t>{0}, bytes, label);
  CHECK_THAT(message_of<std::exception>([&] {
               source->read_bytes(std::vector<std::uint64_t>{record_count - 1}, bytes, label);
             }),
             Contains("train.tfrecord") && Contains("checksum"));
}

TEST_CASE("several sources give bytes where all of them do", "[data][bytes]") {
  const Written bytes(Format::idx, 1);
  const Written numbers(Format::npy, 1, Element::number);
  const bool bytes_first = GENERATE(true, false);
  std::vector<std::unique_ptr<data::Source>> parts;
  parts.push_back((bytes_first ? bytes : numbers).open(255.0F));
  parts.push_back((bytes_first ? numbers : bytes).open(255.0F));
  data::ConcatSource source(std::move(parts));
  CHECK(source.element() == Element::number);
  CHECK(read(source, {0, record_count}).x.size() == 2 * source.features());
  std::vector<std::uint8_t> x(source.features());
  std::vector<std::int32_t> label(1);
  const std::vector<std::uint64_t> ids{bytes_first ? 0 : record_count};  // of the part of bytes
  CHECK_THROWS_AS(source.read_bytes(ids, x, label), std::logic_error);

  std::vector<std::unique_ptr<data::Source>> differing;
  differing.push_back(bytes.open(1.0F));
  differing.push_back(bytes.open(255.0F));
  CHECK_THROWS_AS(data::ConcatSource(std::move(differing)), std::invalid_argument);
}

TEST_CASE("a batch of bytes is the batch of floats before the division", "[data][bytes]") {
  const Written written(GENERATE(Format::idx, Format::tfrecord), 2);
  const auto source = written.open(3.0F);
  data::PlanOptions options;
  options.records = record_count;
  options.batch_size = 7;
  options.ranks = 2;
  options.shuffle = data::Shuffle::global;
  const data::Plan plan(options);
  for (const int rank : {0, 1}) {
    data::BatchReader reader(*source, plan, rank);
    REQUIRE(reader.gives_bytes());
    REQUIRE(reader.divisor() == 3.0F);
    for (std::uint64_t step = 0; step < plan.steps(); ++step) {
      std::vector<float> x(reader.piece(step).size() * reader.features());
      std::vector<std::uint8_t> bytes(x.size());
      const data::Batch floats = reader.read(1, step, x);
      const std::vector<std::uint64_t> ids(floats.ids.begin(), floats.ids.end());
      const std::vector<std::int32_t> classes(floats.labels.begin(), floats.labels.end());
      const data::Batch batch = reader.read_bytes(1, step, bytes);
      REQUIRE(batch.piece == floats.piece);
      REQUIRE(batch.global_examples == floats.global_examples);
      REQUIRE(batch.step == step);
      REQUIRE(std::equal(batch.ids.begin(), batch.ids.end(), ids.begin(), ids.end()));
      REQUIRE(std::equal(batch.labels.begin(), batch.labels.end(), classes.begin(), classes.end()));
      for (std::size_t i = 0; i < x.size(); ++i) {
        REQUIRE(x[i] == static_cast<float>(bytes[i]) / 3.0F);
      }
    }
  }
}

TEST_CASE("a reader gives no bytes of numbers, nor of changed features", "[data][bytes]") {
  const Written bytes(Format::idx, 1);
  const Written numbers(Format::csv, 1, Element::number);
  data::PlanOptions options;
  options.records = record_count;
  options.batch_size = 8;
  const data::Plan plan(options);
  const bool changed = GENERATE(true, false);
  const auto source = changed ? bytes.open() : numbers.open();
  data::Transform transform({.noise = 0.1}, 1, {7, 5});
  data::BatchReader reader(*source, plan, 0, changed ? &transform : nullptr);
  REQUIRE_FALSE(reader.gives_bytes());
  std::vector<std::uint8_t> x(8 * reader.features());
  CHECK_THROWS_AS(reader.read_bytes(0, 0, x), std::logic_error);
}

}  // namespace
}  // namespace lockstep::test

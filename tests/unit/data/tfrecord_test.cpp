#include "lockstep/data/tfrecord.hpp"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tfrecord_bytes.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::TfRecordSource;

Bytes image(const Bytes& pixels) { return entry("image", field(1, field(1, pixels))); }
Bytes label(std::uint8_t value) { return entry("label", field(3, field(1, {value}))); }

Bytes good(std::uint8_t which) { return record(example(image({which, 2, 255}) + label(which))); }

struct RecordFile {
  explicit RecordFile(const Bytes& bytes) : path(folder.write("t.tfrecord", bytes)) {}
  Records read(const data::ReadOptions& options = {}) const {
    TfRecordSource source(path, options);
    return read_all(source);
  }
  std::string error() const {
    std::string what = message_of<DataError>([&] { TfRecordSource(path, {}); });
    const std::string before = folder.path().string() + "/";
    if (what.starts_with(before)) what.erase(0, before.size());
    return what;
  }
  TemporaryFolder folder;
  std::filesystem::path path;
};

TEST_CASE("CRC-32C is that of RFC 3720", "[data]") {
  Bytes bytes(32, 0);
  CHECK(data::crc32c(bytes) == 0x8A9136AAU);
  std::fill(bytes.begin(), bytes.end(), 0xFF);
  CHECK(data::crc32c(bytes) == 0x62A8AB43U);
  for (std::uint8_t i = 0; i < 32; ++i) bytes[i] = i;
  CHECK(data::crc32c(bytes) == 0x46DD794EU);
  CHECK(data::crc32c(text("123456789")) == 0xE3069283U);
  for (const std::size_t size : {0, 1, 7, 31, 255, 1024, 5000}) {  // bit by bit
    bytes.resize(size);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{3});
    std::uint32_t crc = ~0U;
    for (const std::uint8_t byte : bytes) {
      crc ^= byte;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    }
    CHECK(data::crc32c(bytes) == ~crc);
  }
  CHECK(data::masked(0xE3069283U) == 0xC78AB0E5U);
}

TEST_CASE("a file that TensorFlow wrote is read, and written alike", "[data]") {
  // tf.io.TFRecordWriter of TensorFlow 2.21: image b"\\x01\\x02\\xff", label 7.
  const Bytes golden{0x24, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x42, 0x2B, 0x80, 0x4D, 0x0A,
                     0x22, 0x0A, 0x10, 0x0A, 0x05, 0x69, 0x6D, 0x61, 0x67, 0x65, 0x12, 0x07, 0x0A,
                     0x05, 0x0A, 0x03, 0x01, 0x02, 0xFF, 0x0A, 0x0E, 0x0A, 0x05, 0x6C, 0x61, 0x62,
                     0x65, 0x6C, 0x12, 0x05, 0x1A, 0x03, 0x0A, 0x01, 0x07, 0xB9, 0x17, 0xA0, 0xD0};
  CHECK(RecordFile(golden).read({.limit = {}, .divide_by = 1.0F}) == Records{{1, 2, 255}, {7}});
  const TemporaryFolder folder;
  write_records({folder.path(), "train", data::Format::tfrecord, 1}, {1, {3}, data::Element::byte},
                [](std::uint64_t, std::span<float> features) {
                  const std::vector<float> pixels{1, 2, 255};
                  std::copy(pixels.begin(), pixels.end(), features.begin());
                  return 7;
                });
  CHECK(read_bytes(folder.path() / "train.tfrecord") == golden);
}

TEST_CASE("examples are read in every encoding that protocol buffers allow", "[data]") {
  const Bytes unknown =
      entry("height", field(3, field(1, {28}))) + entry("name", field(1, field(1, text("x"))));
  const Bytes unpacked_label = entry("label", field(3, {1 << 3, 7}));
  const Records expected{{1.0F / 255.0F, 2.0F / 255.0F, 1.0F}, {7}};
  const Bytes pixels{1, 2, 255};
  const Bytes payload =
      GENERATE_COPY(example(image(pixels) + label(7)), example(label(7) + image(pixels)),
                    example(unknown + label(7) + image(pixels) + unknown),
                    example(image(pixels) + unpacked_label),
                    example(image(pixels)) + example(label(7)),            // messages merge
                    example(image({9, 9}) + image(pixels) + label(7)),     // the last entry counts
                    Bytes{2 << 3, 5} + example(image(pixels) + label(7)),  // unknown fields
                    Bytes{3 << 3 | 5, 1, 2, 3, 4} + example(image(pixels) + label(7)),
                    Bytes{3 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8} + example(image(pixels) + label(7)));
  CHECK(RecordFile(record(payload)).read() == expected);
  CHECK(RecordFile(gzip(record(payload))).read() == expected);
}

TEST_CASE("images of floats are numbers, packed or not", "[data]") {
  const std::vector<float> values{0.1F, -2.0F, 3e-40F};
  for (const bool packed : {true, false}) {
    const RecordFile file(record(example(entry("image", floats(values, packed)) + label(3))));
    CHECK(file.read() == Records{values, {3}});
    CHECK(file.read({.limit = {}, .divide_by = 2.0F}).x[1] == -1.0F);
  }
}

TEST_CASE("TFRecord is read by position, and counts what it reads", "[data]") {
  Bytes bytes;
  for (std::uint8_t i = 0; i < 10; ++i) bytes = bytes + good(i);
  const RecordFile file(bytes);
  TfRecordSource source(file.path, {});
  REQUIRE(source.records() == 10);
  REQUIRE(source.features() == 3);
  REQUIRE(source.bytes_read() == 0);
  REQUIRE(read(source, {9, 3, 4, 0}).labels == std::vector<std::int32_t>{9, 3, 4, 0});
  REQUIRE(source.bytes_read() == 4 * good(0).size());
  for (const std::size_t length : {0x8B1F, 0x88B1F}) {  // as gzip files begin
    Bytes pixels(35'000);
    pixels.resize(pixels.size() + length - example(image(pixels) + label(1)).size());
    pixels.resize(pixels.size() + length - example(image(pixels) + label(1)).size());
    const RecordFile like_gzip(record(example(image(pixels) + label(1))));
    CHECK(TfRecordSource(like_gzip.path, {}).features() == pixels.size());
  }
  TfRecordSource few(file.path, {.limit = 2, .divide_by = {}});
  REQUIRE(few.records() == 2);
}

TEST_CASE("what is wrong with a TFRecord file is named with byte and record", "[data]") {
  const auto error = [](const Bytes& bytes) { return RecordFile(bytes).error(); };
  const auto of = [&](const Bytes& payload) { return error(good(1) + record(payload)); };
  const std::string at = "t.tfrecord: byte " + std::to_string(good(1).size()) + ": record 1: ";
  CHECK_THAT(error({}), StartsWith("t.tfrecord: byte 0: holds 0 records"));
  CHECK_THAT(error(good(1) + Bytes{1, 2}), StartsWith(at + "the file ends within its header"));
  CHECK_THAT(error(images(9)),
             StartsWith("t.tfrecord: byte 0: record 0: the checksum of its length"));
  Bytes bad = good(1) + good(2);
  bad[good(1).size() + 20] ^= 1;
  CHECK_THAT(error(bad), StartsWith("t.tfrecord: byte " + std::to_string(good(1).size() + 12) +
                                    ": record 1: the checksum of its payload differs"));
  bad = good(1) + good(2);
  bad.pop_back();
  CHECK_THAT(error(bad), StartsWith(at) && Contains("beyond the file's end"));
  const Bytes huge = little(~std::uint64_t{0});
  CHECK_THAT(error(good(1) + huge + little(data::masked(data::crc32c(huge))) + Bytes(40)),
             StartsWith(at + "its 18446744073709551615 bytes go beyond"));
  CHECK_THAT(of({}), StartsWith(at + "the example has no feature 'image'"));
  CHECK_THAT(of(example(label(1))), StartsWith(at + "the example has no feature 'image'"));
  CHECK_THAT(of(example(image({1, 2, 3}))), StartsWith(at + "the example has no feature 'label'"));
  CHECK_THAT(of(example(image({1, 2}) + label(1))),
             StartsWith(at + "feature 'image' has 2 bytes, but that of record 0 has 3 bytes"));
  CHECK_THAT(of(example(entry("image", floats({1, 2, 3})) + label(1))), Contains("has 3 floats"));
  CHECK_THAT(of(example(entry("image", floats({})) + label(1))), Contains("holds no float"));
  CHECK_THAT(of(example(image({}) + label(1))), Contains("holds no byte"));
  CHECK_THAT(of(example(entry("image", field(3, field(1, {1}))) + label(1))),
             Contains("neither bytes nor floats"));
  CHECK_THAT(of(example(entry("image", {}) + label(1))), Contains("neither bytes nor floats"));
  CHECK_THAT(of(example(entry("image", field(1, field(1, {1}) + field(1, {2}))) + label(1))),
             Contains("2 byte strings"));
  CHECK_THAT(of(example(image({1, 2, 3}) + entry("label", floats({1})))),
             Contains("holds no int64"));
  CHECK_THAT(of(example(image({1, 2, 3}) + entry("label", field(3, field(1, {1, 2}))))),
             Contains("2 numbers"));
  CHECK_THAT(of(example(image({1, 2, 3}) + label(10))),
             Contains("the label of record 1 is 10") && Contains("`classes=11`"));
  const Bytes minus(9, 0xFF);
  CHECK_THAT(of(example(image({1, 2, 3}) + entry("label", field(3, field(1, minus + Bytes{1}))))),
             Contains("is -1"));
  CHECK_THAT(of(text("hello")), Contains("not a tf.train.Example"));
  CHECK_THAT(of({10, 200}), Contains("malformed"));
  CHECK_THAT(of(Bytes{11} + example(image({1, 2, 3}) + label(1))), Contains("malformed"));
  const auto nan = std::numeric_limits<float>::infinity();
  CHECK_THAT(error(record(example(entry("image", floats({nan})) + label(1)))),
             Contains("not finite"));
  CHECK_THAT(error(record(example(image({0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0}) + label(1)))),
             Contains("PNG or JPEG") && Contains("decode"));
  CHECK_THAT(error(record(example(image({0xFF, 0xD8, 0xFF, 0xE1, 0, 24}) + label(1)))),
             Contains("PNG or JPEG"));
}

TEST_CASE("a TFRecord file that changes while it is open is bad data", "[data]") {
  const RecordFile file(good(1) + good(2));
  TfRecordSource source(file.path, {});
  Bytes changed = good(1) + good(2);
  changed[changed.size() - 10] ^= 4;
  file.folder.write("t.tfrecord", changed);
  REQUIRE_THAT(message_of<DataError>([&] { read(source, {1}); }),
               Contains("record 1: the checksum of its payload"));
}

}  // namespace
}  // namespace lockstep::test

#include "lockstep/data/csv.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::CsvSource;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

struct CsvFile {
  explicit CsvFile(std::string_view text) : path(folder.write("t.csv", bytes_of(text))) {}

  /// The message without the folder.
  std::string error(const data::ReadOptions& options = {}) const {
    std::string what = message_of<DataError>([&] { CsvSource(path, options); });
    const std::string before = folder.path().string() + "/";
    if (what.starts_with(before)) what.erase(0, before.size());
    return what;
  }

  TemporaryFolder folder;
  std::filesystem::path path;
};

Records read_text(std::string_view text, const data::ReadOptions& options = {}) {
  const CsvFile file(text);
  CsvSource source(file.path, options);
  return read_all(source);
}

const Records two{{1.0F, 2.5F, 3.0F, -4.0F}, {7, 0}};

TEST_CASE("CSV of all usual shapes gives the same records", "[data]") {
  const std::string text = GENERATE(
      "label,a,b\n7,1,2.5\n0,3,-4\n", "label,a,b\n7,1,2.5\n0,3,-4", "a,label,b\n1,7,2.5\n3,0,-4\n",
      "a,b,label\r\n1,2.5,7\r\n3,-4,0\r\n", "a,b,label\r\n1,2.5,7\r\n3,-4,0\r\n\r\n\n",
      "\xEF\xBB\xBFlabel,a,b\n7,1,2.5\n0,3,-4\n",
      "\"label\",\"a,\n\"\"x\"\"\",b\n\"7\",\"1\",2.5\n0,\"3\",-4\n",
      "label,a,b\n 7 , +1,2.5e0\t\n+0,0.3E1,-4.\n", "a,label,a\n1,7,2.5\n3,0,-4\n");
  CHECK(read_text(text) == two);
}

/// A record of `columns` fields of which `label` is a label: zeros mostly, some of all kinds.
std::string random_row(std::mt19937& random, std::size_t columns, std::size_t label, bool quoted) {
  const auto pick = [&](auto... words) {
    const std::array<const char*, sizeof...(words)> all{words...};
    return std::string(all[random() % all.size()]);
  };
  std::string row;
  for (std::size_t i = 0; i < columns; ++i) {
    std::string field = random() % 4 != 0 ? "0"
                                          : pick("7", "42", "255", "007", "1000", "-0", "-3", "+5",
                                                 "0.0", "2.5e3", " 9", "8 ", "1e-50", "0.1");
    if (i == label) field = pick("0", "9", "+4", " 3 ");
    row += (i == 0 ? "" : ",") + (quoted ? '"' + field + '"' : field);
  }
  return row;
}

TEST_CASE("quoted and plain CSV are the same numbers, bit for bit", "[data]") {
  std::mt19937 random(11);
  for (std::size_t columns = 2; columns < 40; ++columns) {
    const std::size_t label = random() % columns;
    std::string header;
    for (std::size_t i = 0; i < columns; ++i) {
      header += (i == 0 ? "" : ",") + (i == label ? "label" : "c" + std::to_string(i));
    }
    std::string plain = header + "\n";
    std::string quoted = plain;
    for (int row = 0; row < 20; ++row) {
      auto again = random;
      plain += random_row(random, columns, label, false) + "\n";
      quoted += random_row(again, columns, label, true) + "\n";
    }
    const auto one = read_text(plain);
    const auto other = read_text(quoted);
    REQUIRE(one.labels == other.labels);
    REQUIRE(one.x.size() == other.x.size());
    REQUIRE(std::memcmp(one.x.data(), other.x.data(), one.x.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a CSV row that is not whole is refused after whatever went well", "[data]") {
  const std::string header = "label,a,b,c,d,e\n";
  const auto said = [&](const char* row) {
    return CsvFile(header + "1,0,0,0,0,0\n" + row + "\n").error();
  };
  CHECK_THAT(said("1,0,0,0,0"), StartsWith("t.csv:3: 5 fields, but the header names 6"));
  CHECK_THAT(said("1,0,0,0,0,0,"), StartsWith("t.csv:3: 7 fields, but the header names 6"));
  CHECK_THAT(said("1,0,0,0,0,0,0"), StartsWith("t.csv:3: 7 fields, but the header names 6"));
  CHECK_THAT(said("1,0,0,0,0,"), StartsWith("t.csv:3: column 'e': ''"));
  CHECK_THAT(said("1,0,0,0,0,0x"), StartsWith("t.csv:3: column 'e': '0x'"));
  CHECK_THAT(said("1,0,0,12a,0,0"), StartsWith("t.csv:3: column 'c': '12a'"));
  CHECK_THAT(said(",0,0,0,0,0"), StartsWith("t.csv:3: column 'label': ''"));
  CHECK_THAT(said("1"), StartsWith("t.csv:3: 1 fields, but the header names 6"));
}

TEST_CASE("a CSV of very many columns is refused before they are stored", "[data]") {
  const auto header = [](std::size_t columns) { return "label" + std::string(columns - 1, ','); };
  const std::size_t most = 1'000'000;
  const CsvFile file(header(most) + "\n7" + std::string(most, ',') + "\n");
  CHECK_THAT(file.error(), StartsWith("t.csv:2: column '': '' is not a finite number"));
  CHECK_THAT(CsvFile(header(most + 1) + "\n").error(),
             StartsWith("t.csv:1: the header names more than 1000000 columns"));

  std::string wide = header(100'000) + "\n3";
  for (int i = 1; i < 100'000; ++i) wide += ",2";
  const Records records = read_text(wide);
  CHECK(records.labels == std::vector<std::int32_t>{3});
  CHECK(records.x == std::vector<float>(99'999, 2.0F));
}

TEST_CASE("a CSV record may be longer than what is read at once, inside quotes and outside",
          "[data]") {
  std::string name = "\"";
  for (int i = 0; i < 150'000; ++i) name += "a\"\"\n,";
  const std::string header = "label," + name + "\"," + std::string(600'000, 'b') + "\n";
  CHECK(read_text(header + "7,1,2.5\n0,3,-4\n") == two);
  CHECK_THAT(CsvFile(header + "7,1,2.5\n0,x,-4\n").error(), StartsWith("t.csv:150003: column"));
}

TEST_CASE("CSV is read by position, and counts what it reads", "[data]") {
  std::string text = "label,a,b\n";
  for (int i = 0; i < 1000; ++i) {
    text += std::to_string(i % 10) + "," + std::to_string(i) + "," + std::to_string(i) + ".25\n";
  }
  const CsvFile file(text);
  CsvSource source(file.path, {});
  REQUIRE(source.records() == 1000);
  REQUIRE(source.bytes_read() == 0);
  const auto got = read(source, {999, 3, 4, 5, 0});
  REQUIRE(got.labels == std::vector<std::int32_t>{9, 3, 4, 5, 0});
  REQUIRE(got.x == std::vector<float>{999, 999.25F, 3, 3.25F, 4, 4.25F, 5, 5.25F, 0, 0.25F});
  REQUIRE(source.bytes_read() == 13 + 3 * 9 + 9);
  CsvSource few(file.path, {.limit = 7, .divide_by = 2.0F});
  REQUIRE(few.records() == 7);
  REQUIRE(read(few, {6}).x == std::vector<float>{3, 3.125F});
  REQUIRE(few.identity() != source.identity());
  const auto packed = file.folder.write("t.csv.gz", gzip(bytes_of(text)));
  CsvSource inflated(packed, {});
  REQUIRE(read_all(inflated) == read_all(source));
  REQUIRE(inflated.identity() == source.identity());
}

TEST_CASE("decimal numbers become the nearest float32", "[data]") {
  std::mt19937 bits(3);
  for (int i = 0; i < 20000; ++i) {
    const auto word = static_cast<std::uint32_t>(bits());
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    if (!std::isfinite(value)) continue;
    char text[64];
    std::snprintf(text, sizeof text, i % 2 == 0 ? "%.9g" : "%.17g", static_cast<double>(value));
    REQUIRE(data::parse_float(text) == std::strtof(text, nullptr));
  }
  // Decimals of up to 18 digits, among them such that lie half way between two floats or beside it.
  for (int i = 0; i < 200'000; ++i) {
    std::string text = std::to_string(bits());
    if (i % 4 == 1) text = std::to_string((bits() % 8388608) * 2 + 16777217);
    if (i % 4 == 2) text = std::to_string((std::uint64_t{bits()} << 27) % 1'000'000'000'000'000);
    if (i % 4 == 3) text += std::to_string(bits() % 100'000'000);
    text.resize(std::min<std::size_t>(text.size(), 1 + bits() % 18));
    if (i % 3 > 0) text.insert(1 + bits() % text.size(), ".");
    if (text.back() == '.') text.pop_back();
    if (i % 5 == 0) text = "-" + text;
    INFO(text);
    const auto number = data::parse_float(text);
    REQUIRE(number == std::strtof(text.c_str(), nullptr));
    float scanned = 0;
    const std::size_t length = data::scan_decimal(text + ",12345678", scanned);
    REQUIRE((length == 0 || (length == text.size() && scanned == *number)));
  }
  CHECK(std::signbit(*data::parse_float("-0.0")));
  CHECK(data::parse_float("8388608.5000000001") == 8388609.0F);
  CHECK(data::parse_float("8388608.5") == 8388608.0F);
  CHECK(data::parse_float("1e-60") == 0.0F);
  CHECK(data::parse_float("1e-6000") == 0.0F);
  CHECK(data::parse_float("007") == 7.0F);
  for (const char* none :
       {"", " ", "nan", "inf", "-inf", "1e39", "1e4000", "1x", "--1", "+-1", "0x10", "1,2", "1 2",
        "e", ".", "1e-60kg", "1e60x", "4e51abce-7d1f-4c2b-9e5a-0123456789ab"}) {
    CHECK_FALSE(data::parse_float(none));
  }
  for (const char* none : {"", "1.0", "x", "9223372036854775808", "1 2"}) {
    CHECK_FALSE(data::parse_whole(none));
  }
}

TEST_CASE("what is wrong with a CSV file is named with line and column", "[data]") {
  const auto error = [](std::string_view text) { return CsvFile(text).error(); };
  CHECK_THAT(error(""), StartsWith("t.csv:1: the header line is missing"));
  CHECK_THAT(error("\n"), StartsWith("t.csv:1: the header line is missing"));
  CHECK_THAT(error("label,a\n"), StartsWith("t.csv:2: no record"));
  CHECK_THAT(error("7,1\n8,2\n"),
             StartsWith("t.csv:1: no column of the header is named 'label'; it begins with '7'"));
  CHECK_THAT(error("label,label,a\n1,1,1\n"),
             StartsWith("t.csv:1: columns 1 and 2 are both named 'label'"));
  CHECK_THAT(error("label\n1\n"), StartsWith("t.csv:1: the header names no column besides"));
  CHECK_THAT(error("label,a\n1,2\n1,x\n"),
             StartsWith("t.csv:3: column 'a': 'x' is not a finite number"));
  CHECK_THAT(error("label,a\n1,nan\n"), StartsWith("t.csv:2: column 'a': 'nan'"));
  CHECK_THAT(error("label,a\n1,1e99\n"), StartsWith("t.csv:2: column 'a': '1e99'"));
  CHECK_THAT(error("label,a\n1,\n"), StartsWith("t.csv:2: column 'a': ''"));
  CHECK_THAT(error("label,a\n1.0,2\n"),
             StartsWith("t.csv:2: column 'label': '1.0' is not a whole number"));
  CHECK_THAT(error("label,a\n1,2\n10,2\n"),
             StartsWith("t.csv:3: column 'label': the label of record 1 is 10") &&
                 Contains("`classes=11`"));
  CHECK_THAT(error("label,a\n-1,2\n"), Contains("is -1, outside [0, 10)"));
  CHECK_THAT(error("label,a\n1,2,3\n"), StartsWith("t.csv:2: 3 fields, but the header names 2"));
  CHECK_THAT(error("label,a\n1\n"), StartsWith("t.csv:2: 1 fields"));
  CHECK_THAT(error("label,a\n1,2\n\n1,2\n"), StartsWith("t.csv:3: an empty line between"));
  CHECK_THAT(error("label,a\n1,\"2\n1,2\n"),
             StartsWith("t.csv:2: a quote is opened and never closed"));
  CHECK_THAT(error("label,a\n1,\"2\"3\n"), StartsWith("t.csv:2: text follows a closing quote"));
  CHECK_THAT(error("label,a\n1,2\"3\"\n"), StartsWith("t.csv:2: a quote stands inside"));
  CHECK_THAT(error("label,\"a\nb\"\n1,2\n1,y\n"), StartsWith("t.csv:4: column 'a?b': 'y'"));
  CHECK_THAT(error(std::string("label,a\n1,2\0\n", 13)), StartsWith("t.csv:2: column 'a': '2?'"));
}

TEST_CASE("features of other names, or in another order, do not belong together", "[data]") {
  const TemporaryFolder folder;
  folder.write("train-00000-of-00002.csv", bytes_of("b,label,c\n1,7,2\n"));
  const auto error = [&](const char* shard, const char* test) {
    folder.write("train-00001-of-00002.csv", bytes_of(shard));
    folder.write("test.csv", bytes_of(test));
    return message_of<DataError>([&] { data::open_data_set(folder.path().string(), {}); });
  };
  CHECK_THAT(error("c,label,b\n1,7,2\n", "b,c,label\n1,2,7\n"),
             Contains("train-00001-of-00002.csv:1: feature 0 is called 'c'") && Contains("'b'"));
  CHECK_THAT(error("b,c,label\n1,2,7\n", "b,x,label\n1,2,7\n"),
             Contains("test.csv:1: feature 1 is called 'x'"));
  folder.write("test.csv", bytes_of("label,b,c\n7,1,2\n"));  // the label may stand anywhere
  CHECK(data::open_data_set(folder.path().string(), {}).test->records() == 1);
}

TEST_CASE("a CSV file that changes while it is open is bad data", "[data]") {
  const CsvFile file("label,a\n1,2\n3,4\n");
  CsvSource source(file.path, {});
  file.folder.write("t.csv", bytes_of("label,a\n1,x\n3,4\n"));
  REQUIRE_THAT(message_of<DataError>([&] { read(source, {0}); }),
               StartsWith(file.path.string() + ": byte 8: record 0 has changed"));
  std::filesystem::resize_file(file.path, 10);
  REQUIRE_THAT(message_of<DataError>([&] { read(source, {1}); }), Contains("the file ends here"));
}

}  // namespace
}  // namespace lockstep::test

#include "lockstep/data/npy.hpp"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::NpySource;

/// An NPY file of version `major`, whose header is `dict` as it stands.
Bytes npy(const std::string& dict, const Bytes& payload, std::uint8_t major = 1) {
  Bytes bytes{0x93, 'N', 'U', 'M', 'P', 'Y', major, 0};
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    bytes.push_back(static_cast<std::uint8_t>(dict.size() >> (8 * i)));
  }
  bytes.insert(bytes.end(), dict.begin(), dict.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

std::string dict(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }    \n";
}

template <class T>
Bytes raw(const std::vector<T>& values, bool swapped = false) {
  Bytes bytes;
  for (const T value : values) {
    Bytes one(sizeof(T));
    std::memcpy(one.data(), &value, sizeof(T));
    if (swapped) std::reverse(one.begin(), one.end());
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return bytes;
}

struct Pair {
  Pair(const Bytes& image_bytes, const Bytes& label_bytes) {
    folder.write("i.npy", image_bytes);
    folder.write("l.npy", label_bytes);
  }
  NpySource open(const data::ReadOptions& options = {}) const {
    return {folder.path() / "i.npy", folder.path() / "l.npy", options};
  }
  std::string error(const data::ReadOptions& options = {}) const {
    std::string what = message_of<DataError>([&] {
      auto source = open(options);
      read_all(source);
    });
    const std::string before = folder.path().string() + "/";
    for (auto at = what.find(before); at != what.npos; at = what.find(before))
      what.erase(at, before.size());
    return what;
  }
  TemporaryFolder folder;
};

const Bytes good_labels = npy(dict("<i8", "(2,)"), raw<std::int64_t>({7, 0}));
const Bytes good_bytes = npy(dict("|u1", "(2, 3)"), {0, 1, 2, 3, 4, 255});

template <class T>
void check_type(const std::string& kind, const std::vector<T>& values) {
  for (const bool swapped : {false, true}) {
    const std::string order = sizeof(T) == 1 ? "|" : swapped ? ">" : "<";
    const auto descr = order + kind + std::to_string(sizeof(T));
    const Pair pair(npy(dict(descr, "(2, 3)"), raw(values, swapped && sizeof(T) > 1)), good_labels);
    auto source = pair.open({.limit = {}, .divide_by = 1.0F});
    const auto got = read_all(source);
    CHECK(got.labels == std::vector<std::int32_t>{7, 0});
    for (std::size_t i = 0; i < 6; ++i) CHECK(got.x[i] == static_cast<float>(values[i]));
    CHECK((source.element() == data::Element::byte) == (descr == "|u1"));
  }
}

TEST_CASE("NPY of every plain type and order is read", "[data]") {
  check_type<std::uint8_t>("u", {0, 1, 2, 3, 4, 255});
  check_type<std::int8_t>("i", {0, 1, -2, 3, 4, -128});
  check_type<std::uint16_t>("u", {0, 1, 2, 3, 4, 65535});
  check_type<std::int16_t>("i", {0, 1, -2, 3, 4, -32768});
  check_type<std::uint32_t>("u", {0, 1, 2, 3, 4, ~0U});
  check_type<std::int32_t>("i", {0, 1, -2, 3, 4, std::numeric_limits<std::int32_t>::min()});
  check_type<std::uint64_t>("u", {0, 1, 2, 3, 4, ~0ULL});
  check_type<std::int64_t>("i", {0, 1, -2, 3, 4, std::numeric_limits<std::int64_t>::min()});
  check_type<float>("f", {0, 1, -2.5F, 3e-39F, 4, 3e38F});
  check_type<double>("f", {0, 1, -2.5, 0.1, 4, 3e38});
}

TEST_CASE("NPY bytes are divided by 255, numbers by 1, unless told otherwise", "[data]") {
  const Pair pair(good_bytes, good_labels);
  auto bytes = pair.open();
  CHECK(read_all(bytes).x[5] == 1.0F);
  CHECK(bytes.divisor() == 255.0F);
  CHECK(bytes.shape() == std::vector<std::uint64_t>{3});
  const Pair floats(npy(dict("<f4", "(2, 1)"), raw<float>({3, 4})), good_labels);
  auto numbers = floats.open();
  CHECK(numbers.divisor() == 1.0F);
  auto divided = floats.open({.limit = {}, .divide_by = 3.0F});
  CHECK(read_all(divided).x == std::vector<float>{1.0F, 4.0F / 3.0F});
}

TEST_CASE("NPY images with their channels first are refused, not misread", "[data]") {
  const auto open = [](const std::string& shape, std::size_t elements) {
    const Pair pair(npy(dict("|u1", "(2, " + shape + ")"), Bytes(2 * elements)), good_labels);
    return pair.open().shape();
  };
  CHECK_THROWS_WITH(open("3, 8, 9", 216),
                    Contains("channels first") && Contains("transpose(0, 2, 3, 1)"));
  CHECK_THROWS_WITH(open("1, 28, 28", 784), Contains("channels first"));
  CHECK(open("8, 9, 3", 216) == std::vector<std::uint64_t>{8, 9, 3});
  CHECK(open("3, 4, 4", 48) == std::vector<std::uint64_t>{3, 4, 4});
}

TEST_CASE("all versions, odd spacing, labels in a column, gzip", "[data]") {
  const Bytes payload{0, 1, 2, 3, 4, 255};
  const auto expected = [&] {
    const Pair pair(good_bytes, good_labels);
    auto source = pair.open();
    return read_all(source);
  }();
  for (const std::uint8_t version : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}}) {
    for (const auto& header :
         {dict("|u1", "(2, 3)"),
          std::string("{'shape':(2,3,), 'descr':\"|u1\",'fortran_order' : False}")}) {
      const Pair pair(npy(header, payload, version), npy(dict("|u1", "(2, 1)"), {7, 0}, version));
      auto source = pair.open();
      CHECK(read_all(source) == expected);
      const Pair packed(gzip(npy(header, payload, version)), gzip(good_labels));
      auto inflated = packed.open();
      CHECK(read_all(inflated) == expected);
      CHECK(read(inflated, {1}).labels == std::vector<std::int32_t>{0});
      auto first = packed.open({.limit = 1, .divide_by = {}});
      CHECK(first.records() == 1);
    }
  }
}

TEST_CASE("what is wrong with an NPY pair is named with file and byte", "[data]") {
  const auto error = [](const Bytes& i, const Bytes& l) { return Pair(i, l).error(); };
  const auto of_images = [&](const std::string& descr, const std::string& shape) {
    return error(npy(dict(descr, shape), {0, 1, 2, 3, 4, 5}), good_labels);
  };
  CHECK_THAT(error({}, good_labels), StartsWith("i.npy: is empty") && Contains("fetch the file"));
  CHECK_THAT(error(images(2), good_labels), StartsWith("i.npy: byte 0: not an NPY file"));
  CHECK_THAT(error(npy(dict("|u1", "(2, 3)"), {0, 1}, 4), good_labels),
             StartsWith("i.npy: byte 6: NPY version 4.0"));
  CHECK_THAT(of_images("|u1", "(2, 4)"), StartsWith("i.npy: byte 80: ") &&
                                             Contains("makes a file of") && Contains("but it has"));
  CHECK_THAT(of_images("|u1", "(2, 2)"), Contains("makes a file of"));
  CHECK_THAT(of_images("|u1", "(0, 3)"), StartsWith("i.npy: byte 10: holds 0 records"));
  CHECK_THAT(of_images("|u1", "(2, 0)"), StartsWith("i.npy: byte 10: ") && Contains("no element"));
  CHECK_THAT(of_images("|u1", "()"), Contains("without dimensions"));
  CHECK_THAT(of_images("|u1", "(6,)"), Contains("one dimension") && Contains("exchanged"));
  CHECK_THAT(of_images("|u1", "(4294967296, 4294967296, 4294967296)"),
             Contains("more than any file"));
  CHECK_THAT(of_images("|u1", "(99999999999999999999999, 3)"), Contains("shape is damaged"));
  CHECK_THAT(of_images("|u1", "(-2, 3)"), Contains("shape is damaged"));
  CHECK_THAT(of_images("|u1", "2"), Contains("'(' is missing"));
  CHECK_THAT(of_images("<f2", "(1, 3)"), Contains("'<f2' are not read") && Contains("astype"));
  CHECK_THAT(of_images("|O", "(1, 3)"), Contains("'|O' are not read"));
  CHECK_THAT(of_images("<c8", "(1, 3)"), Contains("'<c8' are not read"));
  CHECK_THAT(
      error(npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3)}", {0, 1, 2, 3, 4, 5}),
            good_labels),
      Contains("Fortran") && Contains("ascontiguousarray"));
  CHECK_THAT(error(npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}", {}),
                   good_labels),
             Contains("not quoted"));
  CHECK_THAT(error(npy("{'descr': '|u1', 'shape': (2, 3)}", {}), good_labels), Contains("lacks"));
  CHECK_THAT(error(npy("{'descr': '|u1', 'descr': '|u1'}", {}), good_labels), Contains("twice"));
  CHECK_THAT(error(npy(dict("|u1", "(2, 3)") + "x", {}), good_labels), Contains("follows"));
  const auto with_labels = [&](const Bytes& l) { return error(good_bytes, l); };
  CHECK_THAT(with_labels(npy(dict("<f4", "(2,)"), raw<float>({1, 2}))),
             StartsWith("l.npy: byte 10: labels of type '<f4' are not integers") &&
                 Contains("if these are classes, save labels.astype('int64')") &&
                 Contains("numbers to predict are read from tables alone") &&
                 Contains("`label_column=NAME`"));
  CHECK_THAT(with_labels(npy(dict("|u1", "(3,)"), {1, 2, 3})),
             StartsWith("l.npy: byte 10: holds 3 labels, but i.npy holds 2 images") &&
                 Contains("published together"));
  CHECK_THAT(with_labels(npy(dict("|u1", "(1, 2)"), {1, 2})),
             StartsWith("l.npy: byte 10: labels of shape (1x2), expected one number a record") &&
                 Contains("if these are one-hot labels, save labels.argmax(axis=1)"));
  CHECK_THAT(
      with_labels(npy(dict("|u1", "(1, 2, 2)"), {1, 2, 3, 4})),
      Contains("labels of shape (1x2x2), expected one number a record") && Contains("exchanged"));
  CHECK_THAT(with_labels(npy(dict("|u1", "(2,)"), {1, 10})),
             Contains(": the label of record 1 is 10") && Contains("`classes=11`"));
  CHECK_THAT(with_labels(npy(dict("<i4", "(2,)"), raw<std::int32_t>({1, -1}))), Contains("is -1"));
  CHECK_THAT(with_labels(npy(dict("<u8", "(2,)"), raw<std::uint64_t>({~0ULL, 1}))),
             Contains("label of record 0"));
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(error(npy(dict("<f4", "(2, 1)"), raw<float>({1, nan})), good_labels),
             Contains("a feature of record 1 is not finite"));
  CHECK_THAT(error(npy(dict("<f8", "(2, 1)"), raw<double>({1e300, 1})), good_labels),
             Contains("a feature of record 0 is not finite"));
  CHECK_THAT(error(gzip(npy(dict("|u1", "(1000000, 1000)"), {0})), good_labels),
             Contains("cannot come from so short"));
  CHECK_THAT(error(gzip(npy(dict("|u1", "(2, 3)"), Bytes(7))), good_labels),
             Contains("go on after the last record"));
}

}  // namespace
}  // namespace lockstep::test

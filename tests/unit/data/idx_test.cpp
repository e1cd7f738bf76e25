#include "lockstep/data/idx.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "tests/support/no_root.hpp"
#include "tests/support/peak_memory.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::IdxSource;
using data::ReadOptions;

/// A folder with one pair, whose files tests replace.
struct Pair {
  Pair(const Bytes& image_bytes, const Bytes& label_bytes) {
    folder.write("images", image_bytes);
    folder.write("labels", label_bytes);
  }

  std::filesystem::path images_path() const { return folder.path() / "images"; }
  std::filesystem::path labels_path() const { return folder.path() / "labels"; }
  IdxSource open(const ReadOptions& options = {}) const {
    return {images_path(), labels_path(), options};
  }
  std::string error(const ReadOptions& options = {}) const {
    return message_of<DataError>([&] { open(options); });
  }

  TemporaryFolder folder;
};

TEST_CASE("an IDX pair gives its bytes, divided, and its labels", "[data]") {
  const Pair pair(images(5), labels(5));
  auto source = pair.open();
  REQUIRE(source.records() == 5);
  REQUIRE(source.features() == 12);
  REQUIRE(source.shape() == std::vector<std::uint64_t>{3, 4});
  const auto got = read(source, {4, 0, 4, 1, 2, 3});
  REQUIRE(got.labels == std::vector<std::int32_t>{4, 0, 4, 1, 2, 3});
  for (std::size_t p = 0; p < 12; ++p) {
    REQUIRE(got.x[p] == static_cast<float>((std::size_t{148} + 11 * p) % 256) / 255.0F);
    REQUIRE(got.x[12 + p] == static_cast<float>(11 * p % 256) / 255.0F);
  }
  REQUIRE(read(source, {}).x.empty());
}

TEST_CASE("bytes are divided in float32 by what is asked for", "[data]") {
  const Pair pair(images(2), labels(2));
  const float divisor = GENERATE(1.0F, 255.0F, 3.0F, 0.1F);
  auto source = pair.open({.limit = {}, .divide_by = divisor});
  REQUIRE(read_all(source).x[1] == 11.0F / divisor);
  const auto invalid = GENERATE(0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN());
  REQUIRE_THROWS_AS(pair.open({.limit = {}, .divide_by = invalid}), ConfigError);
}

TEST_CASE("gzip is known by its bytes, and gives the same records", "[data]") {
  const Pair plain(images(300), labels(300));
  const Pair packed(gzip(images(300)), gzip(labels(300)));
  auto one = plain.open();
  auto other = packed.open();
  REQUIRE(read_all(one) == read_all(other));
  REQUIRE(read(one, {299, 3, 4, 5, 0}) == read(other, {299, 3, 4, 5, 0}));
  REQUIRE(one.identity() == other.identity());
}

TEST_CASE("files whose images differ have another identity", "[data]") {
  constexpr std::uint32_t count = 30000;  // 360 kB: more than is sampled
  const Bytes original = images(count);
  const auto identity = [](const Bytes& bytes, const ReadOptions& options = {}) {
    return Pair(bytes, labels(count)).open(options).identity();
  };
  const auto differs_at = [&](std::size_t byte) {
    Bytes changed = original;
    changed[byte] ^= 1U;
    return identity(changed) != identity(original);
  };
  CHECK(identity(gzip(original)) == identity(original));
  CHECK(differs_at(16));
  CHECK(differs_at(original.size() - 1));
  Bytes inverted = original;
  for (std::size_t i = 16; i < inverted.size(); ++i) inverted[i] = 255 - inverted[i];
  CHECK(identity(inverted) != identity(original));
  CHECK(identity(gzip(inverted)) == identity(inverted));
  Bytes late = original;  // beyond the records in use
  late.back() ^= 1U;
  CHECK(identity(late, {.limit = 20000, .divide_by = {}}) ==
        identity(original, {.limit = 20000, .divide_by = {}}));
}

TEST_CASE("gzip members one after the other are one file", "[data]") {
  const Bytes whole = images(50);
  Bytes joined = gzip({whole.begin(), whole.begin() + 7});
  for (const Bytes& member : {gzip({}), gzip({whole.begin() + 7, whole.end()}), gzip({})}) {
    joined.insert(joined.end(), member.begin(), member.end());
  }
  const Pair plain(whole, labels(50));
  const Pair members(joined, labels(50));
  auto one = plain.open();
  auto other = members.open();
  REQUIRE(read_all(one) == read_all(other));
}

TEST_CASE("images of one and of three dimensions are flattened", "[data]") {
  const Bytes pixels(48, 7);
  REQUIRE(Pair(idx({0x802, 4, 12}, pixels), labels(4)).open().features() == 12);
  const Pair color(idx({0x804, 4, 2, 2, 3}, pixels), labels(4));
  REQUIRE(color.open().features() == 12);
  REQUIRE(color.open().shape() == std::vector<std::uint64_t>{2, 2, 3});
}

TEST_CASE("a limit takes the first records, and no more than there are", "[data]") {
  const bool packed = GENERATE(false, true);
  const Pair pair(packed ? gzip(images(9)) : images(9), packed ? gzip(labels(9)) : labels(9));
  auto all = pair.open();
  auto three = pair.open({.limit = 3, .divide_by = {}});
  REQUIRE(three.records() == 3);
  REQUIRE(read_all(three) == read(all, {0, 1, 2}));
  REQUIRE_THROWS_AS(read(three, {3}), std::out_of_range);
  REQUIRE(three.identity() != all.identity());
  REQUIRE(pair.open({.limit = 10, .divide_by = {}}).records() == 9);
  REQUIRE_THROWS_AS(pair.open({.limit = 0, .divide_by = {}}), ConfigError);
  REQUIRE_THROWS_AS(pair.open({.limit = {}, .divide_by = {}, .classes = 0}), ConfigError);
}

TEST_CASE("reading refuses records and lengths that do not fit", "[data]") {
  const Pair pair(images(3), labels(3));
  auto source = pair.open();
  REQUIRE_THROWS_AS(read(source, {0, 3}), std::out_of_range);
  REQUIRE_THROWS_AS(read(source, {~std::uint64_t{0}}), std::out_of_range);
  std::vector<float> x(11);
  std::vector<std::int32_t> classes(1);
  const std::vector<std::uint64_t> ids{0};
  REQUIRE_THROWS_AS(source.read(ids, x, classes), std::invalid_argument);
}

TEST_CASE("a label outside the classes is named with its place", "[data]") {
  const bool packed = GENERATE(false, true);
  Bytes bad = labels(5);
  bad[8 + 3] = 12;
  const Pair pair(images(5), packed ? gzip(bad) : bad);
  const auto what = pair.error();
  REQUIRE_THAT(what,
               StartsWith(pair.labels_path().string() + ": byte 11" +
                          (packed ? " (decompressed)" : "") + ": the label of record 3 is 12"));
  REQUIRE_THAT(what, Contains("[0, 10)") && Contains("`classes=13`"));
  REQUIRE(pair.open({.limit = {}, .divide_by = {}, .classes = 13}).records() == 5);
  REQUIRE(pair.open({.limit = 3, .divide_by = {}}).records() == 3);  // only what is used counts
}

TEST_CASE("what is wrong with a pair is named with file and place", "[data]") {
  const Bytes none;
  const auto error = [](const Bytes& image_bytes, const Bytes& label_bytes) {
    const Pair pair(image_bytes, label_bytes);
    std::string what = pair.error();
    const std::string folder = pair.folder.path().string() + "/";
    for (auto at = what.find(folder); at != what.npos; at = what.find(folder)) {
      what.erase(at, folder.size());
    }
    return what;
  };
  CHECK_THAT(error(images(5), labels(6)),
             StartsWith("labels: byte 4: holds 6 labels, but images holds 5 images"));
  CHECK_THAT(error(labels(5), labels(5)),
             StartsWith("images: byte 0: the magic number is 0x00000801 (IDX labels), expected "
                        "0x00000803") &&
                 Contains("exchanged"));
  CHECK_THAT(error(images(5), images(5)),
             StartsWith("labels: byte 0: the magic number is 0x00000803 (IDX images), expected "
                        "0x00000801"));
  CHECK_THAT(
      error(idx({0xD03, 1, 1, 1}, {1, 2, 3, 4}), labels(1)),
      StartsWith("images: byte 0: the magic number is 0x00000d03 (not an IDX file of bytes)"));
  CHECK_THAT(error(images(0), labels(0)), StartsWith("images: byte 4: holds 0 records"));
  CHECK_THAT(error(images(1), labels(0)), StartsWith("labels: byte 4: holds 0 records"));
  CHECK_THAT(error(images(2, 0, 0, 4), labels(2)),
             StartsWith("images: byte 8: images are 0x4, without a pixel"));
  CHECK_THAT(error(none, labels(2)),
             StartsWith("images: is empty") && Contains("fetch the file again"));
  CHECK_THAT(error({0, 0}, labels(2)),
             StartsWith("images: byte 2: the file ends here, 2 bytes too early") &&
                 Contains("fetch the file again"));
  CHECK_THAT(error(idx({0x803, 2, 3, 4}, Bytes(23)), labels(2)),
             StartsWith("images: byte 39: 2 records of 3x4 bytes make a file of 40 bytes, but it "
                        "has 39"));
  CHECK_THAT(error(idx({0x803, 2, 3, 4}, Bytes(25)), labels(2)),
             StartsWith("images: byte 40: ") && Contains("but it has 41"));
  CHECK_THAT(error(idx({0x803, ~0U, ~0U, ~0U}, {}), labels(2)),
             StartsWith("images: byte 4: ") && Contains("more than any file holds"));
  CHECK_THAT(error(gzip(idx({0x804, 1U << 31, 1U << 31, 1U << 31, 1U << 31}, {})), labels(2)),
             StartsWith("images: byte 4: ") && Contains("more than any file holds"));
  CHECK_THAT(error(gzip(idx({0x803, 60000, 28, 28}, {})), labels(2)),
             StartsWith("images: byte ") && Contains("cannot come from so short a file"));
  CHECK_THAT(error(gzip(idx({0x803, 2, 3, 4}, Bytes(25))), labels(2)),
             StartsWith("images: byte ") && Contains("go on after the last record"));
  CHECK_THAT(error(gzip(idx({0x803, 2, 3, 4}, Bytes(23))), labels(2)),
             StartsWith("images: byte 39 (decompressed): ") && Contains("but it has 39"));
}

TEST_CASE("a missing file, a folder and a FIFO are refused at once", "[data]") {
  const Pair pair(images(2), labels(2));
  const auto images_path = pair.images_path();
  std::filesystem::remove(images_path);
  REQUIRE_THAT(pair.error(), StartsWith(images_path.string() + ": cannot be opened: No such file"));
  std::filesystem::create_directory(images_path);
  REQUIRE_THAT(pair.error(), StartsWith(images_path.string() + ": is a folder"));
  std::filesystem::remove(images_path);
  REQUIRE(::mkfifo(images_path.c_str(), 0600) == 0);
  REQUIRE_THAT(pair.error(), StartsWith(images_path.string() + ": is a FIFO"));
}

TEST_CASE("a file that may not be read says so", "[data]") {
  const Pair pair(images(2), labels(2));
  std::filesystem::permissions(pair.images_path(), std::filesystem::perms::none);
  const NoRoot no_root;
  if (no_root.holds()) {
    REQUIRE_THAT(pair.error(), Contains("cannot be opened: Permission denied"));
  }
}

TEST_CASE("a file that shrinks while it is open is bad data", "[data]") {
  const Pair pair(images(5), labels(5));
  auto source = pair.open();
  std::filesystem::resize_file(pair.images_path(), 20);
  REQUIRE_THAT(message_of<DataError>([&] { read(source, {4}); }),
               StartsWith(pair.images_path().string() +
                          ": byte 20: the file ends here, 56 bytes too early"));
}

/// Opens and reads; what is accepted must be what was written.
void try_damaged(const Pair& pair, const Records& expected, std::size_t& refused) {
  try {
    auto source = pair.open();
    CHECK(read_all(source) == expected);
  } catch (const DataError& error) {
    ++refused;
    CHECK_THAT(error.what(), StartsWith(pair.folder.path().string()));
  }
}

TEST_CASE("every truncation and every flipped bit is refused or harmless", "[data]") {
  const bool packed = GENERATE(false, true);
  const bool of_labels = GENERATE(false, true);
  const Bytes good_images = packed ? gzip(images(6)) : images(6);
  const Bytes good_labels = packed ? gzip(labels(6)) : labels(6);
  const Pair pair(good_images, good_labels);
  auto source = pair.open();
  const Records expected = read_all(source);
  const Bytes& good = of_labels ? good_labels : good_images;
  const std::string name = of_labels ? "labels" : "images";
  const long before = peak_kilobytes();
  std::size_t refused = 0;
  for (std::size_t size = 0; size < good.size(); ++size) {
    pair.folder.write(name, {good.data(), size});
    try_damaged(pair, expected, refused);
  }
  REQUIRE(refused == good.size());
  // Plain payload has no checksum: there only the header's bits are looked at.
  const std::size_t header_size = of_labels ? 8 : 16;
  const std::size_t flips = 8 * (packed ? good.size() : header_size);
  for (std::size_t bit = 0; bit < flips; ++bit) {
    Bytes bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1U << bit % 8);
    pair.folder.write(name, bad);
    try_damaged(pair, expected, refused);
  }
  // Rows and columns may change so that their product stays; gzip's time and system may change.
  CHECK(refused + 80 >= good.size() + flips);
  CHECK(peak_kilobytes() - before < 400'000L);  // AddressSanitizer keeps 256 MB of what was freed
}

TEST_CASE("MNIST itself, packed", "[data]") {
  const char* const named = std::getenv("LOCKSTEP_MNIST");
  const std::filesystem::path folder =
      named != nullptr ? named : REPOSITORY "/../shared/data/mnist";
  if (!std::filesystem::exists(folder / "train-images-idx3-ubyte.gz")) {
    WARN("SKIPPED: no MNIST in " << folder << "; set LOCKSTEP_MNIST to a folder that holds it");
    SUCCEED();
    return;
  }
  IdxSource train(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz", {});
  REQUIRE(train.records() == 60000);
  REQUIRE(train.features() == 784);
  const auto first = read(train, {0, 1, 2, 59999});
  REQUIRE(first.labels == std::vector<std::int32_t>{5, 0, 4, 8});
  REQUIRE(first.x[5 * 28 + 12] == 3.0F / 255.0F);

  // The same bytes, unpacked, through the other way of reading.
  TemporaryFolder plain;
  IdxSource whole(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz",
                  {.limit = {}, .divide_by = 1.0F});
  write_records({plain.path(), "train", data::Format::idx, 1},
                {60000, {28, 28}, data::Element::byte},
                [&](std::uint64_t index, std::span<float> features) {
                  const auto record = read(whole, {index});
                  std::copy(record.x.begin(), record.x.end(), features.begin());
                  return record.labels.front();
                });
  IdxSource unpacked(plain.path() / "train-images-idx3-ubyte",
                     plain.path() / "train-labels-idx1-ubyte", {});
  REQUIRE(read_all(unpacked) == read_all(train));
}

}  // namespace
}  // namespace lockstep::test

#include "lockstep/data/writer.hpp"

#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <stdexcept>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/folder.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::Element;
using data::Format;
using data::RecordShape;
using data::Target;

std::int32_t byte_record(std::uint64_t index, std::span<float> features) {
  for (std::size_t p = 0; p < features.size(); ++p) {
    features[p] = static_cast<float>((37 * index + 11 * p) % 256);
  }
  return static_cast<std::int32_t>(index % 10);
}

/// Numbers that no short text and no byte holds.
std::int32_t number_record(std::uint64_t index, std::span<float> features) {
  float value = 1.0F / static_cast<float>(index + 3);
  for (float& feature : features) {
    feature = value;
    value *= -1234.567F;
  }
  features[0] = 1e-45F;  // the least there is
  return static_cast<std::int32_t>(index % 10);
}

Records written(std::uint64_t records, std::size_t features, const data::RecordAt& record) {
  Records all{std::vector<float>(records * features), {}};
  for (std::uint64_t i = 0; i < records; ++i) {
    all.labels.push_back(record(i, std::span(all.x).subspan(i * features, features)));
  }
  return all;
}

data::DataSet open(const TemporaryFolder& folder) {
  return data::open_data_set(folder.path().string(),
                             {.train_limit = {}, .test_limit = {}, .divide_by = 1.0F});
}

void write_set(const TemporaryFolder& folder, Format format, std::uint64_t files,
               const RecordShape& shape, const data::RecordAt& record) {
  for (const char* part : {"train", "test"}) {
    write_records({folder.path(), part, format, files}, shape, record);
  }
}

TEST_CASE("what is written in any format is what is read", "[data]") {
  const Format format = GENERATE(Format::idx, Format::csv, Format::npy, Format::tfrecord);
  const std::uint64_t files = GENERATE(1, 3, 16);
  const bool bytes = GENERATE(true, false);
  if (format == Format::idx && !bytes) return;
  const TemporaryFolder folder;
  const RecordShape shape{50, {3, 4}, bytes ? Element::byte : Element::number};
  const data::RecordAt record = bytes ? byte_record : number_record;
  write_set(folder, format, files, shape, record);
  const auto set = open(folder);
  CHECK(read_all(*set.train) == written(50, 12, record));
  CHECK(read(*set.test, {49, 3, 4, 5, 0}).labels == std::vector<std::int32_t>{9, 3, 4, 5, 0});
  const bool typed = format != Format::csv;
  CHECK((set.train->element() == Element::byte) == (bytes && typed));
  const bool shaped = format == Format::idx || format == Format::npy;
  CHECK(set.train->shape() ==
        (shaped ? std::vector<std::uint64_t>{3, 4} : std::vector<std::uint64_t>{12}));
  const auto pairs = data::find_files(folder.path().string(), {});
  CHECK(pairs.format == format);
  CHECK(pairs.train.size() == files);
}

TEST_CASE("texts are written as CSV, with the header in each file", "[data]") {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> records = {
      {"a", "x, y"}, {"", "\"q\""}, {"two\nlines", "1.50"}};
  const auto record = [&](std::uint64_t index) -> const std::vector<std::string>& {
    return records[index];
  };
  const auto text = [&](const char* name) {
    const Bytes bytes = read_bytes(folder.path() / name);
    return std::string(bytes.begin(), bytes.end());
  };
  const Target files = {folder.path(), "train", Format::csv, 2};
  data::finish_texts(files, 3, {"name", "b;c"}, record).publish();
  CHECK(text("train-00000-of-00002.csv") == "name,\"b;c\"\na,\"x, y\"\n");
  CHECK(text("train-00001-of-00002.csv") == "name,\"b;c\"\n,\"\"\"q\"\"\"\n\"two\nlines\",1.50\n");
  data::finish_texts({folder.path(), "test", Format::csv, 1}, 2, {}, record).publish();
  CHECK(text("test.csv") == "a,\"x, y\"\n,\"\"\"q\"\"\"\n");
  CHECK_THROWS_WITH(data::finish_texts(files, 1, {}, record), Contains("do not fill 2 files"));
  data::finish_texts({folder.path(), "t10k", Format::csv, 1}, 1, {}, record);  // not published
  CHECK_FALSE(std::filesystem::exists(folder.path() / "t10k.csv"));
}

TEST_CASE("files are runs of records that differ by at most one", "[data]") {
  const TemporaryFolder folder;
  write_set(folder, Format::csv, 4, {11, {2}, Element::number}, byte_record);
  std::vector<std::uint64_t> records;
  for (const auto& file : data::find_files(folder.path().string(), {}).train) {
    records.push_back(data::open_files(Format::csv, file, {})->records());
  }
  REQUIRE(records == std::vector<std::uint64_t>{2, 3, 3, 3});
}

TEST_CASE("IDX files are written byte by byte as the format says", "[data]") {
  const TemporaryFolder folder;
  write_records({folder.path(), "train", Format::idx, 1}, {700, {3, 4}, Element::byte},
                byte_record);
  REQUIRE(read_bytes(folder.path() / "train-images-idx3-ubyte") == images(700));
  REQUIRE(read_bytes(folder.path() / "train-labels-idx1-ubyte") == labels(700));
  const auto entries = std::filesystem::directory_iterator(folder.path());
  REQUIRE(std::distance(begin(entries), end(entries)) == 2);
}

TEST_CASE("what a format cannot hold is refused, and leaves nothing", "[data]") {
  const TemporaryFolder folder;
  const auto error = [&](Format format, std::uint64_t files, const RecordShape& shape,
                         const data::RecordAt& record) {
    return message_of<ConfigError>([&] {
      write_records({folder.path(), "train", format, files}, shape, record);
    });
  };
  CHECK_THAT(error(Format::idx, 1, {5, {4}, Element::number}, number_record),
             StartsWith((folder.path() / "train-images-idx3-ubyte").string() +
                        ": IDX holds whole numbers of 0 to 255, but a feature of record 0"));
  CHECK_THAT(
      error(Format::idx, 1, {300, {4}, Element::byte},
            [](std::uint64_t index, std::span<float>) { return static_cast<std::int32_t>(index); }),
      Contains("the label of record 256 is 256"));
  CHECK_THAT(error(Format::idx, 1, {5, {1, 1, 1, 1}, Element::byte}, byte_record),
             Contains("1 to 3 dimensions"));
  CHECK_THAT(error(Format::csv, 1, {5, {1'000'000}, Element::byte}, byte_record),
             StartsWith((folder.path() / "train.csv").string() +
                        ": a CSV file has at most 1,000,000 columns"));
  CHECK_THAT(error(Format::csv, 6, {5, {4}, Element::byte}, byte_record),
             StartsWith("5 train records do not fill 6 files"));
  CHECK_THAT(error(Format::csv, 1, {0, {4}, Element::byte}, byte_record),
             StartsWith("0 train records"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a failed write leaves what was there", "[data]") {
  const Format format = GENERATE(Format::idx, Format::csv, Format::npy, Format::tfrecord);
  const TemporaryFolder folder;
  const Target target{folder.path(), "train", format, 2};
  const auto old = data::files_of(target).front().records;
  folder.write(std::filesystem::path(old).filename().string(), images(1));
  const auto failing = [](std::uint64_t index, std::span<float>) -> std::int32_t {
    if (index == 3) throw std::runtime_error("no more");
    return 0;
  };
  REQUIRE_THROWS_WITH(write_records(target, {4, {1}, Element::byte}, failing), "no more");
  REQUIRE(read_bytes(old) == images(1));
  const auto entries = std::filesystem::directory_iterator(folder.path());
  REQUIRE(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("a folder that cannot be written to is an output error", "[data]") {
  const TemporaryFolder folder;
  const auto missing = folder.path() / "missing";
  REQUIRE_THAT(
      message_of<OutputError>([&] {
        write_records({missing, "train", Format::csv, 1}, {1, {1}, Element::byte}, byte_record);
      }),
      StartsWith((missing / "train.csv").string() + ": cannot create: No such file"));
}

/// Lets no file of this process grow beyond `bytes`: what a full disk looks like.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_CASE("a disk that fills up is an output error and leaves nothing", "[data]") {
  const Format format = GENERATE(Format::idx, Format::csv, Format::npy, Format::tfrecord);
  const TemporaryFolder folder;
  std::string what;
  {
    const FileSizeLimit limit(10000);
    what = message_of<OutputError>([&] {
      write_records({folder.path(), "train", format, 1}, {200, {28, 28}, Element::byte},
                    byte_record);
    });
  }
  REQUIRE_THAT(what, StartsWith(folder.path().string() + "/train") && Contains(": cannot write: "));
  REQUIRE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::test

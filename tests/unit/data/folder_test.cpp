#include "lockstep/data/folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "lockstep/base/errors.hpp"
#include "tests/support/no_root.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

/// A folder that holds `train-*` and `t10k-*` as MNIST does, unless told otherwise.
struct DataFolder {
  void add(const std::string& images_name, const std::string& labels_name, std::uint32_t records,
           std::uint32_t base = 0) const {
    folder.write(images_name, images(records, base));
    folder.write(labels_name, labels(records, base));
  }
  void add_train() const { add("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 7); }
  void add_test() const { add("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 3); }
  data::DataSet open(const data::DataSetOptions& options = {}) const {
    return data::open_data_set(folder.path().string(), options);
  }
  std::string error() const {
    return message_of<DataError>([&] { open(); });
  }
  std::string path() const { return folder.path().string(); }

  TemporaryFolder folder;
};

std::vector<std::string> image_names(const std::vector<data::RecordFiles>& pairs) {
  std::vector<std::string> names;
  names.reserve(pairs.size());
  for (const auto& pair : pairs)
    names.push_back(std::filesystem::path(pair.records).filename().string());
  return names;
}

TEST_CASE("a folder as MNIST's gives both parts", "[data]") {
  const DataFolder data;
  data.add_train();
  data.add_test();
  data.folder.write("notes.txt", {});
  data.folder.write("train-images-idx3-ubyte.md5", {});
  data.folder.write("unrelated-images", {});
  const auto set = data.open();
  REQUIRE(set.train->records() == 7);
  REQUIRE(set.test->records() == 3);
  const auto limited = data.open({.train_limit = 5, .test_limit = 100, .divide_by = {}});
  REQUIRE(limited.train->records() == 5);
  REQUIRE(limited.test->records() == 3);
}

TEST_CASE("pairs are found under all usual names", "[data]") {
  using Names = std::pair<const char*, const char*>;
  const auto names = GENERATE(Names{"train-images.idx3-ubyte", "train-labels.idx1-ubyte"},
                              Names{"train_images", "train_labels"},
                              Names{"train-images-idx2-ubyte", "train-labels-idx1-ubyte"},
                              Names{"training.images.idx", "training.labels.idx"});
  const DataFolder data;
  data.add(names.first, names.second, 4);
  data.add("test-images", "test-labels", 2);
  REQUIRE(data.open().train->records() == 4);
  REQUIRE(data.open().test->records() == 2);
}

TEST_CASE("folders and other files do not stand for the files of a pair", "[data]") {
  const DataFolder data;
  data.add("train-images.idx3-ubyte", "train-labels.idx1-ubyte", 4);
  data.add("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", 2);
  for (const char* folder : {"train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "train_images"}) {
    std::filesystem::create_directory(data.folder.path() / folder);
  }
  data.folder.write("train_images.zip", images(1, 0));
  data.folder.write("train-images.h5", images(1, 0));
  REQUIRE(data.open().train->records() == 4);
  REQUIRE(data.open().test->records() == 2);
}

TEST_CASE("where plain and packed stand side by side the plain one is read", "[data]") {
  const DataFolder data;
  data.add_train();
  data.add_test();
  data.folder.write("train-images-idx3-ubyte.gz", {});  // would be refused
  data.folder.write("t10k-labels-idx1-ubyte.gz", gzip(labels(3)));
  REQUIRE(data.open().train->records() == 7);
  std::filesystem::remove(data.folder.path() / "t10k-labels-idx1-ubyte");
  REQUIRE(data.open().test->records() == 3);  // a packed partner of a plain file
}

TEST_CASE("many pairs are one source in the order of their names", "[data]") {
  const DataFolder data;
  data.add_test();
  data.add("train-00001-of-00003-images", "train-00001-of-00003-labels", 3, 4);
  data.add("train-00002-of-00003-images", "train-00002-of-00003-labels", 1, 7);
  data.add("train-00000-of-00003-images", "train-00000-of-00003-labels", 4, 0);
  REQUIRE(image_names(data::find_files(data.path(), {}).train) ==
          std::vector<std::string>{"train-00000-of-00003-images", "train-00001-of-00003-images",
                                   "train-00002-of-00003-images"});
  const auto set = data.open();
  REQUIRE(read_all(*set.train).labels == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const auto limit = GENERATE(1, 4, 5, 7, 8, 9);
  const auto limited = data.open({.train_limit = limit, .test_limit = {}, .divide_by = {}});
  REQUIRE(limited.train->records() == static_cast<std::uint64_t>(std::min(limit, 8)));
  const auto last = limited.train->records() - 1;
  REQUIRE(read(*limited.train, {last}) == read(*set.train, {last}));
  REQUIRE(set.train->file_records() == std::vector<std::uint64_t>{4, 3, 1});
  REQUIRE(set.test->file_records() == std::vector<std::uint64_t>{3});
  auto files = limited.train->file_records();  // the limit ends in the last of them
  REQUIRE(std::accumulate(files.begin(), files.end(), std::uint64_t{0}) == last + 1);
  REQUIRE(files.size() == (limit <= 4 ? 1 : limit <= 7 ? 2 : 3));
  REQUIRE(data::open_data_set("synthetic", {}).train->file_records().empty());
}

TEST_CASE("what is not a data folder is refused with its path", "[data]") {
  const DataFolder data;
  CHECK_THAT(data.error(), StartsWith(data.path() + ": the folder is empty") &&
                               !Contains("mnist") && Contains("`data=synthetic`"));
  const auto missing = data.path() + "/missing";
  CHECK_THAT(message_of<DataError>([&] { data::open_data_set(missing, {}); }),
             StartsWith(missing + ": no such file or folder") && !Contains("mnist") &&
                 Contains("`data=synthetic`"));
  const auto built_in_error = [](const char* name) {
    return message_of<DataError>([&] { data::open_data_set(name, {}); });
  };
  CHECK_THAT(built_in_error("synthetic_rgb"), Contains("did you mean `data=synthetic-rgb`?"));
  CHECK_THAT(built_in_error("syntetic"), Contains("did you mean `data=synthetic`?"));
  CHECK_THAT(built_in_error("colours"), Contains("`data=synthetic-rgb` are built in"));
  const auto file = data.folder.write("file", images(1)).string();
  CHECK_THAT(message_of<DataError>([&] { data::open_data_set(file, {}); }),
             StartsWith(file + ": is not a folder") && Contains("TFRecord: train.tfrecord"));
  const auto fifo = data.path() + "/fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THAT(message_of<DataError>([&] { data::open_data_set(fifo, {}); }),
             StartsWith(fifo + ": is a stream"));
  CHECK_THAT(message_of<DataError>([&] { data::open_data_set("", {}); }),
             Contains("no such file or folder"));
}

TEST_CASE("a part without files is named", "[data]") {
  const DataFolder data;
  data.add_test();
  CHECK_THAT(data.error(), StartsWith(data.path() + ": no training files (train*)"));
  const DataFolder unknown;
  unknown.folder.write("train.tfr", {});
  CHECK_THAT(unknown.error(), Contains("data files") && Contains("*.tfrecord") &&
                                  Contains("*.csv") && Contains("rename files"));
  const DataFolder other;
  other.add_train();
  CHECK_THAT(other.error(), StartsWith(other.path() + ": no test files (test* or t10k*)"));
}

TEST_CASE("one part opens alone, whatever there is of the other", "[data]") {
  const auto part = GENERATE(data::Part::train, data::Part::test);
  const bool train = part == data::Part::train;
  const DataFolder data;
  const auto open = [&] { return data::open_data_part(data.path(), part, {.test_limit = 2}); };
  data.folder.write(train ? "test.csv" : "train.csv", {});                // another format
  data.folder.write(train ? "test-images" : "train-images", {});          // no partner
  data.folder.write(train ? "t10k-0-of-2.csv" : "train-0-of-2.csv", {});  // not complete
  CHECK_THAT(message_of<DataError>(open),
             StartsWith(data.path() + ": no " + (train ? "training" : "test") + " files"));
  train ? data.add_train() : data.add_test();
  CHECK(open()->records() == (train ? 7 : 2));
  CHECK(data::open_data_part("synthetic", part, {.test_limit = 2})->records() ==
        (train ? 60'000 : 2));
  CHECK_THROWS_AS(data.open(), DataError);
}

TEST_CASE("files without a partner, and ambiguous ones, are named", "[data]") {
  const DataFolder data;
  data.add_train();
  data.add_test();
  data.folder.write("train-more-images", images(1));
  CHECK_THAT(
      data.error(),
      StartsWith(data.path() + ": train-more-images has no labels beside it (train-more-labels,"));
  const auto unlabelled = data::open_data_part(data.path(), data::Part::train,
                                               {.train_limit = 8, .needs_labels = false});
  CHECK(data::label_counts(*unlabelled) == std::vector<std::uint64_t>{8});  // labels are not read
  std::filesystem::remove(data.folder.path() / "train-more-images");
  std::filesystem::remove(data.folder.path() / "t10k-images-idx3-ubyte");
  CHECK_THAT(data.error(),
             StartsWith(data.path() + ": t10k-labels-idx1-ubyte has no images beside it "
                                      "(t10k-images-idx3-ubyte, plain or .gz)"));
  data.add_test();
  data.folder.write("train-images-idx2-ubyte", images(1));
  CHECK_THAT(data.error(), Contains("both train-images-idx2-ubyte and train-images-idx3-ubyte"));
  std::filesystem::remove(data.folder.path() / "train-images-idx2-ubyte");
  data.add("train-images.idx3-ubyte", "train-labels.idx1-ubyte", 8);
  CHECK_THAT(data.error(), Contains("both train-images-idx3-ubyte and train-images.idx3-ubyte"));
}

TEST_CASE("a split of which a file is missing is refused", "[data]") {
  const DataFolder data;
  data.add_test();
  data.add("train-00000-of-00003-images", "train-00000-of-00003-labels", 3);
  data.add("train-00002-of-00003-images", "train-00002-of-00003-labels", 3);
  CHECK_THAT(data.error(), StartsWith(data.path() + ": the names say that 3 pairs") &&
                               Contains("but 2 are here"));
  std::filesystem::remove(data.folder.path() / "train-00002-of-00003-images");
  std::filesystem::remove(data.folder.path() / "train-00002-of-00003-labels");
  data.add("train-00001-of-00003-images", "train-00001-of-00003-labels", 3);
  data.add("train-more-00000-of-00001-images", "train-more-00000-of-00001-labels", 3);
  CHECK_THAT(data.error(), Contains("but 2 are here: train-00000-of-00003-images"));
  data.add("train-00002-of-00003-images", "train-00002-of-00003-labels", 3);
  CHECK(data.open().train->records() == 12);  // of two sets
  data.add("train-00000-of-00001-images", "train-00000-of-00001-labels", 9);
  CHECK_THAT(data.error(),
             Contains("two splits of one set, into 1 and into 3 parts: "
                      "train-00000-of-00001-images ..., train-00000-of-00003-images"));
}

TEST_CASE("images of different sizes do not mix", "[data]") {
  const DataFolder data;
  data.add_train();
  data.add_test();
  data.folder.write("train-more-images", images(2, 0, 4, 3));
  data.folder.write("train-more-labels", labels(2));
  CHECK_THAT(data.error(),
             StartsWith(data.path() +
                        "/train-more-images: records are 4x3 (12 features), but those of ") &&
                 Contains("are 3x4"));
  const DataFolder other;
  other.add_train();
  other.folder.write("test-images", images(2, 0, 5, 5));
  other.folder.write("test-labels", labels(2));
  CHECK_THAT(other.error(), StartsWith(other.path() + "/test-images: records are 5x5 (25 "
                                                      "features), but those of ") &&
                                Contains("(12 features)"));
}

TEST_CASE("a FIFO or a folder in a file's place is refused at once", "[data]") {
  const DataFolder data;
  data.add_train();
  data.add_test();
  const auto victim = data.folder.path() / "train-labels-idx1-ubyte";
  std::filesystem::remove(victim);
  REQUIRE(::mkfifo(victim.c_str(), 0600) == 0);
  CHECK_THAT(data.error(), StartsWith(victim.string() + ": is a FIFO"));
  std::filesystem::remove(victim);
  std::filesystem::create_directory(victim);
  CHECK_THAT(data.error(), StartsWith(victim.string() + ": is a folder"));
}

void write_part(const std::filesystem::path& folder, const char* part, data::Format format,
                std::uint64_t files = 1, data::Element element = data::Element::byte) {
  write_records({folder, part, format, files}, {6, {3}, element},
                [](std::uint64_t index, std::span<float> features) {
                  std::fill(features.begin(), features.end(), static_cast<float>(index));
                  return static_cast<std::int32_t>(index);
                });
}

TEST_CASE("two formats in a folder are told apart only by the flag", "[data]") {
  const DataFolder data;
  write_part(data.path(), "test", data::Format::idx);
  write_part(data.path(), "train", data::Format::idx);
  write_part(data.path(), "train", data::Format::csv);
  CHECK_THAT(data.error(), StartsWith(data.path() + ": files of two formats, ") &&
                               Contains("(idx)") && Contains("train.csv (csv)") &&
                               Contains("`format=idx` or `format=csv`"));
  CHECK(data.open({.format = data::Format::idx}).train->records() == 6);
  const auto csv = message_of<DataError>([&] { data.open({.format = data::Format::csv}); });
  CHECK_THAT(csv, StartsWith(data.path() + ": no test files (test* or t10k*) of format csv"));
}

TEST_CASE("names of all formats are known", "[data]") {
  using data::Format;
  const auto format_of = [](const char* name) { return data::format_of_file(name); };
  CHECK(format_of("train.csv") == Format::csv);
  CHECK(format_of("train-images.npy") == Format::npy);
  CHECK(format_of("train-images-idx3-ubyte") == Format::idx);
  for (const char* name : {"train.tfrecord", "train.tfrecords", "train-00000-of-00005.tfrecord",
                           "train.tfrecord-00000-of-00005", "train.tfrecords-00000-of-00005"}) {
    CHECK(format_of(name) == Format::tfrecord);
  }
  for (const char* name : {"train.npy", "train.npz", "train.tfrecord.md5", "train.txt", "train",
                           "train-images.csv.part", "train-images.tfrecord.index"}) {
    CHECK_FALSE(format_of(name) == Format::csv);
    CHECK_FALSE(format_of(name) == Format::npy);
    CHECK_FALSE(format_of(name) == Format::tfrecord);
  }
}

TEST_CASE("a split of any format must be complete", "[data]") {
  const DataFolder data;
  write_part(data.path(), "test", data::Format::tfrecord);
  write_part(data.path(), "train", data::Format::tfrecord, 3);
  REQUIRE(data.open().train->records() == 6);
  std::filesystem::rename(data.path() + "/train-00001-of-00003.tfrecord",
                          data.path() + "/elsewhere");
  CHECK_THAT(data.error(), StartsWith(data.path() + ": the names say that 3 files") &&
                               Contains("but 2 are here"));
  std::filesystem::copy(data.path() + "/train-00000-of-00003.tfrecord",
                        data.path() + "/train-00000-of-00003 (1).tfrecord");
  CHECK_THAT(data.error(), Contains("two of 3 files have the number 0: train-00000-of-00003"));
  std::filesystem::rename(data.path() + "/train-00000-of-00003 (1).tfrecord",
                          data.path() + "/train-00003-of-00003.tfrecord");
  CHECK_THAT(data.error(), Contains("but their numbers go from 0 to 3"));
  std::filesystem::rename(data.path() + "/train-00000-of-00003.tfrecord",
                          data.path() + "/train-00001-of-00003.tfrecord");
  CHECK(data.open().train->records() == 6);  // from 1 on
}

TEST_CASE("files of which no record is used are not counted", "[data]") {
  const DataFolder data;
  const std::string text = "label,a\n0,1\n1,2\n";
  for (const char* name : {"train-0.csv", "train-1.csv"}) {
    data.folder.write(name, Bytes(text.begin(), text.end()));
  }
  const auto files = [&](std::uint64_t records) {
    data::DataSetOptions options;
    options.train_limit = records;
    options.test_split = 0.25;
    return data.open(options).train->file_records().size();
  };
  CHECK(files(1) == 1);
  CHECK(files(3) == 2);
}

TEST_CASE("a pattern is read as the folder would be", "[data]") {
  const DataFolder data;
  const std::filesystem::path sub = data.folder.path() / "images";
  std::filesystem::create_directory(sub);
  write_part(sub, "train", data::Format::npy, 2);
  write_part(data.path(), "test", data::Format::npy);
  data.folder.write("train.csv", {});
  const auto open = [&](const std::string& pattern) {
    return data::open_data_set(data.path() + pattern, {});
  };
  REQUIRE_THROWS_AS(open("/*"), DataError);
  write_part(sub, "test", data::Format::npy);
  CHECK(read_all(*open("/images/t*.npy").train).labels ==
        std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(open("/im?ges/[t]*").test->records() == 6);
  CHECK_THAT(message_of<DataError>([&] { open("/images/t*-00000-of-00002*"); }),
             Contains("belong together, but 1 are here"));
  CHECK_THAT(message_of<DataError>([&] { open("/images/x*"); }), Contains("no file matches"));
}

TEST_CASE("bytes and numbers do not mix without a divisor", "[data]") {
  const DataFolder data;
  write_part(data.path(), "train", data::Format::npy);
  write_part(data.path(), "test", data::Format::npy, 1, data::Element::number);
  CHECK_THAT(data.error(), StartsWith(data.path() + "/test-images.npy: holds numbers, but ") &&
                               Contains("train-images.npy holds bytes") && Contains("`divide_by`"));
  CHECK(data.open({.divide_by = 2.0F}).test->divisor() == 2.0F);
}

TEST_CASE("a folder that may not be listed says so", "[data]") {
  const DataFolder data;
  data.add_train();
  std::filesystem::permissions(data.folder.path(), std::filesystem::perms::none);
  {
    const NoRoot no_root;
    if (no_root.holds()) {
      CHECK_THAT(data.error(), StartsWith(data.path() + ": cannot be listed: Permission denied"));
      const std::string pattern = data.path() + "/t*";
      CHECK_THAT(message_of<DataError>([&] { data::open_data_set(pattern, {}); }),
                 StartsWith(pattern + ": " + data.path() + " cannot be listed: Permission denied"));
    }
  }
  std::filesystem::permissions(data.folder.path(), std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace lockstep::test

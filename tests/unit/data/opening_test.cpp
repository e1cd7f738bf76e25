// Ranks that open a table together find what one rank finds, in it and wrong with it.
#include "lockstep/data/opening.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/file.hpp"
#include "lockstep/data/source.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using data::Part;
using data::TableSchema;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

/// All that can be seen of a data set.
struct Seen {
  TableSchema schema;
  std::vector<std::string> warnings;
  std::vector<std::string> identities;
  std::vector<Records> records;
  std::vector<float> weights;
  std::vector<float> targets;
  std::vector<std::string> places;

  bool operator==(const Seen&) const = default;

  void add(data::Source& source) {
    schema = *source.table();
    for (const auto& text : source.warnings()) warnings.push_back(text);
    identities.push_back(source.identity());
    records.push_back(read_all(source));
    std::vector<float> values(source.targets());
    for (std::uint64_t id = 0; id < source.records(); ++id) {
      weights.push_back(source.weight(id));
      source.target_values(id, values);
      targets.insert(targets.end(), values.begin(), values.end());
      places.push_back(source.place_of(id));
    }
  }
};

/// What ranks gathered, and how often one of them had to say that its part has an error.
struct Gathered {
  std::atomic<int> texts = 0;
  std::atomic<int> errors = 0;
};

/// The ranks of `exchange`, which share even small tables.
data::OpeningRanks opening(comm::Exchange& exchange, Gathered* gathered = nullptr) {
  return {.rank = exchange.rank(),
          .ranks = exchange.size(),
          .gather =
              [&exchange, gathered](std::string_view mine) {
                if (gathered != nullptr) ++gathered->texts;
                if (gathered != nullptr && mine == "-") ++gathered->errors;
                return exchange.gather(mine);
              },
          .least_bytes = 0};
}

/// What this rank finds at `path`.
Seen seen(comm::Communicator& comm, const std::string& path, const data::DataSetOptions& given,
          Gathered* gathered = nullptr) {
  Seen all;
  comm::together(comm, [&](comm::Exchange& exchange) {
    const auto with = opening(exchange, gathered);
    data::DataSetOptions options = given;
    options.ranks = &with;
    const auto set = data::open_data_set(path, options);
    for (const auto* part : {&set.train, &set.test, &set.validation}) {
      if (*part) all.add(**part);
    }
  });
  return all;
}

/// What all ranks find at `path`, which must be equal.
Seen seen(int ranks, const std::string& path, const data::DataSetOptions& given,
          Gathered* gathered = nullptr) {
  return on_all(ranks, [&](comm::Communicator& comm) { return seen(comm, path, given, gathered); });
}

data::DataSetOptions options_of(const data::TableOptions& table) {
  data::DataSetOptions options;
  options.classes.reset();
  options.table = table;
  options.may_lack_test = true;
  options.seed = 3;
  return options;
}

/// Numbers of two scales, missing ones, words, and texts with quotes, separators and newlines.
std::string rows_of(int records, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(1000, 3);
  const auto any = [&](int below) { return static_cast<int>(random() % unsigned(below)); };
  const std::vector<std::string> words = {
      "red",        "\"green\"", "\"a \"\"b\"\"\"", "Ä", "\"two\nlines\"", "\"\n,\n\"",
      "\"\"\"\n\"", "NA"};
  std::string text;
  for (int i = 0; i < records; ++i) {
    text += (any(9) == 0 ? "" : std::to_string(normal(random))) + "," + std::to_string(any(50)) +
            "," + words[static_cast<std::size_t>(any(8))] + "," + std::to_string(any(3)) +
            ".5,class " + std::to_string(any(4)) + (any(2) == 0 ? "\r\n" : "\n");
  }
  return text;
}

const std::string header = "a,\"b\n\",c,w,label\n";

TEST_CASE("ranks that share a table find what one rank finds", "[data][table]") {
  const TemporaryFolder folder;
  for (unsigned seed = 0; seed < 12; ++seed) {
    const int records = seed < 6 ? 3 + static_cast<int>(seed) : 100 * static_cast<int>(seed);
    std::string text = (seed % 2 == 0 ? "\xEF\xBB\xBF" : "") + header + rows_of(records, seed);
    if (seed % 3 == 0) text.pop_back();     // the last line without its end
    if (seed % 3 == 1) text += "\n\r\n\n";  // or with empty lines behind it
    const bool is_packed = seed % 4 == 1;
    const auto path = folder.write(is_packed ? "t.csv.gz" : "t.csv",
                                   is_packed ? gzip(bytes_of(text)) : bytes_of(text));
    auto options = options_of({.weight_column = "w"});
    if (seed % 2 == 1) options = options_of({.label_columns = {"2", "w"}});
    options.test_split = 0.3;
    if (records > 100) options.validation = 0.2;
    const Seen expected = seen(1, path.string(), options);
    for (const int ranks : {2, 3, 5, 16}) {
      INFO("seed " << seed << " on " << ranks << " ranks");
      Gathered gathered;
      CHECK(seen(ranks, path.string(), options, &gathered) == expected);
      CHECK(gathered.errors == 0);
      CHECK(gathered.texts >= 7 * ranks);  // two each for columns and records, three for means
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("ranks share each of several files", "[data][table]") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    folder.write(name, bytes_of(text));
  };
  write("train-1.csv", header + rows_of(50, 1));
  write("train-2.csv", header + rows_of(1, 2));
  write("train-3.csv", header + rows_of(200, 3));
  write("test.csv", header + rows_of(60, 4) + "1,2,unknown,3,class 1\n5,6,other,7,class 2\n");
  for (const bool with_limit : {false, true}) {
    auto options = options_of({});
    if (with_limit) options.train_limit = 120;
    const Seen expected = seen(1, folder.path().string(), options);
    CHECK_THAT(expected.warnings.at(0), Contains("2 values of no category") && Contains("unknown"));
    for (const int ranks : {2, 3, 5})
      CHECK(seen(ranks, folder.path().string(), options) == expected);
  }
}

TEST_CASE("ranks that share a table refuse it as one rank does", "[data][table]") {
  const TemporaryFolder folder;
  const std::string good = rows_of(40, 5);
  const auto message = [&](int ranks, const data::TableOptions& table) {
    const auto path = (folder.path() / "t.csv").string();
    return refusal(ranks, [&](comm::Communicator& comm) {
      comm::together(comm, [&](comm::Exchange& exchange) {
        const auto with = opening(exchange);
        data::DataSetOptions options = options_of(table);
        options.ranks = &with;
        data::open_data_set(path, options);
      });
    });
  };
  const std::vector<std::string> defects = {
      "1,2,red,3,class 1,6\n",    // a field more
      "1,2,red,three,class 1\n",  // a word among numbers
      "1,2,re\"d,3,class 1\n",    // a quote that opens another state
      "1,2,red,3,\n",             // no label
      "\n1,2,red,3,class 1\n",    // an empty line
      "1,2,J\xE9,3,class 1\n",    // not UTF-8
      "1,2,\"red,3,class 1\n",    // a quote that is never closed
      "1,2,red,-3,class 1\n"};    // a weight below 0
  for (const std::string& defect : defects) {
    for (const bool is_at_end : {false, true}) {
      folder.write("t.csv", bytes_of(header + good + good + defect + (is_at_end ? "" : good) +
                                     (is_at_end ? "" : defect + good)));
      const data::TableOptions table = {.weight_column = "w"};
      const std::string expected = message(1, table);
      INFO(expected);
      CHECK_THAT(expected, Contains("t.csv:"));
      for (const int ranks : {2, 3, 5}) CHECK(message(ranks, table) == expected);
    }
  }
  // Each rank finds its part good: numbers in one, words in the other.
  std::string text = "a,label\n";
  for (int i = 0; i < 100; ++i) text += (i < 50 ? "1,x\n" : "word,x\n");
  folder.write("t.csv", bytes_of(text));
  CHECK_THAT(message(1, {}),
             Contains("t.csv:52: column 'a': 'word' is not a number, but 50 other"));
  for (const int ranks : {2, 3, 5}) CHECK(message(ranks, {}) == message(1, {}));
  folder.write("t.csv", bytes_of("a,label\n1,x\n1e300,y\n"));
  CHECK_THAT(
      message(1, {}),
      Contains(
          "'1e300' is beyond the numbers of float32, but 1 other field of the column is a number"));
  folder.write("t.csv", bytes_of("a,label\n" + std::string(200, '\n') + "1,2\n"));
  CHECK_THAT(message(1, {}), Contains("t.csv:2: an empty line between records"));
  for (const int ranks : {2, 3, 5}) CHECK(message(ranks, {}) == message(1, {}));
  folder.write("t.csv", bytes_of("a,label\n" + std::string(20, '\n')));
  CHECK_THAT(message(1, {}), Contains("t.csv:2: no record follows"));
  for (const int ranks : {2, 3, 5}) CHECK(message(ranks, {}) == message(1, {}));
}

TEST_CASE("the parts of ranks are the records of a file, with their lines", "[data][table]") {
  const TemporaryFolder folder;
  const std::string text = header + rows_of(20, 7);
  const auto path = folder.write("t.csv", bytes_of(text));
  for (const int ranks : {2, 7, 50}) {
    const auto parts = per_rank(ranks, [&](comm::Communicator& comm) {
      comm::Exchange exchange(comm);
      const auto with = opening(exchange);
      data::Content content(path);
      return data::part_to_scan(content, "all", &with).value();
    });
    CHECK(parts.front().begin == 0);
    CHECK(parts.back().end == text.size());
    std::size_t empty = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto begin = static_cast<std::ptrdiff_t>(parts[i].begin);
      CHECK(parts[i].line ==
            1 + static_cast<std::uint64_t>(std::count(text.begin(), text.begin() + begin, '\n')));
      const auto quotes = std::count(text.begin(), text.begin() + begin, '"');
      CHECK((begin == 0 || (quotes % 2 == 0 && text[parts[i].begin - 1] == '\n')));
      if (i > 0) CHECK(parts[i].begin == parts[i - 1].end);
      if (parts[i].begin == parts[i].end) ++empty;
    }
    CHECK((empty > 0) == (ranks == 50));
  }
}

TEST_CASE("ranks with other files, or that fail, leave none waiting", "[data][table]") {
  const TemporaryFolder folder;
  for (const int rank : {0, 1, 2}) {
    std::string text = header + rows_of(60, 9);
    if (rank == 1) text += rows_of(30, 10);  // and a second file
    std::filesystem::create_directory(folder.path() / std::to_string(rank));
    folder.write(std::to_string(rank) + "/train-1.csv", bytes_of(text));
    if (rank == 1) folder.write("1/train-2.csv", bytes_of(header + rows_of(5, 9)));
  }
  const auto open = [&](comm::Communicator& comm, const std::string& path) {
    std::string identity;
    comm::together(comm, [&](comm::Exchange& exchange) {
      const auto with = opening(exchange);
      data::DataSetOptions options = options_of({});
      options.ranks = &with;
      identity = data::open_data_set(path, options).train->identity();
    });
    return identity;
  };
  const auto path = [&](int rank) { return (folder.path() / std::to_string(rank)).string(); };
  const auto found =
      per_rank(3, [&](comm::Communicator& comm) { return open(comm, path(comm.rank())); });
  for (const int rank : {0, 1, 2}) {
    CHECK(on_all(1, [&](comm::Communicator& comm) { return open(comm, path(rank)); }) ==
          found[static_cast<std::size_t>(rank)]);
  }
  CHECK(found[0] == found[2]);
  CHECK_THAT(
      refusal(3,
              [&](comm::Communicator& comm) { open(comm, comm.rank() == 1 ? path(9) : path(0)); }),
      Contains("rank 1 on ") && Contains("9: no such file or folder"));
}

TEST_CASE("ranks with different first files find the schemas of their own files", "[data][table]") {
  const TemporaryFolder folder;
  const auto path = [&](int rank) { return (folder.path() / std::to_string(rank)).string(); };
  // On rank 0 numbers to predict, on rank 1 classes, and other columns first.
  const std::vector<std::string> first = {"a,b,label\n1,red,1.5\n", "b,a,label\nred,1,1\n"};
  std::string next = "a,b,label\n";
  for (int i = 0; i < 40; ++i) {
    next += std::to_string(i) + (i < 30 ? ",red," : ",blue,") + std::to_string(i % 2) + "\n";
  }
  for (const int rank : {0, 1}) {
    const std::string name = std::to_string(rank);
    std::filesystem::create_directory(path(rank));
    folder.write(name + "/train-1.csv", bytes_of(first[static_cast<std::size_t>(rank)]));
    folder.write(name + "/train-2.csv", bytes_of(next));
    folder.write(name + "/test.csv", bytes_of(next));
  }
  const auto found = per_rank(
      2, [&](comm::Communicator& comm) { return seen(comm, path(comm.rank()), options_of({})); });
  for (const int rank : {0, 1}) {
    CHECK(found[static_cast<std::size_t>(rank)] == seen(1, path(rank), options_of({})));
  }
}

}  // namespace
}  // namespace lockstep::test

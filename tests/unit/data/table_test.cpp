#include "lockstep/data/table.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/stored_source.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::TableOptions;
using data::TableSchema;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

/// A folder with one table, and what is found in it.
struct Table {
  explicit Table(std::string_view text) : path(folder.write("t.csv", bytes_of(text))) {}

  TableSchema find(const TableOptions& options = {},
                   std::optional<int> classes = std::nullopt) const {
    const std::string file = path.string();
    return data::find_schema(std::span(&file, 1), options, classes);
  }

  /// The message without the folder.
  std::string error(const TableOptions& options = {},
                    std::optional<int> classes = std::nullopt) const {
    std::string what = message_of<DataError>([&] { find(options, classes); });
    const std::string before = folder.path().string() + "/";
    if (what.starts_with(before)) what.erase(0, before.size());
    return what;
  }

  data::DataSet split(double share, const TableOptions& table = {}, std::uint64_t seed = 1) const {
    data::DataSetOptions options;
    options.classes.reset();
    options.table = table;
    options.test_split = share;
    options.seed = seed;
    return data::open_data_set(path.string(), options);
  }

  /// Opens the table for a network that was trained on `schema`.
  Records read(const TableSchema& schema, bool needs_labels = true) const {
    data::ReadOptions options;
    options.schema = std::make_shared<const TableSchema>(schema);
    options.needs_labels = needs_labels;
    data::CsvSource source(path, options);
    return read_all(source);
  }

  TemporaryFolder folder;
  std::filesystem::path path;
};

using Texts = std::vector<std::string>;

TEST_CASE("a table's columns are numbers, words, or left out, and its labels classes",
          "[data][table]") {
  const auto found = Table(
                         ",length,colour,label,empty,Name\n"
                         "0,1.5,red,Ädelie,,a\n1,NA,blue,Gentoo,,b\n2,3,,Ädelie,,a\n")
                         .find();
  REQUIRE(found.columns.size() == 3);
  CHECK(found.columns[0].name == "length");
  CHECK(found.columns[0].categories.empty());
  CHECK(found.columns[1].categories == Texts{"blue", "red"});
  CHECK(found.columns[2].categories == Texts{"a", "b"});
  CHECK(found.features() == 5);
  CHECK(found.feature_names() == Texts{"length", "colour=blue", "colour=red", "Name=a", "Name=b"});
  CHECK(found.classes == Texts{"Gentoo", "Ädelie"});  // in the order of bytes
  REQUIRE(found.left_out.size() == 2);
  CHECK(found.left_out[0] ==
        std::pair<std::string, std::string>("", "without a name: a row number"));
  CHECK(found.left_out[1].first == "empty");
}

TEST_CASE("labels that are whole numbers are in their order, and keep their values",
          "[data][table]") {
  const Table table("label,x\n10,1\n9,2\n-1,3\n+9,4\n 10,5\n");
  CHECK(table.find().classes == Texts{"-1", "9", "10"});
  CHECK(table.read(table.find()).labels == std::vector<std::int32_t>{2, 1, 0, 1, 2});
  CHECK_THAT(table.error({}, 10), StartsWith("t.csv:2: column 'label': labels go from -1 to 10"));
  CHECK(Table("label,x\n2,1\n0,2\n").find({}, 4).classes == Texts{"0", "1", "2", "3"});
}

TEST_CASE("labels with a fraction are numbers to predict", "[data][table]") {
  const auto targets = [](std::string_view text, const TableOptions& options = {}) {
    std::vector<std::string> names;
    for (const auto& target : Table(text).find(options).targets) names.push_back(target.name);
    return names;
  };
  const auto floats = [](int different) {
    std::string text = "a,label\n";
    for (int i = 0; i < 100; ++i) text += "1," + std::to_string(i % different) + ".0\n";
    return text;
  };
  CHECK(targets("a,label\n1,0\n2,1.5\n") == std::vector<std::string>{"label"});
  CHECK(targets(floats(21)) == std::vector<std::string>{"label"});
  CHECK(targets(floats(20)).empty());
  CHECK(Table(floats(3)).find().classes == std::vector<std::string>{"0", "1", "2"});
  CHECK(targets("a,label\n1,0\n2,1\n").empty());
  CHECK(targets("a,label\n1,0\n2,1\n", {.task = data::Task::regression}).size() == 1);
  const Table several("a,b,c\n1,2,3\n2,3,5\n");
  const TableOptions both = {.label_columns = {"c", "1"}};
  CHECK(several.find(both).label_names() == std::vector<std::string>{"c", "a"});
  CHECK(several.find(both).features() == 1);
  CHECK(Table("a,label\n1,0.5\n2,1.5\n").find({.task = data::Task::classification}).classes ==
        std::vector<std::string>{"0.5", "1.5"});

  CHECK_THAT(Table("a,label\n1,0.5\n2,x\n").error(),
             StartsWith("t.csv:3: column 'label': 'x' is not a number, but other labels have") &&
                 Contains("`task=classification`"));
  CHECK_THAT(Table("a,label\n1,x\n").error({.task = data::Task::regression}),
             StartsWith("t.csv:2: column 'label': 'x' is not a number"));
  CHECK_THAT(Table("a,label\n1,0.5\n2,\n").error(), StartsWith("t.csv:3: column 'label': ''"));
  const auto refused = [&](const TableOptions& options, std::optional<int> classes = {}) {
    return message_of<ConfigError>([&] { several.find(options, classes); });
  };
  CHECK_THAT(refused({.task = data::Task::classification, .label_columns = {"a", "b"}}),
             Contains("`label_column` names 2 columns"));
  CHECK_THAT(refused({.label_columns = {"a", "1"}}), Contains("names the column 'a' twice"));
  CHECK_THAT(refused(both, 3), Contains("`classes=3` with a regression"));
}

TEST_CASE("values to predict have mean 0 and deviation 1 over the training records",
          "[data][table]") {
  std::string text = "y,a,label\n";
  for (int i = 0; i < 40; ++i) {
    text +=
        std::to_string(i * i) + "," + std::to_string(i) + "," + std::to_string(100 + i) + ".5\n";
  }
  const TableOptions options = {.label_columns = {"label", "y"}};
  const auto set = Table(text).split(0.25, options);
  REQUIRE(set.train->targets() == 2);
  REQUIRE(data::label_counts(*set.train).empty());
  std::vector<double> sums(4);
  std::vector<float> values(2);
  for (std::uint64_t id = 0; id < 30; ++id) {
    set.train->target_values(id, values);
    for (std::size_t i = 0; i < 2; ++i) {
      sums[i] += static_cast<double>(values[i]);
      sums[2 + i] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
  }
  CHECK(sums[0] == Approx(0).margin(1e-5));
  CHECK(sums[1] == Approx(0).margin(1e-5));
  CHECK(sums[2] == Approx(30));
  CHECK(sums[3] == Approx(30));
  // A test record's values are in the units of the training set.
  const auto test = data::split_records(40, 0.25, 1, data::Split::test).taken;
  set.test->target_values(3, values);
  const auto& label = set.test->table()->targets[0];
  const double expected = (100.5 + static_cast<double>(test[3]) - label.mean) / label.deviation;
  CHECK(values[0] == static_cast<float>(expected));
}

TEST_CASE("a number to predict whose square would not be finite is an error with its line",
          "[data][table]") {
  const std::uint64_t far = data::split_records(40, 0.25, 1, data::Split::test).taken[3];
  std::string text = "a,w,label\n";
  for (std::uint64_t i = 0; i < 40; ++i) {
    text += std::to_string(i) + (i == far ? ",0,99999999999999999999\n" : ",1,0.5\n");
  }
  const Table table(text);
  CHECK_THAT(message_of<DataError>([&] { table.split(0.25); }),
             Contains("t.csv:" + std::to_string(far + 2) + ": column 'label': 1e+20 is more than"));
  CHECK(table.split(0.25, {.weight_column = "w"}).test->records() == 10);  // of weight 0
  const TableSchema schema = *table.split(0.25, {.weight_column = "w"}).test->table();
  CHECK(table.read(schema, false).labels.size() == 40);  // to predict
}

TEST_CASE("a column of numbers beyond float32 is not one of categories", "[data][table]") {
  CHECK_THAT(Table("x,label\n1e39,a\n1e39,b\n").error(),
             Contains("column 'x': '1e39' is beyond the numbers of float32") &&
                 Contains("category_columns=x"));
  CHECK(Table("x,label\n12E50,a\n7A3B,b\n12E50,a\n7A3B,b\n").find().columns[0].categories.size() ==
        2);
}

TEST_CASE("separators are found, and columns may have numbers for names", "[data][table]") {
  for (const char* text : {"x;y;label\n1,5;2;a\n", "x\ty\tlabel\n1\t2\ta\n", "x,y,label\n1,2,a\n",
                           "\"x;x\",\"y;y;\",label\n1,2,a\n"}) {
    if (std::string(text).find("1,5") != std::string::npos) {
      CHECK_THAT(Table(text).error(), Contains("'1,5' has a decimal comma"));
    } else {
      CHECK(Table(text).find().columns.size() == 2);
    }
  }
  TableOptions none;
  none.has_header = false;
  none.label_columns = {"-1"};
  const auto found = Table("5.1,3.5,setosa\n4.9,3,virginica\n").find(none);
  CHECK(found.label == "3");
  CHECK(found.columns[1].name == "2");
  CHECK(Table(",0,1,label\n0,5,6,1\n").find().columns.size() == 2);  // as pandas names columns
  CHECK_THAT(Table("5.1,3.5,0\n4.9,3,1\n").error(),
             StartsWith("t.csv:1: the first line is a record") && Contains("`header=none`"));
}

TEST_CASE("blanks around words and names do not count, nor do words that are too long",
          "[data][table]") {
  const auto found = Table("label, a ,b\nyes, u,1\n yes,u ,2\nno,u,3\n").find();
  CHECK(found.classes == Texts{"no", "yes"});
  CHECK(found.columns[0].name == "a");
  CHECK(found.columns[0].categories == Texts{"u"});
  const auto left = Table("label,a,b\n1," + std::string(1001, 'w') + ",2\n").find().left_out;
  REQUIRE(left.size() == 1);
  CHECK_THAT(left[0].second, StartsWith("words, one of more than 1,000 bytes"));
}

TEST_CASE("a header that is a record is refused though its label is a word", "[data][table]") {
  CHECK_THAT(Table("5.1,3.5,setosa\n4.9,3,virginica\n").error({.label_columns = {"-1"}}),
             StartsWith("t.csv:1: the first line is a record"));
  CHECK(Table("400,410,label\n1,2,0\n").find().columns.size() == 2);  // wavelengths
}

TEST_CASE("missing values of a table that is divided are the mean, divided once", "[data][table]") {
  const Table table("label;a;b\n0;20;0\n1;40;0\n0;;0\n1;60;0\n");
  data::DataSetOptions options;
  options.classes.reset();
  options.table.emplace();
  options.divide_by = 10.0F;
  const auto source = data::open_data_part(table.path.string(), data::Part::train, options);
  CHECK(read_all(*source).x == std::vector<float>{2, 0, 4, 0, 4, 0, 6, 0});
}

TEST_CASE("separators are not mixed up in rows of zeros", "[data][table]") {
  TableSchema schema = Table("a;b;c;d;label\n0;0;0;0;1\n").find();
  schema.has_moments = true;
  CHECK(Table("a;b;c;d;label\n0;0;0;0;1\n").read(schema).x == std::vector<float>(4));
  CHECK_THROWS_AS(Table("a;b;c;d;label\n0,0,0,0,1\n").read(schema), DataError);
}

TEST_CASE("what is wrong with a table is named with a remedy", "[data][table]") {
  CHECK_THAT(
      Table("sepal,Species\n1,2\n").error(),
      StartsWith("t.csv:1: no column is named 'label'; the columns are 'sepal', 'Species'") &&
          Contains("`label_column=Species`"));
  CHECK_THAT(Table("a,LABEL,target\n1,2,3\n").error(), Contains("`label_column=LABEL`"));
  CHECK_THAT(Table("1.5,red,1\n2.5,green,0\n").error(),
             Contains("`header=none` `label_column=-1`") && !Contains("`label_column=1`"));
  CHECK_THAT(Table("1.5,red,1\n2.5,green,0\n").error({.label_columns = {"1"}}),
             StartsWith("t.csv:1: the first line is a record"));
  CHECK_THAT(Table("a,b\n1,2\n").error({.label_columns = {"3"}}),
             Contains("the columns are 1 to 2"));
  CHECK_THAT(
      Table("label,a\n1,2\n1,x\n3,4\n").error(),
      StartsWith("t.csv:3: column 'a': 'x' is not a number") && Contains("`ignore_columns=a`"));
  CHECK(Table("label,a\n1,2\n1,x\n").find({.categories = {"a"}}).columns[0].categories ==
        Texts{"2", "x"});
  CHECK_THAT(Table("label,a\n1,2\n,2\n").error(),
             StartsWith("t.csv:3: column 'label': '' is not a label"));
  CHECK_THAT(Table("label,a\n1,2,3\n").error(), StartsWith("t.csv:2: 3 fields"));
  const Table twice("a,b,a,b,label\n1,2,3,4,0\n4,3,2,1,1\n");
  CHECK_THAT(twice.error({.ignored = {"a"}}),
             StartsWith("t.csv:1: columns 2 and 4 are both named 'b'") && Contains("rename"));
  CHECK_THAT(twice.error({.label_columns = {"3"}, .ignored = {"b"}}),
             StartsWith("t.csv:1: columns 1 and 3 are both named 'a'"));
  CHECK(Table("b,a,b,label\n1,2,3,0\n").find({.ignored = {"b"}}).features() == 1);
  CHECK_THAT(Table("label,a\n").error(), StartsWith("t.csv:2: no record"));
  CHECK_THAT(Table("label\n1\n").error(), Contains("no column of features"));
  CHECK_THAT(Table("label,a\nJos\xE9,2\n").error(), StartsWith("t.csv:2: 'Jos?' is not UTF-8"));
  CHECK_THAT(Table("h\xE0\xFF,b\n1,2\n").error(),  // before the column of labels is looked for
             StartsWith("t.csv:1: 'h?") && Contains("' is not UTF-8"));
  CHECK_THAT(Table("a,label\r\n1,u\r\r\n").error(), StartsWith("t.csv:2: 'u?' has a NUL or ends"));
  CHECK_THAT(Table(std::string_view("a,label\n1,u\n2,v\0\n", 17)).error(),
             StartsWith("t.csv:3: 'v?' has a NUL or ends"));
  CHECK_THAT(Table("a,label\nInfinity,1\n-inf,2\n").error(),
             Contains("'Infinity' is beyond the numbers of float32"));
  CHECK_THROWS_WITH(Table("label,abc\n1,2\n").find({.ignored = {"abd"}}),
                    Contains("no column is named 'abd'") && Contains("did you mean 'abc'"));
  CHECK_THAT(Table("label,a\r\r\n1,2\r\r\n").error(),
             StartsWith("t.csv:1: lines end in CR CR LF") && Contains("tr -d"));
  CHECK_THAT(Table("label;a\n1;2\n1;1,5\n").error(),
             StartsWith("t.csv:3: column 'a': '1,5' has a decimal comma"));
  CHECK_THAT(Table("a;price\n3;1,5\n2;2,25\n").error({.label_columns = {"price"}}),
             StartsWith("t.csv:2: column 'price': '1,5' has a decimal comma"));
  CHECK_THAT(Table("label;a\n1;2\n1;1,500\n").error(),
             StartsWith("t.csv:3: column 'a': '1,500' has a comma, of thousands or decimals") &&
                 Contains("thousands without a comma"));
  std::string words = "label,a\n";
  for (int i = 0; i < 101; ++i) words += "1,w" + std::to_string(i) + "\n";
  CHECK_THAT(Table(words).error(), Contains("no column of features"));  // too many words
  CHECK(Table(words).find({.categories = {"a"}}).features() == 101);
}

TEST_CASE("texts of a record become the features that its file gives", "[data][table]") {
  const std::string rows = "label,a,b,c\nx,1,20,u\ny,3,40,v\nx,5,NA,u\n";
  TableSchema schema = Table(rows).find();
  const Table table(rows);
  data::ReadOptions options;
  options.schema = std::make_shared<const TableSchema>(schema);
  data::CsvSource source(table.path, options);
  data::add_moments(schema, source, true);
  const Records expected = table.read(schema);
  const std::vector<Texts> records = {{"1", "20", "u"}, {" 3", "40.0", "v "}, {"5", "", "u"}};
  std::vector<float> features;
  for (const Texts& record : records) {
    const auto row = data::features_of(schema, 1, record);
    features.insert(features.end(), row.begin(), row.end());
  }
  CHECK(features == expected.x);
  CHECK(data::features_of(schema, 1, Texts{"1", "20", "w"})[3] == 0);
  CHECK(data::features_of(schema, 4, Texts{"4", "80", "u"}) ==
        data::features_of(schema, 1, Texts{"1", "20", "u"}));
  const auto error = [&](const Texts& record) {
    return message_of<DataError>([&] { data::features_of(schema, 1, record); });
  };
  CHECK_THAT(error({"1", "20"}), Contains("2 values for 3 columns"));
  CHECK_THAT(error({"1", "two", "u"}), StartsWith("column 'b': 'two' is not a finite number"));
  schema.missing = data::Missing::error;
  CHECK_THAT(error({"1", "NA", "u"}), Contains("a missing value"));
  CHECK_THAT(error({"1", "2", "w"}), Contains("'w' is not a category"));
}

TEST_CASE("columns are matched by name", "[data][table]") {
  TableSchema schema = Table("label,a,b,c\nx,1,2,u\ny,3,4,v\n").find();
  schema.has_moments = true;
  const Records expected{{1, 2, 1, 0, 3, 4, 0, 1}, {0, 1}};
  CHECK(Table("label,a,b,c\nx,1,2,u\ny,3,4,v\n").read(schema) == expected);
  CHECK(Table("c;label;b;a\r\nu;x;2;1\r\nv;y;4;3\r\n").read(schema) == expected);
  CHECK(Table("\xEF\xBB\xBFz,c,\"label\",b,a\n\"q\n\",u,x,2,1\n,v,y,4,3\n").read(schema) ==
        expected);
  CHECK(Table("b,c,a\n2,u,1\n4,v,3\n").read(schema, false).x == expected.x);
  const auto error = [&](const char* text) {
    return message_of<DataError>([&] { Table(text).read(schema); });
  };
  CHECK_THAT(error("label,a,B,c\nx,1,2,u\n"), Contains("no column of the header is named 'b'"));
  CHECK_THAT(error("label,c\nx,u\n"), Contains("named 'a', 'b', which the network takes"));
  CHECK_THAT(error("a,b,c\n1,2,u\n"), Contains("named 'label'"));
  CHECK_THAT(error("label,a,b,c\nz,1,2,u\n"), Contains("'z' is none of the 2 classes"));
  CHECK_THAT(error("a,b,c,c,label\n1,2,u,v,x\n"), Contains("columns 3 and 4 are both named 'c'"));
  CHECK_THAT(error("1,1,2\n2,3,4\n"), Contains("the first line is a record"));
  CHECK(Table("label,a,b,c\n?,1,2,u\n").read(schema, false).x == std::vector<float>{1, 2, 1, 0});
  CHECK(Table("label,a,b,c\nx,1,2,w\n").read(schema).x == std::vector<float>{1, 2, 0, 0});
  schema.missing = data::Missing::error;
  CHECK_THAT(error("label,a,b,c\nx,1,2,w\n"), Contains(":2: column 'c': 'w' is not a category"));
  CHECK_THAT(error("label,a,b,c\nx,1,,u\n"), Contains(":2: column 'b': '': a missing value"));
}

TEST_CASE("a test split is exact, disjoint and a function of seed and number", "[data][table]") {
  for (const std::uint64_t records : {2U, 10U, 150U, 1000U}) {
    const auto test = data::split_records(records, 0.2, 7, data::Split::test).taken;
    CHECK(test.size() == (records + 4) / 5);
    CHECK(std::is_sorted(test.begin(), test.end()));
    CHECK(std::set<std::uint64_t>(test.begin(), test.end()).size() == test.size());
    CHECK(test == data::split_records(records, 0.2, 7, data::Split::test).taken);
  }
  CHECK(data::split_records(1000, 0.2, 7, data::Split::test).taken !=
        data::split_records(1000, 0.2, 8, data::Split::test).taken);
  CHECK_THROWS_AS(data::split_records(1, 0.2, 7, data::Split::test).taken, ConfigError);

  std::string text = "label,x\n";
  for (int i = 0; i < 50; ++i) text += std::to_string(i % 2) + "," + std::to_string(i) + "\n";
  const auto set = Table(text).split(0.2, {.standardize = false});
  auto all = read_all(*set.train).x;
  const auto test = read_all(*set.test).x;
  CHECK(all.size() == 40);
  all.insert(all.end(), test.begin(), test.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < 50; ++i) REQUIRE(all[i] == static_cast<float>(i));
}

TEST_CASE("a validation set is of the training records of a split", "[data][table]") {
  std::string text = "label,x\n";
  for (int i = 0; i < 50; ++i) text += std::to_string(i % 2) + "," + std::to_string(i) + "\n";
  const Table table(text);
  data::DataSetOptions options = {
      .table = TableOptions{.standardize = false}, .test_split = 0.2, .seed = 1};
  options.classes.reset();
  const auto without = data::open_data_set(table.path.string(), options);
  CHECK(without.validation == nullptr);
  options.validation = 0.25;
  const auto set = data::open_data_set(table.path.string(), options);
  CHECK(read_all(*set.test).x == read_all(*without.test).x);
  auto all = read_all(*set.train).x;
  const auto validation = read_all(*set.validation).x;
  CHECK(all.size() == 30);
  CHECK(validation.size() == 10);
  double sum = 0;
  for (const float x : all) sum += static_cast<double>(x);
  CHECK(set.train->table()->columns[0].mean == Approx(sum / 30));  // of what is trained on, alone
  CHECK(set.validation->table() == set.train->table());
  all.insert(all.end(), validation.begin(), validation.end());
  std::sort(all.begin(), all.end());
  auto training = read_all(*without.train).x;
  std::sort(training.begin(), training.end());
  CHECK(all == training);
  CHECK(set.train->identity() != without.train->identity());
  const auto part = data::open_data_part(table.path.string(), data::Part::train, options);
  CHECK(read_all(*part).x == read_all(*set.train).x);
  options.validation = 1.5;
  CHECK_THROWS_AS(data::open_data_set(table.path.string(), options), ConfigError);
}

TEST_CASE("standardized columns have mean 0 and deviation 1 over the training records",
          "[data][table]") {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(3e7F, 200.0F);
  std::string text = "a,label,b,constant\n";
  for (int i = 0; i < 2000; ++i) {
    text += (i % 100 == 0 ? "" : std::to_string(normal(random))) + "," + std::to_string(i % 3) +
            "," + std::to_string(i % 7) + ",5\n";
  }
  const auto set = Table(text).split(0.25);
  const auto schema = set.train->table();
  CHECK(schema->standardized);
  CHECK(schema == set.test->table());
  const Records train = read_all(*set.train);
  for (std::size_t column = 0; column < 2; ++column) {
    double sum = 0;
    double squares = 0;
    for (std::size_t i = column; i < train.x.size(); i += 3) {
      sum += static_cast<double>(train.x[i]);
      squares += static_cast<double>(train.x[i]) * static_cast<double>(train.x[i]);
    }
    const double records = 1500;
    CHECK(std::abs(sum / records) < 1e-6);
    CHECK(squares / records == Approx(1).margin(0.011));  // missing values are 0
  }
  CHECK(schema->columns[2].deviation == 1);
  CHECK(train.x[2] == 0.0F);
  CHECK_FALSE(Table("a,b,label\n1,0.9,0\n0,0,1\n1,1,1\n").split(0.3).train->table()->standardized);
  CHECK(Table("a,label\n100000,0\n120000,1\n140000,1\n").split(0.3).train->table()->standardized);
  const auto is_standardized_with = [](const std::string& equal) {
    std::string rows = "a,b,label\n";
    for (const char* const a : {"1", "0.9", "-1", "0.8"}) {
      rows += std::string(a) + "," + equal + ",1\n";
    }
    return Table(rows).split(0.25).train->table()->standardized;
  };
  CHECK_FALSE(is_standardized_with("5"));
  CHECK(is_standardized_with("5000"));
}

TEST_CASE("missing numbers that are zeros are in means and deviations", "[data][table]") {
  std::string text = "k,label\n";
  std::string zeros = text;
  for (int i = 0; i < 20; ++i) {
    const std::string label = "," + std::to_string(i % 2) + "\n";
    text += (i % 4 < 2 ? "" : "1000000") + label;
    zeros += (i % 4 < 2 ? "0" : "1000000") + label;
  }
  const auto set = Table(text).split(0.2, {.missing = data::Missing::zero});
  CHECK(set.train->table()->standardized);
  CHECK(read_all(*set.train).x == read_all(*Table(zeros).split(0.2).train).x);
}

TEST_CASE("labels are one class only where they are one number or one text", "[data][table]") {
  const auto classes = [](const std::vector<std::string>& labels) {
    std::string text = "x,label\n";
    for (const auto& label : labels) text += "1," + label + "\n";
    return Table(text).find().classes;
  };
  using Classes = std::vector<std::string>;
  CHECK(classes({"7", " 7.0", "10", "1e1"}) == Classes{"7", "10"});
  CHECK(classes({"007", "7", "7A", "1e1", "10"}) == Classes{"007", "10", "1e1", "7", "7A"});
  CHECK(classes({"18446744073709551615", "18446744073709551614", "5"}) ==
        Classes{"18446744073709551614", "18446744073709551615", "5"});
  CHECK(classes({"9007199254740992", "9007199254740993"}).size() == 2);
  const Table table("x,label\n1,01e2\n2,1A2\n3,100\n4,01e2\n");
  CHECK(table.read(table.find()).labels == std::vector<std::int32_t>{0, 2, 1, 0});
}

TEST_CASE("numbers that float32 cannot tell apart are refused", "[data][table]") {
  const auto error_of = [](const std::string& column, double offset, double distance,
                           std::optional<data::Task> task) {
    std::string text = column + ",other\n";
    for (int i = 0; i < 40; ++i) {
      text += with_decimals(offset + distance * i, 2) + "," + std::to_string(i % 3) + "\n";
    }
    const TableOptions options = {.task = task, .label_columns = {task ? column : "other"}};
    return message_of<DataError>([&] { Table(text).split(0.2, options); });
  };
  for (const auto& [offset, distance] : {std::pair{17e8, 2.0}, {3e7, 0.5}, {-17e8, 2.0}}) {
    CHECK_THAT(
        error_of("time", offset, distance, std::nullopt),
        Contains("column 'time'") && Contains("24 bits of float32") && Contains("ignore_columns"));
  }
  const auto noise = Table("a,label\n0.3,0\n0.30000001,1\n0.30000002,0\n").split(0.3);
  CHECK(noise.train->records() == 2);
  CHECK(Table("a,label\n0.3,0\n0.30000000000000004,1\n").find().columns.size() == 1);
  CHECK_THAT(error_of("time", 17e8, 0.25, std::nullopt),
             Contains("column 'time': its numbers are all '1700000000.00' in the 24 bits"));
  for (const auto& [offset, distance] : {std::pair{17e8, 2.0}, {17e8, 0.25}}) {
    CHECK_THAT(error_of("time", offset, distance, data::Task::regression),
               Contains("column 'time'") && Contains("subtract an offset"));
  }
}

}  // namespace
}  // namespace lockstep::test

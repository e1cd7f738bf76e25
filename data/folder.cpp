#include "lockstep/data/folder.hpp"

#include <algorithm>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"
#include "lockstep/data/picture_source.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {
namespace {

/// A source, and its file for error messages.
struct Named {
  const Source& source;
  const std::string& path;
};

void check_same_shape(const Named& one, const Named& first, bool exactly) {
  const bool same = exactly ? one.source.shape() == first.source.shape()
                            : one.source.features() == first.source.features();
  if (same) return;
  const auto text = [](const Source& source) {
    return shape_text(source.shape()) + " (" + std::to_string(source.features()) + " features)";
  };
  throw DataError(one.path + ": records are " + text(one.source) + ", but those of " + first.path +
                      " are " + text(first.source),
                  "use files that belong together, with records of one shape");
}

/// Features are identified by position, so all files must have the same column order.
void check_same_columns(const Named& one, const Named& first) {
  const auto here = one.source.columns();
  const auto there = first.source.columns();
  for (std::size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
    if (here[i] == there[i]) continue;
    throw DataError(one.path + ":1: feature " + std::to_string(i) + " is called '" + here[i] +
                        "', but in " + first.path + " '" + there[i] + "'",
                    "give all files the same columns in the same order");
  }
}

/// The default divisor is 255 for bytes and 1 for numbers, so both cannot be combined.
void check_same_divisor(const Named& one, const Named& first) {
  if (one.source.divisor() == first.source.divisor()) return;
  const auto kind = [](const Source& of) {
    return of.element() == Element::byte ? "bytes" : "numbers";
  };
  throw DataError(one.path + ": holds " + kind(one.source) + ", but " + first.path + " holds " +
                      kind(first.source),
                  "say with `divide_by` what both are to be divided by, or write them alike");
}

}  // namespace

std::unique_ptr<Source> open_part(Format format, const std::vector<RecordFiles>& files,
                                  const ReadOptions& options) {
  ReadOptions left = options;
  checked_limit(options);
  left.sampled_blocks = sampled_blocks_of_each(files.size());
  std::vector<std::unique_ptr<Source>> parts;
  for (const RecordFiles& pair : files) {
    auto part = open_files(format, pair, left);
    const std::uint64_t records = part->records();
    parts.push_back(std::move(part));
    const Named one{*parts.back(), pair.records};
    const Named first{*parts.front(), files.front().records};
    check_same_shape(one, first, true);
    check_same_columns(one, first);
    check_same_divisor(one, first);
    if (!left.limit) continue;
    *left.limit -= records;
    if (*left.limit == 0) break;
  }
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<ConcatSource>(std::move(parts));
}

namespace {

/// find_files(), and as pictures, if they are tables that name pictures.
FolderFiles files_for(const std::string& path, const DataSetOptions& options,
                      std::optional<Part> only, bool may_lack_test) {
  FolderFiles files = find_files(path, {options.format, only, may_lack_test, options.needs_labels});
  if (files.format != Format::csv || options.format || options.schema != nullptr) return files;
  const TableOptions table = options.table.value_or(TableOptions());
  std::vector<std::string> all;
  for (const auto* part : {&files.train, &files.test}) {
    for (const RecordFiles& one : *part) all.push_back(one.records);
  }
  const auto is_picture = [&](const auto& file) { return names_pictures(file, table); };
  const auto pictures = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), is_picture));
  if (pictures == 0) return files;
  if (pictures < all.size()) {
    const std::string& other = *std::find_if_not(all.begin(), all.end(), is_picture);
    // Reading a damaged table throws, with a more specific error than the one below.
    CsvTexts rows(other, table.has_header, table.separator);
    while (!rows.next().empty()) continue;
    throw DataError(other + ": names no pictures, but " +
                        *std::find_if(all.begin(), all.end(), is_picture) + " does",
                    "give all tables a column of paths; or, if these are words, `format=csv`");
  }
  for (const auto* part : {&files.train, &files.test}) {
    if (part->size() < 2) continue;
    throw DataError((*part)[1].records + ": a second table of pictures, beside " +
                        std::filesystem::path(part->front().records).filename().string(),
                    "join them in one");
  }
  files.format = Format::picture;
  return files;
}

/// `options` with the schema of a table, if the files are one: what is found in its training files
/// unless it is given.
DataSetOptions with_schema(const FolderFiles& files, const DataSetOptions& options) {
  DataSetOptions read = options;
  if (files.format != Format::csv) {
    read.schema = nullptr;
    return read;
  }
  if (read.schema != nullptr || !options.table) return read;
  std::vector<std::string> paths;
  paths.reserve(files.train.size());
  for (const RecordFiles& one : files.train) paths.push_back(one.records);
  read.schema = std::make_shared<const TableSchema>(
      find_schema(paths, *options.table, options.classes, options.ranks));
  return read;
}

/// Both parts of the training files, which have no test files beside them.
DataSet split(const FolderFiles& files, const DataSetOptions& options) {
  ReadOptions all = options.of(Part::train);
  checked_limit(all);
  checked_limit(options.of(Part::test));
  all.limit.reset();
  const std::shared_ptr<Source> whole = open_part(files.format, files.train, all);
  const std::uint64_t records = whole->records();
  auto [test, train] = split_records(records, *options.test_split, options.seed, Split::test);
  const auto cut = [](std::vector<std::uint64_t>& ids, std::optional<std::uint64_t> limit) {
    if (limit && *limit < ids.size()) ids.resize(static_cast<std::size_t>(*limit));
  };
  cut(train, options.train_limit);
  cut(test, options.test_limit);
  // Limits are not in the names, of which checkpoints keep hashes: where ranks may have other
  // limits, they compare the number of records, too.
  const std::string name =
      shortest(*options.test_split) + " by seed " + std::to_string(options.seed);
  DataSet set;
  set.train = std::make_unique<SubsetSource>(whole, std::move(train), "all but " + name);
  set.test = std::make_unique<SubsetSource>(whole, std::move(test), name);
  return set;
}

/// Gives both parts means and deviations of the training set, where it is a table without them.
void complete(DataSet& set, const DataSetOptions& options) {
  const auto found = set.train->table();
  if (found == nullptr || found->has_moments) return;
  TableSchema schema = *found;
  // Values that are divided already are not in need of another scale.
  auto standardize = options.table ? options.table->standardize : std::nullopt;
  if (options.divide_by) standardize = standardize.value_or(false);
  if (options.divide_by && *standardize) {
    throw ConfigError(
        "`standardize=true` and `divide_by`: values are either standardized or divided",
        "leave `divide_by` out");
  }
  add_moments(schema, *set.train, standardize, options.ranks);
  const auto complete = std::make_shared<const TableSchema>(std::move(schema));
  set.train->set_moments(complete);  // and set.validation, which is of the same source
  if (set.test != nullptr) set.test->set_moments(complete);
}

void require_no_test_files(const FolderFiles& files, const std::string& path) {
  if (files.test.empty()) return;
  throw ConfigError("`test_split`: " + path + " has test files: " +
                        std::filesystem::path(files.test.front().records).filename().string(),
                    "leave `test_split` out, or name the training file itself");
}

}  // namespace

std::unique_ptr<Source> open_folder_part(const std::string& path, Part part,
                                         const DataSetOptions& options) {
  if (options.test_split) {
    DataSet set = open_folder(path, options);
    return part == Part::train ? std::move(set.train) : std::move(set.test);
  }
  const FolderFiles files = files_for(path, options, part, false);
  const DataSetOptions read = part == Part::train ? with_schema(files, options) : options;
  DataSet set;
  set.train =
      open_part(files.format, part == Part::train ? files.train : files.test, read.of(part));
  if (part == Part::train) take_validation(set, options);
  complete(set, options);
  return std::move(set.train);
}

DataSet open_folder(const std::string& path, const DataSetOptions& options) {
  const bool may_lack_test = options.test_split.has_value() || options.may_lack_test;
  const FolderFiles files = files_for(path, options, std::nullopt, may_lack_test);
  const DataSetOptions read = with_schema(files, options);
  DataSet set;
  if (options.test_split) {
    require_no_test_files(files, path);
    set = split(files, read);
  } else {
    set.train = open_part(files.format, files.train, read.of(Part::train));
  }
  if (set.test == nullptr && !files.test.empty()) {
    ReadOptions of_test = read.of(Part::test);
    if (of_test.picture_schema == nullptr) {
      of_test.picture_schema = set.train->pictures();
      of_test.exact_size = !options.pictures.size;
    }
    set.test = open_part(files.format, files.test, of_test);
    const Named test{*set.test, files.test.front().records};
    const Named train{*set.train, files.train.front().records};
    check_same_shape(test, train, false);
    check_same_columns(test, train);
    check_same_divisor(test, train);
  }
  take_validation(set, options);
  complete(set, options);
  return set;
}

}  // namespace lockstep::data

#include "lockstep/data/picture_source.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/files.hpp"
#include "lockstep/base/hash.hpp"
#include "lockstep/base/process.hpp"
#include "lockstep/base/text.hpp"
#include "lockstep/data/csv.hpp"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

/// True for names that begin with a dot and for lost+found, which ext4 creates.
bool is_hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "lost+found";
}

[[noreturn]] void fail_to_list(const fs::path& folder, const std::error_code& error) {
  throw DataError(folder.string() + ": cannot be listed: " + error.message(),
                  "give a folder that this user may read");
}

/// Throws for a link to a folder above it: what is in there would be found without end.
void require_no_loop(const fs::path& folder, const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!entry.is_symlink(ignored) || !entry.is_directory(ignored)) return;
  for (fs::path above = entry.path().parent_path();; above = above.parent_path()) {
    if (fs::equivalent(above, entry.path(), ignored)) {
      throw DataError(
          entry.path().string() + ": is a link to " + above.string() + ", a folder that it is in",
          "remove the link");
    }
    if (above == folder || !above.has_relative_path()) return;
  }
}

/// Calls `take(entry)` for everything below `folder` that is not hidden, links to folders too, in
/// any order; stops if it returns false. Throws DataError for links that loop.
template <class Take>
void walk(const fs::path& folder, Take take) {
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink,
                                      error);
  fs::path last = folder;  // whose listing an error is of
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored)) last = at->path();
    if (is_hidden(at->path())) {
      at.disable_recursion_pending();
      continue;
    }
    require_no_loop(folder, *at);
    if (!take(*at)) return;
  }
  if (error) fail_to_list(last, error);
}

/// The names of the folders in `folder` that are not hidden, in byte order.
std::vector<std::string> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : list_folder(folder, error)) {
    std::error_code ignored;
    if (!is_hidden(entry.path()) && entry.is_directory(ignored)) {
      names.push_back(entry.path().filename().string());
    }
  }
  if (error) fail_to_list(folder, error);
  return names;
}

bool has_folders(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder, ignored) && !folders_in(folder).empty();
}

/// Pictures in formats that are not read.
bool is_other_picture(const fs::path& path) {
  constexpr std::array<std::string_view, 8> endings{".gif",  ".bmp",  ".webp", ".tif",
                                                    ".tiff", ".heic", ".avif", ".jp2"};
  const std::string name = lower_case(path.extension().string());
  return contains(endings, name);
}

std::string size_text(const ImageSize& size) {
  return shape_text(std::array{size.rows, size.columns});
}

/// The index of the first column with the name of a picture in one of the first ten records, which
/// is neither ignored nor the column `label`; names().size() if there is none.
std::size_t find_paths(CsvTexts& rows, const TableOptions& options, std::size_t label) {
  const auto& names = rows.names();
  std::size_t first = names.size();
  for (int i = 0; i < 10; ++i) {
    const auto& record = rows.next();
    for (std::size_t column = 0; column < std::min(record.size(), first); ++column) {
      if (column == label || contains(options.ignored, names[column])) continue;
      if (is_picture_name(record[column])) first = column;
    }
  }
  return first;
}

std::size_t column_named(const std::vector<std::string>& names, const std::string& name) {
  return index_of(names, name).value_or(names.size());
}

bool have_picture(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), is_picture_name);
}

}  // namespace

std::string PictureSchema::text() const {
  const std::string pixels = size_text(size) + (channels == 1 ? " gray" : " RGB");
  if (path_column.empty()) return pixels;
  return pixels + ", paths in " + in_quotes(path_column) + ", labels in " + in_quotes(label_column);
}

std::optional<ImageSize> parse_image_size(const std::string& text) {
  constexpr std::uint64_t max = 4096;
  if (text == "auto") return std::nullopt;
  const auto cross = text.find('x');
  const std::uint64_t rows = parse_count(text.substr(0, cross), 1, max);
  return ImageSize{rows, cross == text.npos ? rows : parse_count(text.substr(cross + 1), 1, max)};
}

std::optional<std::pair<fs::path, fs::path>> find_picture_folders(const fs::path& path) {
  std::pair<fs::path, fs::path> parts = {path, {}};
  if (has_folders(path / "train") || has_folders(path / "test")) {
    std::error_code ignored;
    parts.first = fs::is_directory(path / "train", ignored) ? path / "train" : fs::path();
    parts.second = fs::is_directory(path / "test", ignored) ? path / "test" : fs::path();
  }
  bool found = false;
  for (const fs::path& part : {parts.first, parts.second}) {
    if (part.empty() || found) continue;
    walk(part, [&](const fs::directory_entry& entry) {
      found = is_picture_name(entry.path().filename().string());
      return !found;
    });
  }
  if (!found) return std::nullopt;
  return parts;
}

bool names_pictures(const fs::path& table, const TableOptions& options) {
  if (options.label_columns.empty()) return false;  // reported for a table
  try {
    CsvTexts rows(table, options.has_header, options.separator);
    const auto& names = rows.names();
    if (options.has_header && have_picture(names)) return true;
    const std::size_t label = column_named(names, options.label_columns.front());
    return find_paths(rows, options, label) < names.size();
  } catch (const DataError&) {  // reading it as a table reports the error better
    return false;
  }
}

namespace {

/// Finds a class by a text: its name or, of whole numbers, another form of it, 007 for 7.
class ClassIndex {
 public:
  explicit ClassIndex(std::span<const std::string> classes) : are_whole_(are_whole(classes)) {
    std::int32_t index = 0;
    for (const std::string& name : classes) indices_.emplace(name, index++);
    index = 0;
    for (const std::string& name : classes) indices_.emplace(class_text(name, are_whole_), index++);
  }

  std::optional<std::int32_t> find(const std::string& text) const {
    auto found = indices_.find(text);
    if (found == indices_.end()) found = indices_.find(class_text(text, are_whole_));
    return found == indices_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  bool are_whole_;
  std::map<std::string, std::int32_t> indices_;
};

}  // namespace

PictureSource::PictureSource(fs::path path, const ReadOptions& options)
    : folder_(std::move(path)),
      scale_(options.divide_by),
      sampled_blocks_(options.sampled_blocks),
      schema_(options.picture_schema == nullptr
                  ? std::make_shared<PictureSchema>()
                  : std::make_shared<PictureSchema>(*options.picture_schema)),
      readers_(static_cast<std::size_t>(std::max(1, options.threads))) {
  const auto limit = checked_limit(options);
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(folder_, ignored);
  const bool is_table = is_file && !is_picture_name(folder_.string());
  if (is_table) {
    list_rows(options);
  } else if (is_file) {
    files_.push_back({folder_.filename().string(), 0, 0});
    folder_ = folder_.parent_path();
    if (options.needs_labels) {
      throw DataError(place_of(0) + ": is one picture, without a label",
                      "name a folder with a folder of pictures for each class");
    }
  } else if (options.needs_labels) {
    list_classes(options.picture_schema != nullptr);
  } else {
    list_files("", 0);
  }
  if (files_.empty()) {
    throw DataError(folder_.string() + ": has no picture (.png, .jpg or .jpeg)" +
                        (options.needs_labels ? " in a folder for its class" : ""),
                    "put pictures there; for training, into a folder for each class");
  }
  const auto key = [](const File& file) {
    return std::tuple(std::string_view(file.name).substr(file.sorted_from), file.label);
  };
  if (!is_table) {
    std::sort(files_.begin(), files_.end(),
              [&](const File& a, const File& b) { return key(a) < key(b); });
  }
  if (limit && *limit < files_.size()) files_.resize(static_cast<std::size_t>(*limit));
  read_headers(options);
}

void PictureSource::list_classes(bool are_given) {
  auto& classes = schema_->classes;
  const ClassIndex given(classes);
  for (const std::string& name : folders_in(folder_)) {
    const auto label = given.find(name);
    const std::size_t before = files_.size();
    list_files(name, label.value_or(static_cast<std::int32_t>(classes.size())));
    const bool is_empty = files_.size() == before;
    if (are_given && !label && !is_empty) {
      throw DataError((folder_ / name).string() + ": training had no class " + in_quotes(name),
                      "the classes are " + listed(classes));
    }
    if (are_given) continue;
    if (is_empty) {
      throw DataError((folder_ / name).string() + ": the folder of a class has no picture " +
                          "(.png, .jpg or .jpeg)",
                      "put pictures there, or remove the folder");
    }
    if (!is_utf8(name)) {
      throw DataError((folder_ / name).string() + ": the name of a class is not UTF-8",
                      "rename the folder");
    }
    classes.push_back(name);
  }
}

void PictureSource::list_rows(const ReadOptions& options) {
  const fs::path table = folder_;
  folder_ = options.pictures.folder.value_or(table.parent_path().string());
  PictureSchema& schema = *schema_;
  const bool is_found = options.picture_schema == nullptr;
  TableOptions how = options.table.value_or(TableOptions());
  if (!schema.path_column.empty()) {
    how.has_header = schema.has_header;
    how.label_columns = {schema.label_column};
  }
  CsvTexts rows(table, how.has_header, how.separator);
  const std::vector<std::string>& names = rows.names();
  const std::string header = table.string() + ":1";
  if (how.has_header && have_picture(names)) {
    throw_no_header(header, names.front(),
                    is_found ? "set `header=none`, or give the file a header line"
                             : "give the file the header line of the training set");
  }
  if (is_found && options.needs_labels) {
    TableSchema found = find_classes(table, how);
    schema.classes = std::move(found.classes);
    schema.label_column = std::move(found.label);
    schema.has_header = how.has_header;
  }
  const std::string& label_name =
      schema.label_column.empty() ? how.label_columns.front() : schema.label_column;
  const std::size_t label = column_named(names, label_name);
  if (label == names.size() && options.needs_labels) {
    throw DataError(header + ": no column is named " + in_quotes(label_name) +
                        "; the columns are " + listed(names),
                    "name the column of labels so");
  }
  const ClassIndex classes(schema.classes);
  const bool is_known = !schema.path_column.empty();
  std::size_t path_column = column_named(names, schema.path_column);
  if (!is_known) {
    CsvTexts first(table, how.has_header, how.separator);
    path_column = find_paths(first, how, label);
  }
  if (path_column == names.size()) {
    throw DataError(header + ": no column " +
                        (is_known ? "is named " + in_quotes(schema.path_column)
                                  : "has names of pictures (.png, .jpg or .jpeg)") +
                        "; the columns are " + listed(names),
                    is_known ? "name the column of paths so" : "give the table a column of paths");
  }
  require_unique(names, std::array{names[path_column], label_name}, header);
  for (const auto* record = &rows.next(); !record->empty(); record = &rows.next()) {
    File file = {std::string(trimmed((*record)[path_column])), 0, 0};
    std::error_code error;
    if (!fs::is_regular_file(folder_ / file.name, error)) {
      throw DataError(rows.place() + ": " + in_quotes(file.name) + " is not a file in " +
                          (folder_.empty() ? "this folder" : folder_.string()),
                      "mend the path, which is relative to that folder; or, if the column has "
                      "words, `format=csv`");
    }
    if (options.needs_labels) {
      const auto found = classes.find((*record)[label]);
      if (!found) {
        throw DataError(rows.place() + ": training had no class " + in_quotes((*record)[label]),
                        "the classes are " + listed(schema.classes));
      }
      file.label = *found;
    }
    files_.push_back(std::move(file));
  }
  if (is_found) schema.path_column = names[path_column];
}

void PictureSource::list_files(const fs::path& below, std::int32_t label) {
  const fs::path top = folder_ / below;
  const std::size_t top_length = (folder_ / "").string().size();
  const std::size_t sorted_from = below.empty() ? 0 : below.string().size() + 1;
  walk(top, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) return true;
    std::string path = entry.path().string();
    if (is_picture_name(path)) {
      files_.push_back({path.substr(top_length), sorted_from, label});
    } else if (is_other_picture(entry.path())) {
      if (others_++ == 0 || path < first_other_) first_other_ = std::move(path);
    }
    return true;
  });
}

void PictureSource::read_headers(const ReadOptions& options) {
  const bool is_found = options.picture_schema == nullptr;
  const bool is_exact = is_found ? !options.pictures.size : options.exact_size;
  std::optional<ImageSize> expected = is_found ? options.pictures.size : schema_->size;
  std::string expected_of = "those of the training set";
  std::size_t channels = 1;
  Hash hash;
  for (std::uint64_t id = 0; id < files_.size(); ++id) {
    const File& file = files_[id];
    const RegularFile opened(place_of(id));
    const PictureHeader header = read_picture_header(opened);
    channels = std::max(channels, header.channels);
    hash.add(file.name);
    hash.add(opened.size());
    hash.add(static_cast<std::uint64_t>(file.label));
    if (!is_exact) continue;
    if (!expected) {
      expected = header.size;
      expected_of = place_of(id);
    }
    if (header.size == *expected) continue;
    throw DataError(place_of(id) + ": is " + size_text(header.size) + ", but " + expected_of +
                        (is_found ? " is " : " are ") + size_text(*expected) + " (rows x columns)",
                    "bring all to one size: `image_size=" + size_text(*expected) + "`");
  }
  files_hash_ = hash.value();
  if (!is_found) return;
  schema_->size = *expected;
  schema_->channels = options.pictures.channels.value_or(channels);
}

std::vector<std::uint64_t> PictureSource::shape() const {
  const ImageSize& size = schema_->size;
  if (schema_->channels == 1) return {size.rows, size.columns};
  return {size.rows, size.columns, schema_->channels};
}

std::string PictureSource::place_of(std::uint64_t id) const {
  return (folder_ / files_[id].name).string();
}

std::vector<std::string> PictureSource::warnings() const {
  if (others_ == 0) return {};
  return {folder_.string() + ": left out, as neither PNG nor JPEG by name: " +
          counted(others_, "picture") + ", such as " + first_other_};
}

std::string PictureSource::identity() const {
  Hash classes;
  for (const auto& name : schema_->classes) classes.add(name);
  Hash sample;
  const std::uint64_t sampled = std::min<std::uint64_t>(records(), sampled_blocks_);
  for (std::uint64_t i = 0; i < sampled; ++i) {
    const std::uint64_t id = sampled < 2 ? 0 : i * (records() - 1) / (sampled - 1);
    RegularFile(place_of(id)).add_sample(sample, 2);
  }
  return "picture: " + std::to_string(records()) + " records, " + schema_->text() + " = " +
         std::to_string(features()) + " bytes, classes " + to_hex(classes.value()) + ", files " +
         to_hex(files_hash_) + ", sample " + to_hex(sample.value()) + ", " + picture_decoders();
}

void PictureSource::decode(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x) {
  std::atomic<std::size_t> next = 0;
  std::mutex failing;
  std::size_t failed = ids.size();
  std::exception_ptr error;
  const auto work = [&](PictureReader& reader) {
    for (std::size_t i = next++; i < ids.size(); i = next++) {
      try {
        bytes_read_ += reader.read(place_of(ids[i]), schema_->size, schema_->channels,
                                   x.subspan(i * features(), features()));
      } catch (...) {
        // Pictures are taken in order, so that all before this one are being decoded.
        const std::lock_guard lock(failing);
        next = ids.size();
        if (i < failed) error = std::current_exception();
        failed = std::min(failed, i);
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < std::min(readers_.size(), ids.size()); ++t) {
      threads.push_back(
          start_thread("that decodes pictures", [&work, this, t] { work(readers_[t]); }));
    }
    work(readers_[0]);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void PictureSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                         std::span<std::int32_t> labels) {
  check_read(*this, ids, x.size(), labels.size());
  if (bytes_.size() < x.size()) bytes_.resize(x.size());
  const auto bytes = std::span(bytes_).first(x.size());
  read_bytes(ids, bytes, labels);
  scale_.apply(bytes, x);
}

void PictureSource::read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                               std::span<std::int32_t> labels) {
  check_read_bytes(*this, ids, x.size(), labels.size());
  decode(ids, x);
  std::transform(ids.begin(), ids.end(), labels.begin(),
                 [&](std::uint64_t id) { return files_[id].label; });
}

}  // namespace lockstep::data

#include "data/folder.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "data/checks.hpp"
#include "data/concat.hpp"
#include "data/idx.hpp"
#include "lib/base/errors.hpp"

namespace lockstep::data {
namespace {

const char* const get_data =
    "fetch MNIST with scripts/get_mnist.sh FOLDER, or train on the built-in digits with --data "
    "synthetic";

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    throw DataError(folder.string() + ": no such folder", get_data);
  }
  if (!error && !std::filesystem::is_directory(status)) {
    throw DataError(folder.string() + ": is not a folder", "name the folder that holds the files");
  }
  std::set<std::string> names;
  std::filesystem::directory_iterator entry;
  if (!error) entry = std::filesystem::directory_iterator(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.insert(entry->path().filename().string());
  }
  if (error) throw DataError(folder.string() + ": cannot be listed: " + error.message());
  if (names.empty()) throw DataError(folder.string() + ": the folder is empty", get_data);
  return names;
}

bool replace(std::string& text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

/// Names with another format's or a checksum's ending are not IDX, whatever they begin with.
bool has_foreign_ending(std::string_view name) {
  constexpr std::array<std::string_view, 10> endings{
      ".npy", ".npz", ".csv", ".tfrecord", ".md5", ".sha256", ".txt", ".json", ".png", ".part"};
  return std::any_of(endings.begin(), endings.end(),
                     [name](std::string_view ending) { return name.ends_with(ending); });
}

/// The names of one pair, under what they have in common.
struct Names {
  std::string images;
  std::string labels;
};
using Pairs = std::map<std::string, Names>;

/// Enters `name` under its key: without `.gz`, and with `*` for images or labels.
void enter(Pairs& pairs, const std::string& name, const std::set<std::string>& names,
           const std::filesystem::path& folder) {
  std::string key = name;
  if (key.ends_with(".gz")) key.resize(key.size() - 3);
  if (key != name && names.contains(key)) return;
  if (has_foreign_ending(key)) return;
  const bool images = replace(key, "images", "*");
  if (!images && !replace(key, "labels", "*")) return;
  for (const char* magic : {"idx1", "idx2", "idx3", "idx4"}) {
    if (replace(key, magic, "idx")) break;
  }
  std::string& place = images ? pairs[key].images : pairs[key].labels;
  if (!place.empty()) {
    throw DataError(folder.string() + ": both " + place + " and " + name + " could be the " +
                        (images ? "images" : "labels") + " of one pair",
                    "remove one of them");
  }
  place = name;
}

/// "train-00000-of-00005..." -> 5; 0 for a name without such a count.
std::uint64_t stated_files(std::string_view key) {
  constexpr std::string_view digits = "0123456789";
  for (auto at = key.find("-of-"); at != key.npos; at = key.find("-of-", at + 1)) {
    const std::string_view count = key.substr(at + 4).substr(0, 9);
    const std::size_t length = std::min(count.find_first_not_of(digits), count.size());
    const bool numbered = at > 0 && digits.find(key[at - 1]) != digits.npos;
    if (numbered && length > 0) return std::stoull(std::string(count.substr(0, length)));
  }
  return 0;
}

void check_complete(const Pairs& pairs, const std::filesystem::path& folder) {
  std::map<std::uint64_t, std::uint64_t> found;
  for (const auto& [key, names] : pairs) ++found[stated_files(key)];
  for (const auto& [stated, count] : found) {
    if (stated == 0 || stated == count) continue;
    throw DataError(folder.string() + ": the names say that " + std::to_string(stated) +
                        " pairs belong together, but " + std::to_string(count) +
                        " are here: " + pairs.begin()->second.images + " ...",
                    "bring the missing files, or remove what is left of another split");
  }
}

std::vector<IdxPair> paths_of(const Pairs& pairs, const std::filesystem::path& folder) {
  std::vector<IdxPair> paths;
  for (const auto& [key, names] : pairs) {
    const bool no_labels = names.labels.empty();
    if (no_labels || names.images.empty()) {
      throw DataError(folder.string() + ": " + (no_labels ? names.images : names.labels) +
                          " has no " + (no_labels ? "labels" : "images") + " beside it (" + key +
                          ", plain or .gz)",
                      "bring the missing file, or remove this one");
    }
    paths.push_back({folder / names.images, folder / names.labels});
  }
  check_complete(pairs, folder);
  return paths;
}

void check_found(const std::vector<IdxPair>& pairs, const std::string& what,
                 const std::filesystem::path& folder) {
  if (!pairs.empty()) return;
  throw DataError(folder.string() + ": no " + what + " with *images* and *labels* in their names",
                  get_data);
}

}  // namespace

FolderFiles find_pairs(const std::filesystem::path& folder) {
  const auto names = names_in(folder);
  Pairs train;
  Pairs test;
  for (const std::string& name : names) {
    if (name.starts_with("train")) enter(train, name, names, folder);
    if (name.starts_with("test") || name.starts_with("t10k")) enter(test, name, names, folder);
  }
  FolderFiles files{paths_of(train, folder), paths_of(test, folder)};
  check_found(files.train, "training files (train*)", folder);
  check_found(files.test, "test files (test* or t10k*)", folder);
  return files;
}

std::unique_ptr<Source> open_pairs(const std::vector<IdxPair>& pairs, const ReadOptions& options) {
  ReadOptions left = options;
  checked_limit(options);
  std::vector<std::unique_ptr<Source>> parts;
  std::string shape;
  for (const IdxPair& pair : pairs) {
    auto part = std::make_unique<IdxSource>(pair.images, pair.labels, left);
    if (parts.empty()) shape = part->shape();
    if (part->shape() != shape) {
      throw DataError(place(pair.images, 8) + ": images are " + part->shape() + ", but those of " +
                          pairs.front().images.string() + " are " + shape,
                      "give all files of one part images of one size");
    }
    const std::uint64_t records = part->records();
    parts.push_back(std::move(part));
    if (!left.limit) continue;
    *left.limit -= records;
    if (*left.limit == 0) break;
  }
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<ConcatSource>(std::move(parts));
}

DataSet open_folder(const std::filesystem::path& folder, const DataSetOptions& options) {
  const FolderFiles files = find_pairs(folder);
  DataSet set;
  set.train = open_pairs(files.train, {options.train_limit, options.divide_by, options.classes});
  set.test = open_pairs(files.test, {options.test_limit, options.divide_by, options.classes});
  if (set.train->features() != set.test->features()) {
    throw DataError(place(files.test.front().images, 8) + ": test records have " +
                        std::to_string(set.test->features()) + " features, but those of " +
                        files.train.front().images.string() + " have " +
                        std::to_string(set.train->features()),
                    "use a training and a test set that belong together");
  }
  return set;
}

}  // namespace lockstep::data

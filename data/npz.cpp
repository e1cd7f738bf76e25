#include "lockstep/data/npz.hpp"

#include <zip.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

const char* const save_arrays =
    "save them so: numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)";

struct Close {
  void operator()(zip_t* archive) const noexcept { zip_discard(archive); }
  void operator()(zip_file_t* file) const noexcept { zip_fclose(file); }
};
using Archive = std::unique_ptr<zip_t, Close>;

Archive open_archive(const std::filesystem::path& path) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (archive != nullptr) return archive;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  throw DataError(path.string() + ": cannot be opened as a ZIP archive: " + text, fetch_again);
}

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Removes `part` and an underscore from the begin or the end of `name`; false if neither has it.
bool remove_part(std::string& name, const std::string& part) {
  if (name.starts_with(part + "_")) {
    name.erase(0, part.size() + 1);
  } else if (name.ends_with("_" + part)) {
    name.resize(name.size() - part.size() - 1);
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::filesystem::path archive_of(const std::filesystem::path& path) {
  return is_npz_file(path.parent_path()) ? path.parent_path() : path;
}

bool is_npz_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.extension() == ".npz" && std::filesystem::is_regular_file(path, ignored);
}

struct ZipReader::State {
  std::filesystem::path path;
  Archive archive;
  std::unique_ptr<zip_file_t, Close> file;  // closed before the archive
};

ZipReader::ZipReader(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->archive = open_archive(path.parent_path());
  state_->file.reset(zip_fopen(state_->archive.get(), path.filename().c_str(), 0));
  if (state_->file != nullptr) return;
  throw DataError(path.string() + ": cannot be read: " + zip_strerror(state_->archive.get()),
                  fetch_again);
}

ZipReader::~ZipReader() = default;

std::size_t ZipReader::read_some(std::span<std::uint8_t> bytes) {
  const auto got = zip_fread(state_->file.get(), bytes.data(), bytes.size());
  if (got >= 0) return static_cast<std::size_t>(got);
  fail(std::string("cannot be decompressed: ") + zip_file_strerror(state_->file.get()));
}

void ZipReader::fail(const std::string& problem) const {
  throw DataError(state_->path.string() + ": " + problem, fetch_again);
}

NpzArrays find_npz_arrays(const std::filesystem::path& archive) {
  constexpr std::array<std::string_view, 4> images{"x", "images", "data", "features"};
  constexpr std::array<std::string_view, 4> labels{"y", "labels", "target", "targets"};
  const Archive opened = open_archive(archive);
  std::map<std::string, RecordFiles> parts;
  std::vector<std::string> names;
  for (zip_int64_t i = 0; i < zip_get_num_entries(opened.get(), 0); ++i) {
    const char* const text = zip_get_name(opened.get(), static_cast<zip_uint64_t>(i), 0);
    const std::string file = text == nullptr ? "" : text;
    if (!file.ends_with(".npy")) continue;
    std::string name = file.substr(0, file.size() - 4);
    names.push_back(name);
    name = lower_case(name);
    const std::string part = remove_part(name, "train")  ? "train"
                             : remove_part(name, "test") ? "test"
                                                         : "";
    if (!is_one_of(name, images) && !is_one_of(name, labels)) continue;
    RecordFiles& pair = parts[part];
    auto& place = is_one_of(name, images) ? pair.records : pair.labels;
    if (!place.empty()) {
      throw DataError(archive.string() + ": both " + place.filename().string() + " and " + file +
                          " could be the " + (is_one_of(name, images) ? "images" : "labels"),
                      save_arrays);
    }
    place = archive / file;
  }
  NpzArrays arrays;
  for (const auto& [part, pair] : parts) {
    const bool is_half = pair.records.empty() || pair.labels.empty();
    if (is_half && part.empty() && parts.size() > 1) continue;  // other arrays
    if (is_half) {
      const bool no_labels = pair.labels.empty();
      throw DataError((no_labels ? pair.records : pair.labels).string() + ": has no " +
                          (no_labels ? "labels" : "images") + " beside it",
                      save_arrays);
    }
    (part == "train" ? arrays.train : part == "test" ? arrays.test : arrays.unnamed) = pair;
  }
  if (parts.empty()) {
    throw DataError(archive.string() + ": no arrays of images and labels, but " + listed(names),
                    save_arrays);
  }
  return arrays;
}

}  // namespace lockstep::data

// Pictures with labels: a folder with a folder for each class, whose name is the class, or a table.
//
//   FOLDER/train/cats/1.png      or, without train and test,     FOLDER/cats/1.png
//   FOLDER/train/dogs/2.jpg                                      FOLDER/dogs/2.jpg
//   FOLDER/test/cats/3.png
//
// Pictures are PNG and JPEG files (picture.hpp), in folders of any depth below that of the class.
// Classes are in the byte order of their names. Records are in the order of the pictures' names
// below the class folder, pictures of one name in the order of classes. Names that begin with a
// dot, and lost+found, are ignored, and so are other files.
//
// A table is CSV (table.hpp) with a column of paths, which are relative to the folder of the table,
// and a column of labels:
//
//   file,label
//   photos/1.png,cat
//
// The column of paths is the first in which one of the first ten records has the name of a picture,
// and which is neither the column of labels nor ignored; other columns are not used. Records are in
// the order of the lines; labels are words or whole numbers.
//
// Headers of pictures are read when the source is opened, pixels on request. Memory: the names of
// the files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/picture.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// What pictures are as features and classes; saved with a network that was trained on them.
struct PictureSchema {
  ImageSize size;
  std::size_t channels = 1;          ///< 1: gray, 3: RGB
  std::vector<std::string> classes;  ///< the name of each class
  /// Of a table: the names of its columns of paths and labels; empty of a folder.
  std::string path_column = {};
  std::string label_column = {};
  bool has_header = true;  ///< of a table: see TableOptions

  std::size_t features() const noexcept {
    return static_cast<std::size_t>(size.rows * size.columns) * channels;
  }
  /// "28x28 gray", "64x48 RGB, paths in 'file', labels in 'class'": rows and columns.
  std::string text() const;
  bool operator==(const PictureSchema&) const = default;
};

/// "28" or "28x32", rows and columns from 1 to 4096; nullopt for "auto".
/// Errors   throws ConfigError with the reason only, for anything else.
std::optional<ImageSize> parse_image_size(const std::string& text);

/// The folders of training and test pictures in `path`, which is a folder: its folders `train` and
/// `test` if one of them has folders in it, else the first is `path` itself, and the second is
/// empty. Nullopt if there is no picture in them. Local.
std::optional<std::pair<std::filesystem::path, std::filesystem::path>> find_picture_folders(
    const std::filesystem::path& path);

/// True if one of the first ten records of a table has the name of a picture, in a column that is
/// neither ignored nor that of labels, or if what should be the names of columns has; false if it
/// cannot be read. Local.
bool names_pictures(const std::filesystem::path& table, const TableOptions& options);

/// The pictures of a folder of class folders, or of a table; or, if labels are not needed, all
/// pictures of a folder, those of a table without labels, or one picture, with label 0. Local; not
/// thread-safe, but decodes with several threads.
class PictureSource final : public Source {
 public:
  /// Throws DataError with the file: what read_picture_header() throws; pictures of different sizes
  /// where none is given; a class folder of the training set without pictures, a class that is not
  /// in the given schema, or a name that is not UTF-8; with the line of a table, a path without a
  /// file, and what find_classes() throws. ConfigError for a limit below 1.
  PictureSource(std::filesystem::path path, const ReadOptions& options);

  std::uint64_t records() const noexcept override { return files_.size(); }
  std::size_t features() const noexcept override { return schema_->features(); }
  float divisor() const noexcept override { return scale_.divisor(); }
  Element element() const noexcept override { return Element::byte; }
  std::vector<std::uint64_t> shape() const override;
  std::uint64_t classes() const noexcept override { return schema_->classes.size(); }
  std::optional<std::int32_t> known_label(std::uint64_t id) const noexcept override {
    return files_[id].label;
  }
  /// The path of the file.
  std::string place_of(std::uint64_t id) const override;
  std::shared_ptr<const PictureSchema> pictures() const override { return schema_; }
  std::vector<std::string> warnings() const override;
  std::uint64_t bytes_read() const noexcept override { return bytes_read_; }
  std::string identity() const override;
  void read(std::span<const std::uint64_t> ids, std::span<float> x,
            std::span<std::int32_t> labels) override;
  void read_bytes(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x,
                  std::span<std::int32_t> labels) override;

 private:
  struct File {
    std::string name;         // below the folder
    std::size_t sorted_from;  // the position in `name` after the class
    std::int32_t label;
  };

  void list_classes(bool are_given);
  void list_rows(const ReadOptions& options);
  void list_files(const std::filesystem::path& below, std::int32_t label);
  void read_headers(const ReadOptions& options);
  /// Decodes the pictures `ids`; the error is that of the first in `ids` that has one.
  void decode(std::span<const std::uint64_t> ids, std::span<std::uint8_t> x);

  std::filesystem::path folder_;
  ByteScale scale_;
  std::uint64_t sampled_blocks_;
  std::shared_ptr<PictureSchema> schema_;
  std::vector<File> files_;
  std::uint64_t files_hash_ = 0;  // of names, sizes and labels
  std::uint64_t others_ = 0;      // pictures of other formats, which are ignored
  std::string first_other_;
  std::vector<PictureReader> readers_;  // one a thread
  std::vector<std::uint8_t> bytes_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace lockstep::data

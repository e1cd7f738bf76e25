// Pictures: PNG and JPEG files as bytes of one size.
//
// Decoding gives 8 bits a channel, 1 channel (gray) or 3 (RGB), without colour management:
//
//   PNG    by libpng: palettes and 1, 2 or 4 bits are expanded, 16 bits are rounded to 8 (the
//          nearest v/257), interlacing is undone; transparent pixels are composited on white,
//          (c a + 255 (255 - a)) / 255, rounded
//   JPEG   by libjpeg-turbo with its slow integer DCT; CMYK is refused, and the EXIF orientation
//          is ignored
//
// To another size, the largest centred rectangle with the new proportions is cut out, and each of
// its axes is scaled by itself: one that gets shorter by the mean of the pixels that a new pixel
// covers, weighted by the part that is covered; one that gets longer by linear interpolation
// between the centres of pixels. Weights are integers, and a value is rounded once, from its exact
// sum: the same bits on every machine. Gray becomes RGB by repetition; RGB becomes gray as (19595 R
// + 38470 G + 7471 B + 32768) / 65536.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/file.hpp"
#include "lockstep/data/stored_source.hpp"

namespace lockstep::data {

/// The header of a picture.
struct PictureHeader {
  ImageSize size;
  std::size_t channels = 1;  ///< 1: gray, 3: RGB; without transparency
};

/// A picture has at most so many pixels.
inline constexpr std::uint64_t max_picture_pixels = 100'000'000;

/// True for the first bytes of a PNG file, and of a JPEG file.
bool begins_png(std::span<const std::uint8_t> bytes) noexcept;
bool begins_jpeg(std::span<const std::uint8_t> bytes) noexcept;

/// True for the names of PNG and JPEG files: .png, .jpg and .jpeg in either case.
bool is_picture_name(std::string_view name);

/// Reads the header of a PNG or JPEG file, told apart by their first bytes, not by the name.
///
/// Errors   throws DataError with the file: neither PNG nor JPEG, a damaged header, CMYK, more than
///          max_picture_pixels, or more pixels than so short a file can hold.
/// Ranks    local.
PictureHeader read_picture_header(const RegularFile& file);

/// "libpng 1.6.39, libjpeg-turbo 2.1.5": on which the bits of decoded pictures depend.
std::string picture_decoders();

/// Decodes pictures, and keeps its buffers. Local; not thread-safe.
class PictureReader {
 public:
  /// Writes the pixels of a file to `x`, [size.rows, size.columns, channels].
  ///
  /// Returns  the bytes of the file.
  /// Errors   throws DataError with the file if it is damaged; what read_picture_header() throws.
  std::uint64_t read(const std::filesystem::path& path, const ImageSize& size, std::size_t channels,
                     std::span<std::uint8_t> x);

 private:
  std::vector<std::uint8_t> file_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> resized_;
};

/// Crops and scales `pixels`, [from.rows, from.columns, channels], as said above, and writes `x`,
/// [to.rows, to.columns, channels]. Sides are at least 1 and below 2^17. Local.
void resize(std::span<const std::uint8_t> pixels, const ImageSize& from, std::size_t channels,
            const ImageSize& to, std::span<std::uint8_t> x);

}  // namespace lockstep::data

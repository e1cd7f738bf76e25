#include "lockstep/data/picture.hpp"

#include <jpeglib.h>
// After jpeglib.h, which needs what <cstdio> declares.
#include <jerror.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::data {
namespace {

bool begins_with(std::span<const std::uint8_t> bytes,
                 std::span<const std::uint8_t> magic) noexcept {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

}  // namespace

bool begins_png(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::array<std::uint8_t, 8> signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  return begins_with(bytes, signature);
}

bool begins_jpeg(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::array<std::uint8_t, 3> start_and_marker{0xFF, 0xD8, 0xFF};
  return begins_with(bytes, start_and_marker);
}

namespace {

constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t max_side = 65'535;  // that of JPEG
const char* const replace_it = "replace the file, or remove it: it is damaged or incomplete";

std::string in_words(const ImageSize& size) {
  return std::to_string(size.columns) + " columns and " + std::to_string(size.rows) + " rows";
}

void check_size(const std::filesystem::path& path, const ImageSize& size) {
  if (size.rows == 0 || size.columns == 0) {
    throw DataError(path.string() + ": the picture has " + in_words(size), replace_it);
  }
  if (size.rows <= max_side && size.columns <= max_side &&
      size.rows * size.columns <= max_picture_pixels) {
    return;
  }
  throw DataError(path.string() + ": the picture has " + in_words(size) + ", more than " +
                      grouped(max_picture_pixels) + " pixels or " + grouped(max_side) + " a side",
                  "make it smaller, or remove it");
}

// Headers.

/// Throws DataError for more pixels than the file can hold.
void check_length(const RegularFile& file, const ImageSize& size, std::uint64_t max_pixels) {
  if (size.rows * size.columns <= max_pixels) return;
  throw DataError(file.path().string() + ": " + in_words(size) + " cannot come from a file of " +
                      grouped(file.size()) + " bytes",
                  replace_it);
}

/// Signature, and the chunk IHDR: length, name, 13 bytes, CRC.
PictureHeader read_png_header(const RegularFile& file) {
  std::array<std::uint8_t, 33> bytes{};
  file.read_at(0, bytes);
  const auto all = std::span(bytes);
  const auto crc = crc32(0, bytes.data() + 12, 17);
  if (std::memcmp(bytes.data() + 8, "\0\0\0\rIHDR", 8) != 0 ||
      big_endian(all.subspan<29, 4>()) != crc) {
    throw DataError(file.path().string() + ": the header of the PNG file is damaged", replace_it);
  }
  const bool is_rgb = (bytes[25] & 2U) != 0;
  const bool is_palette = (bytes[25] & 1U) != 0;
  const bool has_alpha = (bytes[25] & 4U) != 0;
  const PictureHeader header = {
      {big_endian(all.subspan<20, 4>()), big_endian(all.subspan<16, 4>())},
      is_rgb ? std::size_t{3} : std::size_t{1}};
  check_size(file.path(), header.size);
  const std::uint64_t values = (is_rgb && !is_palette ? 3U : 1U) + (has_alpha ? 1U : 0U);
  const std::uint64_t bits = values * std::max<std::uint64_t>(bytes[24], 1);  // of a pixel
  check_length(file, header.size, 8 * max_inflated(file.size()) / bits);
  return header;
}

[[noreturn]] void refuse_channels(const RegularFile& file, unsigned channels) {
  throw DataError(file.path().string() + ": is a JPEG of " + std::to_string(channels) +
                      " channels" + (channels == 4 ? " (CMYK)" : ""),
                  "convert it to RGB; with ImageMagick: `mogrify -colorspace sRGB " +
                      file.path().string() + "`");
}

/// Searches the segments of a JPEG file for the frame header, SOF.
PictureHeader read_jpeg_header(const RegularFile& file) {
  constexpr int max_segments = 10'000;
  std::uint64_t at = 2;
  for (int segment = 0; segment < max_segments; ++segment) {
    std::array<std::uint8_t, 4> start{};  // FF, marker, length
    file.read_at(at, start);
    const std::uint8_t marker = start[1];
    if (start[0] != 0xFF || marker == 0xD9 || marker == 0xDA) break;
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    const bool is_frame =
        marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (!is_frame) {
      at += 2 + (std::uint64_t{start[2]} << 8 | start[3]);
      continue;
    }
    std::array<std::uint8_t, 6> frame{};  // precision, rows, columns, channels
    file.read_at(at + 4, frame);
    const PictureHeader header = {
        {std::uint64_t{frame[1]} << 8 | frame[2], std::uint64_t{frame[3]} << 8 | frame[4]},
        frame[5]};
    if (header.channels != 1 && header.channels != 3) refuse_channels(file, frame[5]);
    check_size(file.path(), header.size);
    // Huffman codes: at least one bit a block of 64 pixels.
    const bool is_huffman = marker < 0xC9;
    if (is_huffman) check_length(file, header.size, 512 * file.size());
    return header;
  }
  throw DataError(place(file.path(), at) + ": the header of the JPEG file is damaged", replace_it);
}

enum class Kind { png, jpeg };

Kind kind_of(const RegularFile& file) {
  if (file.size() == 0) throw DataError(file.path().string() + ": is empty", replace_it);
  std::array<std::uint8_t, 8> start{};
  const auto there = std::min<std::uint64_t>(start.size(), file.size());
  file.read_at(0, std::span(start).first(static_cast<std::size_t>(there)));
  if (begins_png(start)) return Kind::png;
  if (begins_jpeg(start)) return Kind::jpeg;
  const char* text = reinterpret_cast<const char*>(start.data());
  const std::string_view begin(text, start.size());
  const char* what = begin.starts_with("GIF8")   ? " (GIF)"
                     : begin.starts_with("BM")   ? " (BMP)"
                     : begin.starts_with("RIFF") ? " (WebP)"
                                                 : "";
  throw DataError(file.path().string() + ": is neither PNG nor JPEG" + what + ", despite its name",
                  "convert it to PNG, or remove it");
}

// Decoders. The libraries report errors by longjmp, so functions that call setjmp have no objects
// with destructors.

class PngDecoder {
 public:
  explicit PngDecoder(std::span<const std::uint8_t> file) : left_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ != nullptr) return;
    png_destroy_read_struct(&png_, nullptr, nullptr);
    throw std::bad_alloc();
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  /// Reads up to the pixels; false if that fails.
  bool start() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT: libpng's way
    png_set_user_limits(png_, max_side, max_side);
    png_set_read_fn(png_, this, on_read);
    png_read_info(png_, info_);
    png_set_expand(png_);
    png_set_scale_16(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  /// Reads the pixels, [rows, columns, channels()], and the rest of the file.
  bool finish(std::uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT: libpng's way
    const std::size_t row_bytes = png_get_rowbytes(png_, info_);
    for (int pass = 0; pass < passes_; ++pass) {
      for (std::size_t row = 0; row < size().rows; ++row) {
        png_read_row(png_, pixels + row * row_bytes, nullptr);
      }
    }
    png_read_end(png_, nullptr);
    return true;
  }

  ImageSize size() const noexcept {
    return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)};
  }
  std::size_t channels() const noexcept { return png_get_channels(png_, info_); }
  const char* error() const noexcept { return error_; }

 private:
  static void on_read(png_structp png, png_bytep bytes, std::size_t count) {
    auto& left = static_cast<PngDecoder*>(png_get_io_ptr(png))->left_;
    if (count > left.size()) png_error(png, "the file ends too early");
    std::memcpy(bytes, left.data(), count);
    left = left.subspan(count);
  }
  [[noreturn]] static void on_error(png_structp png, png_const_charp text) {
    auto& self = *static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self.error_, text, sizeof self.error_ - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::span<const std::uint8_t> left_;
  int passes_ = 1;
  char error_[200] = {};
};

class JpegDecoder {
 public:
  explicit JpegDecoder(std::span<const std::uint8_t> file) : file_(file) {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.emit_message = on_message;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads up to the pixels; false if that fails.
  bool start() {
    if (setjmp(errors_.jump) != 0) return false;  // NOLINT: libjpeg's way
    jpeg_create_decompress(&jpeg_);
    jpeg_mem_src(&jpeg_, file_.data(), file_.size());
    jpeg_read_header(&jpeg_, TRUE);
    jpeg_.out_color_space = jpeg_.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&jpeg_);
    return true;
  }

  /// Reads the pixels, [rows, columns, channels()], and the rest of the file.
  bool finish(std::uint8_t* pixels) {
    if (setjmp(errors_.jump) != 0) return false;  // NOLINT: libjpeg's way
    const std::size_t row_bytes = jpeg_.output_width * channels();
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = pixels + jpeg_.output_scanline * row_bytes;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  ImageSize size() const noexcept { return {jpeg_.output_height, jpeg_.output_width}; }
  std::size_t channels() const noexcept {
    return static_cast<std::size_t>(jpeg_.output_components);
  }
  const char* error() const noexcept { return errors_.text; }

 private:
  struct Errors {
    jpeg_error_mgr manager;
    std::jmp_buf jump;
    char text[JMSG_LENGTH_MAX];
  };

  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    auto& errors = *reinterpret_cast<Errors*>(jpeg->err);  // its first member
    errors.manager.format_message(jpeg, errors.text);
    std::longjmp(errors.jump, 1);  // NOLINT: libjpeg's way
  }
  /// A warning is damaged data, which the library would fill in, but for three that are harmless.
  static void on_message(j_common_ptr jpeg, int level) {
    const int code = jpeg->err->msg_code;
    const bool is_harmless =
        code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM;
    if (level < 0 && !is_harmless) on_error(jpeg);
  }

  std::span<const std::uint8_t> file_;
  jpeg_decompress_struct jpeg_{};
  Errors errors_{};
};

struct Decoded {
  ImageSize size;
  std::size_t channels = 1;  ///< 1 to 4: gray or RGB, with transparency
};

template <class Decoder>
Decoded decode(const std::filesystem::path& path, const char* kind,
               std::span<const std::uint8_t> file, std::vector<std::uint8_t>& pixels) {
  Decoder decoder(file);
  const auto fail = [&] {
    throw DataError(path.string() + ": cannot be decoded as " + kind + ": " + decoder.error(),
                    replace_it);
  };
  if (!decoder.start()) fail();
  const Decoded decoded = {decoder.size(), decoder.channels()};
  check_size(path, decoded.size);  // the file may have changed since its header was read
  pixels.resize(static_cast<std::size_t>(decoded.size.rows * decoded.size.columns) *
                decoded.channels);
  if (!decoder.finish(pixels.data())) fail();
  return decoded;
}

/// Composites the pixels, whose last channel is opacity, on white, and drops that channel.
void composite(std::vector<std::uint8_t>& pixels, std::size_t channels) {
  const std::size_t count = pixels.size() / channels;
  std::size_t out = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned alpha = pixels[i * channels + channels - 1];
    for (std::size_t c = 0; c + 1 < channels; ++c) {
      const unsigned value = pixels[i * channels + c];
      pixels[out++] = static_cast<std::uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
  pixels.resize(out);
}

/// Writes gray as RGB, or RGB as gray.
void convert_channels(std::span<const std::uint8_t> from, std::size_t channels,
                      std::span<std::uint8_t> x) {
  const std::size_t count = from.size() / channels;
  for (std::size_t i = 0; i < count; ++i) {
    if (channels == 1) {
      x[3 * i] = x[3 * i + 1] = x[3 * i + 2] = from[i];
    } else {
      const std::uint32_t luma =
          19595U * from[3 * i] + 38470U * from[3 * i + 1] + 7471U * from[3 * i + 2] + 32768U;
      x[i] = static_cast<std::uint8_t>(luma >> 16);
    }
  }
}

// Scaling.

/// How the pixels of one axis come from the pixels [begin, begin + length) of the original: pixel i
/// is the sum of weights[first_weight[i] + k] * original[first[i] + k], divided by `total`.
struct Axis {
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> first_weight;  // one more than pixels
  std::vector<std::uint32_t> weights;
  std::uint64_t total = 1;

  std::span<const std::uint32_t> weights_of(std::size_t i) const noexcept {
    return std::span(weights).subspan(first_weight[i], first_weight[i + 1] - first_weight[i]);
  }
};

/// A new pixel covers length / pixels originals. In units of 1 / pixels of an original, pixel i is
/// [i length, (i + 1) length), and original j is [j pixels, (j + 1) pixels).
void cover(Axis& axis, std::uint64_t length, std::uint64_t pixels) {
  axis.total = length;
  for (std::uint64_t i = 0; i < pixels; ++i) {
    const std::uint64_t begin = i * length;
    const std::uint64_t end = begin + length;
    axis.first.push_back(static_cast<std::uint32_t>(begin / pixels));
    for (std::uint64_t j = begin / pixels; j * pixels < end; ++j) {
      axis.weights.push_back(static_cast<std::uint32_t>(std::min(end, (j + 1) * pixels) -
                                                        std::max(begin, j * pixels)));
    }
    axis.first_weight.push_back(static_cast<std::uint32_t>(axis.weights.size()));
  }
}

/// In units of 1 / (2 pixels) of an original, the centre of pixel i lies (2 i + 1) length - pixels
/// after the centre of original 0.
void interpolate(Axis& axis, std::uint64_t length, std::uint64_t pixels) {
  const std::uint64_t unit = 2 * pixels;
  axis.total = unit;
  for (std::uint64_t i = 0; i < pixels; ++i) {
    const std::uint64_t place = std::max((2 * i + 1) * length, pixels) - pixels;
    const std::uint64_t j = std::min(place / unit, length - 1);
    const std::uint64_t past = j + 1 < length ? place - j * unit : 0;
    axis.first.push_back(static_cast<std::uint32_t>(j));
    axis.weights.push_back(static_cast<std::uint32_t>(unit - past));
    if (past > 0) axis.weights.push_back(static_cast<std::uint32_t>(past));
    axis.first_weight.push_back(static_cast<std::uint32_t>(axis.weights.size()));
  }
}

Axis axis_of(std::uint64_t begin, std::uint64_t length, std::uint64_t pixels) {
  Axis axis;
  axis.first_weight.push_back(0);
  if (length >= pixels) {
    cover(axis, length, pixels);
  } else {
    interpolate(axis, length, pixels);
  }
  for (auto& first : axis.first) first += static_cast<std::uint32_t>(begin);
  return axis;
}

/// One row of the result from the weighted sum of original rows.
template <std::size_t Channels>
void scale_row(const Axis& axis, std::span<const std::uint32_t> sums, std::uint64_t total,
               std::uint8_t* x) {
  const std::size_t pixels = axis.first.size();
  const std::uint32_t* weight = axis.weights.data();
  for (std::size_t i = 0; i < pixels; ++i) {
    std::array<std::uint64_t, Channels> value;
    value.fill(total / 2);
    const std::uint32_t* in = sums.data() + axis.first[i] * Channels;
    const std::size_t count = axis.first_weight[i + 1] - axis.first_weight[i];
    for (std::size_t k = 0; k < count; ++k, ++weight) {
      for (std::size_t c = 0; c < Channels; ++c) value[c] += std::uint64_t{*weight} * *in++;
    }
    // Exact: values are below 2^42 and total is below 2^34, so that a quotient below a whole number
    // is farther from it than double rounds.
    for (std::size_t c = 0; c < Channels; ++c) {
      *x++ = static_cast<std::uint8_t>(static_cast<double>(value[c]) / static_cast<double>(total));
    }
  }
}

/// The centred part of `length` pixels.
std::uint64_t begin_of(std::uint64_t part, std::uint64_t length) { return (length - part) / 2; }

/// a * b / c, rounded; at least 1.
std::uint64_t scaled(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return std::max<std::uint64_t>(1, (a * b + c / 2) / c);
}

}  // namespace

void resize(std::span<const std::uint8_t> pixels, const ImageSize& from, std::size_t channels,
            const ImageSize& to, std::span<std::uint8_t> x) {
  ImageSize part = from;
  if (from.columns * to.rows > to.columns * from.rows) {
    part.columns = scaled(from.rows, to.columns, to.rows);
  } else {
    part.rows = scaled(from.columns, to.rows, to.columns);
  }
  const Axis rows = axis_of(begin_of(part.rows, from.rows), part.rows, to.rows);
  const Axis columns = axis_of(begin_of(part.columns, from.columns), part.columns, to.columns);
  const std::size_t row_bytes = static_cast<std::size_t>(from.columns) * channels;
  std::vector<std::uint32_t> sums(row_bytes);
  for (std::size_t i = 0; i < to.rows; ++i) {
    std::fill(sums.begin(), sums.end(), 0U);
    const std::uint8_t* in = pixels.data() + rows.first[i] * row_bytes;
    for (const std::uint32_t weight : rows.weights_of(i)) {
      for (std::size_t k = 0; k < row_bytes; ++k) sums[k] += weight * in[k];
      in += row_bytes;
    }
    std::uint8_t* out = x.data() + i * static_cast<std::size_t>(to.columns) * channels;
    const std::uint64_t total = rows.total * columns.total;
    channels == 1 ? scale_row<1>(columns, sums, total, out)
                  : scale_row<3>(columns, sums, total, out);
  }
}

bool is_picture_name(std::string_view name) {
  const std::string lower = lower_case(name);
  return lower.ends_with(".png") || lower.ends_with(".jpg") || lower.ends_with(".jpeg");
}

PictureHeader read_picture_header(const RegularFile& file) {
  if (file.size() > max_file_bytes) {
    throw DataError(file.path().string() + ": has " + grouped(file.size()) + " bytes, more than " +
                        grouped(max_file_bytes),
                    "make the picture smaller, or remove it");
  }
  return kind_of(file) == Kind::png ? read_png_header(file) : read_jpeg_header(file);
}

std::string picture_decoders() {
#define LOCKSTEP_TEXT(x) #x
#define LOCKSTEP_VALUE(x) LOCKSTEP_TEXT(x)
  return std::string("libpng ") + png_get_libpng_ver(nullptr) + ", libjpeg-turbo " +
         LOCKSTEP_VALUE(LIBJPEG_TURBO_VERSION);
#undef LOCKSTEP_VALUE
#undef LOCKSTEP_TEXT
}

std::uint64_t PictureReader::read(const std::filesystem::path& path, const ImageSize& size,
                                  std::size_t channels, std::span<std::uint8_t> x) {
  const RegularFile file(path);
  read_picture_header(file);
  file_.resize(static_cast<std::size_t>(file.size()));
  file.read_at(0, file_);
  Decoded decoded = begins_png(file_) ? decode<PngDecoder>(path, "PNG", file_, pixels_)
                                      : decode<JpegDecoder>(path, "JPEG", file_, pixels_);
  if (decoded.channels % 2 == 0) composite(pixels_, decoded.channels--);
  std::span<const std::uint8_t> result = pixels_;
  if (decoded.size != size) {
    resized_.resize(static_cast<std::size_t>(size.rows * size.columns) * decoded.channels);
    const bool is_last = decoded.channels == channels;
    resize(pixels_, decoded.size, decoded.channels, size, is_last ? x : std::span(resized_));
    if (is_last) return file.size();
    result = resized_;
  }
  if (decoded.channels == channels) {
    std::copy(result.begin(), result.end(), x.begin());
  } else {
    convert_channels(result, decoded.channels, x);
  }
  return file.size();
}

}  // namespace lockstep::data

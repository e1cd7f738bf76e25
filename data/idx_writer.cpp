#include "data/idx_writer.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "data/file.hpp"

namespace lockstep::data {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

void append(std::vector<std::uint8_t>& bytes, std::uint64_t value) {
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

}  // namespace

void write_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
               const IdxShape& shape, const IdxRecord& record) {
  if (shape.records == 0 || shape.records > std::numeric_limits<std::uint32_t>::max() ||
      shape.rows == 0 || shape.columns == 0) {
    throw std::invalid_argument("write_idx: a shape that IDX cannot hold");
  }
  NewFile images_file(images);
  NewFile labels_file(labels);
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> classes;
  for (const std::uint64_t number : {std::uint64_t{0x803}, shape.records, std::uint64_t{shape.rows},
                                     std::uint64_t{shape.columns}}) {
    append(pixels, number);
  }
  for (const std::uint64_t number : {std::uint64_t{0x801}, shape.records}) append(classes, number);

  const std::size_t image_bytes = std::size_t{shape.rows} * shape.columns;
  for (std::uint64_t index = 0; index < shape.records; ++index) {
    const std::size_t used = pixels.size();
    pixels.resize(used + image_bytes);
    classes.push_back(record(index, std::span(pixels).subspan(used)));
    if (pixels.size() >= chunk_bytes || index + 1 == shape.records) {
      images_file.write(pixels);
      labels_file.write(classes);
      pixels.clear();
      classes.clear();
    }
  }
  images_file.finish();
  labels_file.finish();
  images_file.publish();
  labels_file.publish();
}

}  // namespace lockstep::data

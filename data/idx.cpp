#include "data/idx.hpp"

#include <algorithm>
#include <stdexcept>

#include "data/checks.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/hash.hpp"

namespace lockstep::data {
namespace {

/// Consecutive records that one read of the disk may fetch.
constexpr std::uint64_t most_bytes_at_once = std::uint64_t{1} << 20;

/// The file's name as every rank sees it, wherever it stands and however it is compressed.
std::string bare_name(const std::filesystem::path& path) {
  return (path.extension() == ".gz" ? path.stem() : path.filename()).string();
}

}  // namespace

IdxSource::IdxSource(const std::filesystem::path& images, const std::filesystem::path& labels,
                     const ReadOptions& options)
    : images_(images, IdxKind::images, checked_limit(options)),
      labels_name_(bare_name(labels)),
      scale_(options.divide_by),
      features_(static_cast<std::size_t>(images_.header().record_bytes)) {
  const IdxFile file(labels, IdxKind::labels, options.limit);
  if (file.header().records != images_.header().records) {
    throw DataError(place(labels, 4) + ": holds " + std::to_string(file.header().records) +
                        " labels, but " + images.string() + " holds " +
                        std::to_string(images_.header().records) + " images",
                    "use two files that were published together");
  }
  load_labels(file, options.classes);
}

void IdxSource::load_labels(const IdxFile& file, int classes) {
  const auto bytes = file.view(0, file.kept(), scratch_);
  const auto bad = std::find_if(bytes.begin(), bytes.end(),
                                [classes](std::uint8_t label) { return label >= classes; });
  if (bad != bytes.end()) {
    const auto record = static_cast<std::uint64_t>(bad - bytes.begin());
    throw DataError(place(file.path(), file.header().header_bytes + record) +
                        ": the label of record " + std::to_string(record) + " is " +
                        std::to_string(*bad) + ", outside [0, " + std::to_string(classes) + ")",
                    "give --classes " + std::to_string(*bad + 1) + " or more, or mend the file");
  }
  labels_.assign(bytes.begin(), bytes.end());
}

std::string IdxSource::identity() const {
  Hash hash;
  hash.add_bytes(std::as_bytes(std::span(labels_)));
  return "idx " + bare_name(images_.path()) + " + " + labels_name_ + ": " +
         std::to_string(records()) + " of " + std::to_string(images_.header().records) +
         " records, " + shape() + " = " + std::to_string(features_) + " features, labels " +
         to_hex(hash.value());
}

void IdxSource::read(std::span<const std::uint64_t> ids, std::span<float> x,
                     std::span<std::int32_t> labels) {
  check_read(*this, ids, x, labels);
  const std::uint64_t most_run =
      std::max<std::uint64_t>(1, most_bytes_at_once / images_.header().record_bytes);
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t run = 1;  // ids that follow one another come in one read
    while (i + run < ids.size() && run < most_run && ids[i + run] == ids[i] + run) ++run;
    const auto bytes = images_.view(ids[i], run, scratch_);
    scale_.apply(bytes, x.subspan(i * features_, run * features_));
    for (std::size_t k = 0; k < run; ++k) labels[i + k] = labels_[ids[i + k]];
    i += run;
  }
}

}  // namespace lockstep::data

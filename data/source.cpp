#include "data/source.hpp"

#include <stdexcept>

#include "data/folder.hpp"
#include "data/synthetic.hpp"

namespace lockstep::data {

void Source::read_bytes(std::span<const std::uint64_t>, std::span<std::uint8_t>,
                        std::span<std::int32_t>) {
  throw std::logic_error("read_bytes: this source gives no bytes: " + identity());
}

DataSet open_data_set(const std::string& path, const DataSetOptions& options) {
  if (path != "synthetic") return open_folder(path, options);
  return {open_data_part(path, Part::train, options), open_data_part(path, Part::test, options)};
}

std::unique_ptr<Source> open_data_part(const std::string& path, Part part,
                                       const DataSetOptions& options) {
  if (path != "synthetic") return open_folder_part(path, part, options);
  const auto drawn = part == Part::train ? SyntheticPart::train : SyntheticPart::test;
  return std::make_unique<SyntheticSource>(drawn, options.of(part));
}

}  // namespace lockstep::data

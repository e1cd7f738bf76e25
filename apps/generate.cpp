#include "apps/generate.hpp"

#include <spdlog/fmt/fmt.h>

#include <filesystem>

#include "apps/words.hpp"
#include "collectives/launcher.hpp"
#include "data/idx_writer.hpp"
#include "data/synthetic.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/files.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options generate_options() {
  cxxopts::Options options("lockstep generate",
                           "Writes the built-in data set, drawn digits, as IDX files.");
  options.custom_help("FOLDER [flags]");
  const auto number = [](std::uint64_t otherwise) {
    return cxxopts::value<std::string>()->default_value(std::to_string(otherwise));
  };
  options.add_options()("train-limit", "training images",
                        number(data::synthetic_records(data::SyntheticPart::train)), "N")(
      "test-limit", "test images", number(data::synthetic_records(data::SyntheticPart::test)), "N")(
      "seed", "of the drawings; `train --data synthetic` has the default",
      number(data::synthetic_seed), "N")("h,help", "show this");
  options.add_options("hidden")("folder", "", cxxopts::value<std::string>()->default_value(""));
  options.positional_help("");
  options.parse_positional({"folder"});
  return options;
}

std::uint64_t number_of(const cxxopts::ParseResult& result, const std::string& flag,
                        std::uint64_t least) {
  try {
    constexpr std::uint64_t most_in_idx = 0xFFFFFFFF;
    return parse_count(result[flag].as<std::string>(), least, most_in_idx);
  } catch (const ConfigError& error) {
    throw ConfigError("--" + flag + ": " + error.what());
  }
}

void require_absent(const std::filesystem::path& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) throw OutputError(path.string() + ": " + error.message(), "make the folder readable");
  if (!there) return;
  throw ConfigError(path.string() + ": is there already", "choose another folder, or remove it");
}

/// The two files of a part.
struct PartFiles {
  std::filesystem::path images;
  std::filesystem::path labels;

  PartFiles(const std::filesystem::path& folder, const std::string& stem)
      : images(folder / (stem + "-images-idx3-ubyte")),
        labels(folder / (stem + "-labels-idx1-ubyte")) {
    require_absent(images);
    require_absent(labels);
  }
};

void write_part(const PartFiles& files, data::SyntheticPart part, std::uint64_t records,
                std::uint64_t seed) {
  const data::IdxShape shape = {records, data::drawing_side, data::drawing_side};
  const auto record = [&](std::uint64_t index, std::span<std::uint8_t> pixels) {
    const data::DrawingId id = {seed, static_cast<std::uint32_t>(part), index};
    data::draw(id, pixels.first<data::drawing_pixels>());
    return static_cast<std::uint8_t>(data::drawn_label(id));
  };
  data::write_idx(files.images, files.labels, shape, record);
  fmt::print("{}: {} images\n", files.images.string(), grouped(records));
}

}  // namespace

int generate_command(const std::vector<std::string>& words) {
  const auto launch = comm::detect_launcher();
  if (launch && launch->rank != 0) return static_cast<int>(ExitCode::success);  // one writes
  auto options = generate_options();
  const auto result = parse_words(options, "lockstep generate", words);
  if (result.count("help") != 0) {
    fmt::print("{}", options.help({""}));
    return static_cast<int>(ExitCode::success);
  }
  const auto folder = result["folder"].as<std::string>();
  if (folder.empty()) throw ConfigError("no folder", "`lockstep generate FOLDER` writes into it");
  if (!result.unmatched().empty()) throw ConfigError("unexpected '" + result.unmatched()[0] + "'");
  const std::uint64_t train = number_of(result, "train-limit", 1);
  const std::uint64_t test = number_of(result, "test-limit", 1);
  const std::uint64_t seed = number_of(result, "seed", 0);
  make_folder(folder);
  const PartFiles train_files(folder, "train");
  const PartFiles test_files(folder, "t10k");
  write_part(train_files, data::SyntheticPart::train, train, seed);
  write_part(test_files, data::SyntheticPart::test, test, seed);
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps

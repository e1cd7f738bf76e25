#include "apps/generate.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "apps/cli.hpp"
#include "apps/writing.hpp"
#include "collectives/launcher.hpp"
#include "data/synthetic.hpp"
#include "data/writer.hpp"
#include "lib/base/errors.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

cxxopts::Options generate_options() {
  cxxopts::Options options("lockstep generate",
                           "Writes the built-in data set, drawn digits, as files.");
  options.custom_help("FOLDER [flags]");
  const auto number = [](std::uint64_t otherwise) {
    return cxxopts::value<std::string>()->default_value(std::to_string(otherwise));
  };
  options.add_options()("train-limit", "training images",
                        number(data::synthetic_records(data::SyntheticPart::train)), "N")(
      "test-limit", "test images", number(data::synthetic_records(data::SyntheticPart::test)), "N")(
      "seed", "of the drawings; `train --data synthetic` has the default",
      number(data::synthetic_seed), "N")("h,help", "show this");
  add_target_options(options, "idx");
  options.add_options("hidden")("folder", "", cxxopts::value<std::string>()->default_value(""));
  options.positional_help("");
  options.parse_positional({"folder"});
  return options;
}

void write_part(const data::Target& target, data::SyntheticPart part, std::uint64_t records,
                std::uint64_t seed) {
  const data::RecordShape shape = {
      records, {data::drawing_side, data::drawing_side}, data::Element::byte};
  std::vector<std::uint8_t> pixels(data::drawing_pixels);
  const auto record = [&](std::uint64_t index, std::span<float> features) {
    const data::DrawingId id = {seed, static_cast<std::uint32_t>(part), index};
    data::draw(id, std::span(pixels).first<data::drawing_pixels>());
    std::copy(pixels.begin(), pixels.end(), features.begin());
    return data::drawn_label(id);
  };
  data::write_records(target, shape, record);
  fmt::print("{}: {} images\n", files_text(target), grouped(records));
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
  const std::uint64_t train = number_in(result, "train-limit", 1).value();
  const std::uint64_t test = number_in(result, "test-limit", 1).value();
  const std::uint64_t seed = number_in(result, "seed", 0).value();
  const data::Target train_files = target_of(folder, "train", result);
  const data::Target test_files = target_of(folder, "test", result);
  make_data_folder(folder);
  write_part(train_files, data::SyntheticPart::train, train, seed);
  write_part(test_files, data::SyntheticPart::test, test, seed);
  return static_cast<int>(ExitCode::success);
}

}  // namespace lockstep::apps

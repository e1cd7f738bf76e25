#include "apps/writing.hpp"

#include <spdlog/fmt/fmt.h>

#include <system_error>

#include "lib/base/errors.hpp"
#include "lib/base/files.hpp"
#include "lib/base/text.hpp"

namespace lockstep::apps {

void add_target_options(cxxopts::Options& options, const char* format_default) {
  auto format = cxxopts::value<std::string>();
  if (*format_default != '\0') format->default_value(format_default);
  options.add_options()("format", "of the files that are written", format, "idx|csv|npy|tfrecord")(
      "files", "files, or pairs of them, for each of training and test set",
      cxxopts::value<std::string>()->default_value("1"), "N");
}

data::Format format_in(const cxxopts::ParseResult& result) {
  if (result.count("format") == 0 && !result["format"].has_default()) {
    throw ConfigError("--format is missing", "say which of idx, csv, npy and tfrecord to write");
  }
  const auto name = result["format"].as<std::string>();
  if (const auto format = data::format_named(name)) return *format;
  throw ConfigError("--format: '" + name + "' is none of idx|csv|npy|tfrecord");
}

std::optional<std::uint64_t> number_in(const cxxopts::ParseResult& result, const std::string& flag,
                                       std::uint64_t least) {
  if (result.count(flag) == 0 && !result[flag].has_default()) return std::nullopt;
  try {
    constexpr std::uint64_t most = 0xFFFFFFFF;  // what IDX can count
    return parse_count(result[flag].as<std::string>(), least, most);
  } catch (const ConfigError& error) {
    throw ConfigError("--" + flag + ": " + error.what());
  }
}

data::Target target_of(const std::filesystem::path& folder, const std::string& part,
                       const cxxopts::ParseResult& result) {
  data::Target target;
  target.folder = folder;
  target.format = format_in(result);
  target.stem = part == "test" && target.format == data::Format::idx ? "t10k" : part;
  constexpr std::uint64_t most_files = 99'999;  // five digits in the names
  target.files = number_in(result, "files", 1).value_or(1);
  if (target.files > most_files) {
    throw ConfigError("--files: " + grouped(target.files) + " is more than " + grouped(most_files));
  }
  return target;
}

void make_data_folder(const std::filesystem::path& folder) {
  make_folder(folder);
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.ends_with(".gz")) name.resize(name.size() - 3);
    const bool of_a_part =
        name.starts_with("train") || name.starts_with("test") || name.starts_with("t10k");
    if (!of_a_part || !data::format_of_file(name)) continue;
    throw ConfigError(entry->path().string() + ": is there already",
                      "choose another folder, or remove it");
  }
  if (error) throw OutputError(folder.string() + ": " + error.message(), "make it readable");
}

std::string files_text(const data::Target& target) {
  const auto first = data::files_of(target).front().records.string();
  return target.files == 1 ? first : fmt::format("{} ... ({} files)", first, target.files);
}

}  // namespace lockstep::apps

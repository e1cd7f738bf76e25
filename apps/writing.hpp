// What the subcommands that write data sets have in common.
#pragma once

#include <cstdint>
#include <cxxopts.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "data/source.hpp"
#include "data/writer.hpp"

namespace lockstep::apps {

/// Adds --format and --files.
void add_target_options(cxxopts::Options& options, const char* format_default);

/// The value of --format. Throws ConfigError for one that is none.
data::Format format_in(const cxxopts::ParseResult& result);

/// The number of a flag, at least `least`; none where the flag was not given and has no default.
/// Throws ConfigError that begins with the flag.
std::optional<std::uint64_t> number_in(const cxxopts::ParseResult& result, const std::string& flag,
                                       std::uint64_t least);

/// Where `part`, "train" or "test", goes; the test set's IDX files are called t10k, as MNIST's.
data::Target target_of(const std::filesystem::path& folder, const std::string& part,
                       const cxxopts::ParseResult& result);

/// Makes the folder. Throws ConfigError where data files stand in it already, whose records would
/// mix with new ones; OutputError where it cannot be made or looked into.
void make_data_folder(const std::filesystem::path& folder);

/// "FOLDER/train.csv", or "FOLDER/train-00000-of-00016.csv ... (16 files)".
std::string files_text(const data::Target& target);

}  // namespace lockstep::apps

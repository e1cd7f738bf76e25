// Names of flags in messages: hints for unknown names, options of the library as flags, and words
// in quotes for a shell.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::apps {

/// The name that is meant by an unknown word: by what other programs call it ("lr", "mse"), else by
/// its spelling.
std::optional<std::string> suggestion(std::string_view word, std::span<const std::string> names);

/// A word as a shell takes it: in quotes where it needs them.
std::string in_shell(const std::string& word);

/// A library's message with the names of options, written as `rebatch=ceil` or `batch_size`,
/// replaced by flags of this command: --rebatch ceil, --batch-size. Other words in backquotes are
/// kept.
std::string with_flags(const std::string& message);

}  // namespace lockstep::apps

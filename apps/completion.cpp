// `lockstep completion`: scripts for shells, from the flags that the subcommands take.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "apps/settings.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"

namespace lockstep::apps {
namespace {

/// A flag, and what may follow it.
struct Completion {
  std::string name = {};  ///< without dashes
  std::string help = {};
  bool has_value = false;
  bool is_switch = false;                ///< it may have =true or =false
  std::vector<std::string> values = {};  ///< words that it may take
  bool takes_path = false;
};

bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

/// `argument` as --help has it: "auto|DIR", "N", "true|false".
Completion completion_of(const std::string& name, const std::string& argument,
                         const std::string& help) {
  Completion one = {.name = name, .help = help};
  one.is_switch = argument == "true|false";
  one.has_value = !argument.empty() && !one.is_switch;
  std::istringstream parts(argument);
  for (std::string part; std::getline(parts, part, '|');) {
    if (is_word(part)) one.values.push_back(part);
    one.takes_path = one.takes_path || part == "PATH" || part == "DIR" || part == "FILE";
  }
  if (!one.has_value) one.values.clear();
  return one;
}

/// One for each flag; of flags that parts of `bench` share, with the words of all.
std::vector<Completion> completions_of(const Syntax& syntax) {
  std::vector<Completion> all;
  const auto add = [&all](Completion one) {
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const Completion& other) { return other.name == one.name; });
    if (same == all.end()) return all.push_back(std::move(one));
    same->has_value = same->has_value || one.has_value;
    same->takes_path = same->takes_path || one.takes_path;
    for (std::string& word : one.values) {
      const auto& there = same->values;
      const bool is_new = std::find(there.begin(), there.end(), word) == there.end();
      if (is_new) same->values.push_back(std::move(word));
    }
  };
  for (const Setting& setting : settings()) {
    if (!syntax.takes(setting.name)) continue;
    add(completion_of(setting.name, setting.argument, syntax.help_of(setting)));
  }
  for (const Flag& flag : syntax.flags) {
    add(completion_of(flag.name, flag.argument, flag.help));
  }
  if (!syntax.settings.empty()) {
    add(completion_of(set_flag.name, set_flag.argument, set_flag.help));
  }
  all.push_back({.name = "help", .help = "show this"});
  return all;
}

/// The words that may follow a subcommand: of `bench`, its parts; of `completion`, the shells.
std::vector<std::string> words_after(const Subcommand& command) {
  return completion_of("", command.syntax().usage, "").values;
}

std::string bash_script(std::span<const Subcommand> commands) {
  std::string names;
  std::string words;
  std::set<std::string> switches;
  std::map<std::string, std::map<std::string, std::string>> values;  // of a flag, by subcommand
  for (const Subcommand& command : commands) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", command.name);
    words += fmt::format("    {}) words=\"{}", command.name, fmt::join(words_after(command), " "));
    for (const Completion& one : completions_of(command.syntax())) {
      words += " --" + one.name;
      if (one.is_switch) switches.insert("--" + one.name);
      if (!one.has_value) continue;
      values[one.name][command.name] = fmt::format(
          "words=\"{}\" paths={} ;;\n", fmt::join(one.values, " "), one.takes_path ? "yes" : "");
    }
    words += "\" ;;\n";
  }
  std::string cases;
  for (const auto& [name, by_command] : values) {
    const std::string& first = by_command.begin()->second;
    const bool is_one = std::all_of(by_command.begin(), by_command.end(),
                                    [&](const auto& pair) { return pair.second == first; });
    if (is_one) cases += fmt::format("    *\" --{}\") {}", name, first);
    for (const auto& [command, line] : by_command) {
      if (!is_one) cases += fmt::format("    \"{} --{}\") {}", command, name, line);
    }
  }
  return fmt::format(R"(# bash completion for lockstep, written by `lockstep completion bash`
_lockstep() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words paths= assigned=
  if [ "$current" = = ]; then
    current= assigned=yes
  elif [ "$before" = = ]; then
    before=${{COMP_WORDS[COMP_CWORD - 2]}} assigned=yes
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{names} --help --version" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}} $before" in
{values}    *)
  case ${{COMP_WORDS[1]}} in
{words}    help) words="{names}" ;;
  esac
  case $assigned$current in
    yes*)
      words=
      case " {switches} " in
        *" $before "*) words="true false" ;;
      esac ;;
    -*) ;;
    *) words=${{words%%--*}}
       [ "$COMP_CWORD" -eq 2 ] || words=
       [ "${{words// }}" ] || paths=yes ;;
  esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [ "$paths" ]; then
    compopt -o filenames 2>/dev/null
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -F _lockstep lockstep
)",
                     fmt::arg("names", names), fmt::arg("values", cases), fmt::arg("words", words),
                     fmt::arg("switches", fmt::join(switches, " ")));
}

/// `text` within single quotes; a backslash before each of `special`.
std::string quoted(const std::string& text, const std::string& special) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (special.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return "'" + result + "'";
}

std::string zsh_script(std::span<const Subcommand> commands) {
  std::string names;
  std::string cases;
  for (const Subcommand& command : commands) {
    names += "    " + quoted(fmt::format("{}:{}", command.name, command.does), "") + "\n";
    cases += fmt::format("    {}) _arguments", command.name);
    for (const Completion& one : completions_of(command.syntax())) {
      std::string what;
      if (one.has_value) {
        what = one.takes_path ? ":path:_files"
                              : fmt::format(":value:({})", fmt::join(one.values, " "));
      }
      std::string help = one.help;
      std::replace(help.begin(), help.end(), ':', ',');
      const bool repeats = one.name == "set" || one.name == "resume-with";
      cases += " \\\n      " +
               quoted((repeats ? "*--" : "--") + one.name + (one.has_value ? "=[" : "["), "") +
               quoted(help, "[]\\") + quoted("]" + what, "");
    }
    const auto words = words_after(command);
    if (!words.empty()) cases += fmt::format(" \\\n      '1:word:({})'", fmt::join(words, " "));
    cases += " \\\n      '*:path:_files' ;;\n";
  }
  return fmt::format(R"(#compdef lockstep
# zsh completion, written by `lockstep completion zsh`
_lockstep() {{
  local -a commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  if [[ $words[2] = help ]]; then
    (( CURRENT == 3 )) && _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{}  esac
}}
if [ "$funcstack[1]" = _lockstep ]; then
  _lockstep "$@"
else
  compdef _lockstep lockstep
fi
)",
                     names, cases);
}

std::string fish_script(std::span<const Subcommand> commands) {
  std::string script = "# fish completion for lockstep, written by `lockstep completion fish`\n";
  for (const Subcommand& command : commands) {
    script += fmt::format("complete -c lockstep -n __fish_use_subcommand -f -a {} -d {}\n",
                          command.name, quoted(command.does, "\\"));
    const std::string here =
        fmt::format("complete -c lockstep -n '__fish_seen_subcommand_from {}'", command.name);
    if (const auto words = words_after(command); !words.empty()) {
      script += fmt::format(
          "complete -c lockstep -n '__fish_seen_subcommand_from {}; and not "
          "__fish_seen_subcommand_from {}' -f -a '{}'\n",
          command.name, fmt::join(words, " "), fmt::join(words, " "));
    }
    for (const Completion& one : completions_of(command.syntax())) {
      std::string value;
      if (one.has_value) value = one.takes_path ? " -r -F" : " -x";
      if (!one.values.empty()) value += fmt::format(" -a '{}'", fmt::join(one.values, " "));
      script += fmt::format("{} -l {}{} -d {}\n", here, one.name, value, quoted(one.help, "\\"));
    }
  }
  return script;
}

}  // namespace

std::string completion(const std::string& shell, std::span<const Subcommand> commands) {
  if (shell == "bash") return bash_script(commands);
  if (shell == "zsh") return zsh_script(commands);
  if (shell == "fish") return fish_script(commands);
  throw ConfigError(shell.empty() ? "no shell" : "no completion for '" + shell + "'",
                    "write `lockstep completion bash`, zsh or fish");
}

}  // namespace lockstep::apps

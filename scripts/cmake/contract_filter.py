"""Doxygen's input filter: a header's comments, line by line, as Doxygen takes them.

    // What the file is for. (line 1)    ->  /// @opening What the file is for.
    /// Errors   throws ConfigError      ->  /// @contract{Errors} throws ConfigError
    ///   code, or a table               ->  ///       code, or a table

The number of lines stays, so warnings name the right one. Docs.cmake defines the two aliases.
"""

import re
import sys

COMMENT = re.compile(r"^( *)///(?!<) ?(.*)$")
MARK = re.compile(r"^( *)// clang-format (on|off)$")  # around tables, in the middle of comments
ENTRY = re.compile(r"^([A-Z][A-Za-z]*) {2,}(?=\S)")
CONTINUED = " " * 6


def opened(lines):
    """The comment that the file opens with, as one that Doxygen reads."""
    out = list(lines)
    for i, line in enumerate(lines):
        if not line.startswith("//"):
            break
        out[i] = "///" + (" @opening" if i == 0 else "") + line[2:]
    return out


def contract(lines):
    """A comment's lines: entries become titled paragraphs; what is set in stays as it stands."""
    entry, set_in, out = False, False, []
    for text in lines:
        match = ENTRY.match(text)
        entry = bool(match) or (entry and text.startswith(CONTINUED))
        set_in = not entry and (not text or text.startswith("  ")) and (
            set_in or not out or not out[-1].strip())
        if match:
            text = f"@contract{{{match[1]}}} {text[match.end():]}"
        out.append("    " + text if set_in and text else text)
    return out


def filtered(lines):
    comment, indent = [], ""
    for line in [*opened(lines), None]:
        match = line is not None and (COMMENT.match(line) or (comment and MARK.match(line)))
        if match:
            indent = match[1]
            comment.append("" if MARK.match(line) else match[2])
            continue
        yield from (f"{indent}/// {text}".rstrip() for text in contract(comment))
        comment = []
        if line is not None:
            yield line


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read().splitlines()
    print("\n".join(filtered(text) if sys.argv[1].endswith(".hpp") else text))

"""Figures of another program that a test reads from a file: compares them with that program's, or writes the file."""

import argparse
import json
import math


def differences(found, recorded, is_relative, place="all"):
    """(difference, place) of each figure; infinite where keys, lengths, texts or kinds differ."""
    numbers = isinstance(found, (int, float)) and isinstance(recorded, (int, float))
    if numbers and found != recorded:
        difference = abs(found - recorded)
        if is_relative:
            difference = difference / abs(recorded) if recorded else math.inf
        yield (math.inf if math.isnan(difference) else difference), place
    elif isinstance(found, dict) and isinstance(recorded, dict) and found.keys() == recorded.keys():
        for key in found:
            yield from differences(found[key], recorded[key], is_relative, f"{place}/{key}")
    elif isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        for at, pair in enumerate(zip(found, recorded)):
            yield from differences(*pair, is_relative, f"{place}/{at}")
    else:
        yield (0.0 if found == recorded else math.inf), place


def compare_or_write(path, program, figures, limit, *, is_relative=False, in_rows=None):
    """The exit code: 0 unless a figure differs from that in the file by more than `limit`.

    `in_rows`: lists whose elements are indented by this many spaces are written in one line each.
    """
    parser = argparse.ArgumentParser(description=f"Compares figures of {program} with {path}.")
    parser.add_argument("--write", action="store_true", help="write the file instead")
    is_written = parser.parse_args().write
    text = json.dumps(figures(), indent=1)
    if in_rows:
        line = "\n" + " " * in_rows
        text = text.replace("," + line, ", ").replace("[" + line, "[")
    if is_written:
        path.write_text(text + "\n")
        return 0
    found = list(differences(json.loads(text), json.loads(path.read_text()), is_relative))
    worst, place = max(found)
    kind = "relative difference" if is_relative else "difference"
    where = f" ({place})" if worst else ""
    print(f"{program}: {len(found)} figures, largest {kind} from the recorded ones {worst:.1e}{where}")
    return int(worst > limit)

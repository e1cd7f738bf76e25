"""Runs one suite of end-to-end tests: python3 run.py BINARY SUITE [unittest's flags].

Exit code 0: passed; 1: failed; 77: everything was skipped, for the reasons printed.
"""

import importlib
import sys
import unittest
from pathlib import Path

import command


def main(path, suite, *flags):
    command.binary = Path(path).resolve()
    if not command.binary.is_file():
        sys.exit(f"{command.binary}: no such executable")
    module = importlib.import_module(Path(suite).stem)
    program = unittest.main(module, argv=["run.py", *flags], exit=False, verbosity=2)
    result = program.result
    for test, reason in result.skipped:
        print(f"SKIPPED {test}: {reason}", file=sys.stderr)
    if not result.wasSuccessful():
        return 1
    return 77 if result.skipped and len(result.skipped) >= result.testsRun else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

"""Runs one suite of end-to-end tests: python3 run.py BINARY SUITE [unittest's flags].

Exit code 0: passed; 1: failed; 77: everything was skipped, for the reasons printed.
"""

import importlib
import signal
import sys
import unittest
from pathlib import Path

import command


def let_commands_receive_signals():
    """nohup and a shell's & ignore signals, and commands would inherit that. A handler that does nothing is not
    inherited, and this process still ignores them."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def main(path, suite, *flags):
    let_commands_receive_signals()
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
    whole = {test for test, _ in result.skipped if not hasattr(test, "test_case")}  # else a subtest
    ran = result.testsRun - sum(isinstance(test, unittest.TestCase) for test in whole)  # others: setUpClass
    return 77 if whole and ran <= 0 else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

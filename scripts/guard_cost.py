#!/usr/bin/env python3
"""Measures what all guards together cost: --survive with its snapshots, the sentinel and the search for slow ranks.

    scripts/guard_cost.py [--rounds 15] [--ranks 2] [--steps 400] [BINARY]

Trains the tutorial's network at batch 128 with the guards and without, in turns, and prints the median of the ratios of
the time of a step. The time is the mean over a run, because a snapshot is taken in every 16th step only. The checks for
values that are not finite, the flight recorder and the watchdog cannot be turned off, so they are in both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WITHOUT = "--sentinel-steps 1048576 --straggler-warning off"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def seconds_a_step(arguments, flags, run):
    command = ["mpirun", "--oversubscribe", "--mca", "orte_enable_recovery", "1", "-n", str(arguments.ranks),
               arguments.binary, "train", "--epochs", "9", "--steps", str(arguments.steps), "--test-limit", "100",
               "--threads", "1", "--progress", "off", "--run-dir", run, *flags.split()]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | AS_ROOT)
    summary = json.loads((run / "summary.json").read_text())
    return 128 / summary["examples_per_second"], summary["weights_hash"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("binary", nargs="?", default=REPOSITORY / "build/release/lockstep")
    arguments = parser.parse_args()
    times = {"--survive": [], WITHOUT: []}
    hashes = set()
    with tempfile.TemporaryDirectory(prefix="lockstep-guards-") as folder:
        for number in range(arguments.rounds):
            order = list(times) if number % 2 == 0 else list(times)[::-1]
            for flags in order:
                seconds, weights = seconds_a_step(arguments, flags, Path(folder) / f"{number}-{len(flags)}")
                times[flags].append(seconds)
                hashes.add(weights)
    guarded, plain = times["--survive"], times[WITHOUT]
    ratios = [a / b for a, b in zip(guarded, plain)]
    print(f"{arguments.ranks} ranks, batch 128, {arguments.rounds} rounds of {arguments.steps} steps; "
          f"weights {'the same' if len(hashes) == 1 else 'DIFFER'}")
    print(f"a step with all guards {statistics.median(guarded) * 1e3:.3f} ms, without {statistics.median(plain) * 1e3:.3f} ms;"
          f" ratio {statistics.median(ratios):.3f} (median), {min(ratios):.3f} to {max(ratios):.3f}")
    return len(hashes) > 1


if __name__ == "__main__":
    sys.exit(main())

"""Ranks that call fewer collectives than the others, or fail, end the job: rank_leaves.py PROGRAM MPIEXEC"""

import os
import subprocess
import sys
import time

LEFT = " has left the group; every rank has to call every collective, in one order"
CASES = {  # the job's code, and what the error says
    "returns": (86, "all_reduce: rank 3" + LEFT),
    "if": (86, LEFT),  # of rank 1, 2 or 3, whichever is seen first
    "part": (86, "all_reduce: rank 3" + LEFT),
    "fails": (65, ": record 7 is cut off"),
    "sleeps": (0, ""),
}


def main(program, mpiexec):
    failures = 0
    for backend in ("mpi", "shared"):
        for case, (expected, said) in CASES.items():
            start = time.monotonic()
            try:
                result = subprocess.run([mpiexec, "--oversubscribe", "-n", "4", program, backend, case],
                                        capture_output=True, text=True, check=False,
                                        timeout=20 * float(os.environ.get("LOCKSTEP_TIME_FACTOR", 1)))
                code, text = result.returncode, result.stderr
            except subprocess.TimeoutExpired:
                code, text = "none: it hangs", ""
            good = code == expected and said in text
            failures += not good
            print(f"{backend} {case}: {'ok' if good else 'FAILED'}, code {code}, {time.monotonic() - start:.1f} s")
            if not good:
                print(text)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

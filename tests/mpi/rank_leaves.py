"""Ranks that call fewer collectives than the others end the job: rank_leaves.py PROGRAM MPIEXEC"""

import os
import subprocess
import sys
import time

LAST = "rank 3 has left the group; every rank has to call every collective, in one order"
CASES = {  # what the error says; None: the job ends well
    "returns": "all_reduce: " + LAST,
    "if": "rank 0 on ",
    "part": "all_reduce: " + LAST,
    "sleeps": None,
}


def main(program, mpiexec):
    failures = 0
    for backend in ("mpi", "shared"):
        for case, expected in CASES.items():
            start = time.monotonic()
            try:
                result = subprocess.run([mpiexec, "--oversubscribe", "-n", "4", program, backend, case],
                                        capture_output=True, text=True, check=False,
                                        timeout=20 * float(os.environ.get("LOCKSTEP_TIME_FACTOR", 1)))
                code, text = result.returncode, result.stderr
            except subprocess.TimeoutExpired:
                code, text = "none: it hangs", ""
            good = code == (86 if expected else 0) and (expected or "") in text
            failures += not good
            print(f"{backend} {case}: {'ok' if good else 'FAILED'}, code {code}, {time.monotonic() - start:.1f} s")
            if not good:
                print(text)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

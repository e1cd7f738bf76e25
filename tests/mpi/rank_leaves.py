"""Ranks that call fewer collectives than the others, or fail, end the job: rank_leaves.py PROGRAM MPIEXEC"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

LEFT = " has left the group; every rank has to call every collective, in one order"
CASES = {  # the job's code, and what the error says
    "returns": (86, "all_reduce: rank 3" + LEFT),
    "if": (86, LEFT),  # of rank 1, 2 or 3, whichever is seen first
    "part": (86, "all_reduce: rank 3" + LEFT),
    "fails": (65, ": record 7 is cut off"),
    "sleeps": (0, ""),
}


def run(program, mpiexec, backend, case):
    """Whether the job ended as it should, and what to print."""
    expected, said = CASES[case]
    start = time.monotonic()
    try:
        result = subprocess.run([mpiexec, "--oversubscribe", "-n", "4", program, backend, case],
                                capture_output=True, text=True, check=False,
                                timeout=20 * float(os.environ.get("LOCKSTEP_TIME_FACTOR", 1)))
        code, text = result.returncode, result.stderr
    except subprocess.TimeoutExpired:
        code, text = "none: it hangs", ""
    good = code == expected and said in text
    line = f"{backend} {case}: {'ok' if good else 'FAILED'}, code {code}, {time.monotonic() - start:.1f} s"
    return good, line if good else f"{line}\n{text}"


def main(program, mpiexec):
    jobs = [(program, mpiexec, backend, case) for case in CASES for backend in ("mpi", "shared")]
    with ThreadPoolExecutor(2) as pool:  # they mostly wait
        ends = list(pool.map(lambda job: run(*job), jobs))
    print("\n".join(text for _, text in ends))
    return not all(good for good, _ in ends)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

#!/usr/bin/env python3
"""Lockstep beside PyTorch on the same files and network, interleaved in one run.

  scripts/peers/install.sh FOLDER
  scripts/peers/compare.py FOLDER [--rounds 3] [--batch-sizes 32,128,512] [--layers 700,500]

Writes the built-in data set once, then runs every contender in turn, ROUNDS times over, and
prints a Markdown table of medians. Examples/s are a global batch over the median step; the first
ten steps do not count. Nothing else should run meanwhile.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LOCKSTEP = HERE.parent.parent / "build" / "release" / "lockstep"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=pathlib.Path, help="the folder of scripts/peers/install.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", default="32,128,512,4096")
    parser.add_argument("--layers", default="700,500")
    parser.add_argument("--steps", type=int, default=300)
    return parser.parse_args()


def output_of(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=ENVIRONMENT, timeout=1800)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def lockstep(a, data, batch_size):
    """(examples/s, seconds to the end of the first step) of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        output_of(["mpirun", "-n", 2, LOCKSTEP, "train", "--data", data, "--batch-size", batch_size,
                   "--layers", a.layers, "--steps", a.steps, "--epochs", 1000, "--test-limit", 100,
                   "--shuffle", "none", "--drop-remainder", "--run-dir", run])
        summary = json.loads((run / "summary.json").read_text())
    return batch_size / summary["step_seconds"]["median"], summary["startup_seconds"]


def torch(a, data, batch_size, launcher, *flags):
    line = output_of([*launcher, HERE / "torch_peer.py", "--data", data, "--batch-size", batch_size,
                      "--layers", a.layers, "--steps", a.steps, *flags]).splitlines()[-1]
    result = json.loads(line)
    return result["examples_per_second"], result["first_step"]


def contenders(a):
    python, torchrun = a.venv / "bin" / "python", a.venv / "bin" / "torchrun"
    cores = len(os.sched_getaffinity(0))
    return {
        "Lockstep, 2 ranks": lockstep,
        f"PyTorch, one process, {cores} threads":
            lambda *job: torch(*job, [python], "--threads", cores),
        "PyTorch, 2 ranks, DDP over gloo":
            lambda *job: torch(*job, [torchrun, "--nproc-per-node", 2]),
        "PyTorch, 2 ranks, one flat MPI_Allreduce":
            lambda *job: torch(*job, ["mpirun", "-n", 2, python], "--reduce", "mpi"),
    }


def main():
    a = arguments()
    batch_sizes = [int(size) for size in a.batch_sizes.split(",")]
    results = {}
    with tempfile.TemporaryDirectory() as data:
        output_of([LOCKSTEP, "generate", data])
        for _ in range(a.rounds):
            for batch_size in batch_sizes:
                for name, measure in contenders(a).items():
                    results.setdefault((name, batch_size), []).append(measure(a, data, batch_size))
                    print(f"{name}, batch {batch_size}: {results[name, batch_size][-1]}",
                          file=sys.stderr)
    columns = [f"batch {size}" for size in batch_sizes] + ["first step after"]
    print("| examples/s | " + " | ".join(columns) + " |")
    print("| --- " * (len(columns) + 1) + "|")
    for name in contenders(a):
        cells = [f"{statistics.median(r[0] for r in results[name, size]):,.0f}"
                 for size in batch_sizes]
        first = statistics.median(r[1] for size in batch_sizes for r in results[name, size])
        print(f"| {name} | " + " | ".join(cells) + f" | {first:.2f} s |")


if __name__ == "__main__":
    main()

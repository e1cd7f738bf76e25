#!/usr/bin/env python3
"""A table read and trained on, beside PyTorch: the shape that OpenNN publishes its speed on.

  scripts/peers/install.sh FOLDER torch numpy pandas
  scripts/peers/higgs.py FOLDER [--records 200000] [--epochs 1] [--rounds 3]

HIGGS-like: 28 features and a class of 2 in CSV, five hidden layers of 300, batches of 100, SGD at
0.05 with momentum 0.9. The table is drawn at random here; the layers have ReLU where OpenNN's have
tanh, and softmax over two classes where they have one sigmoid. What is measured: the seconds from
the begin of reading to the end of training; and those of the whole process, start and imports
included. Lockstep's is the whole process in both columns.
Source: OpenNN, "CPU Training Speed on HIGGS", opennn.net/blog/higgs-cpu-opennn-pytorch.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

from compare import HERE, LOCKSTEP, MPIRUN, has, output_of

FEATURES, LAYERS, BATCH = 28, "300,300,300,300,300", 100


def write_table(path, records, seed):
    """Two classes whose features differ in their means by a tenth of a deviation."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        file.write(",".join([f"x{i}" for i in range(FEATURES)] + ["label"]) + "\n")
        for _ in range(records):
            label = rng.random() < 0.5
            row = [f"{rng.gauss(0.1 * label, 1):.6f}" for _ in range(FEATURES)]
            file.write(",".join(row) + f",{label:d}\n")


def lockstep(launcher, *flags):
    def measure(a, folder):
        with tempfile.TemporaryDirectory() as runs:
            begin = time.perf_counter()
            output_of([*launcher, LOCKSTEP, "train", "--data", folder, "--layers", LAYERS,
                       "--batch-size", BATCH, "--epochs", a.epochs, "--shuffle", "none",
                       "--standardize", "false", "--optimizer", "sgd", "--momentum", 0.9,
                       "--learning-rate", 0.05, "--run-dir", pathlib.Path(runs) / "run", *flags])
            seconds = time.perf_counter() - begin
        return seconds, seconds
    return measure


def torch(launcher, *flags):
    def measure(a, folder):
        begin = time.perf_counter()
        out = output_of([*launcher, HERE / "torch_table_peer.py", "--data",
                         pathlib.Path(folder) / "train.csv", "--batch-size", BATCH, "--layers",
                         LAYERS, "--epochs", a.epochs, *flags])
        whole = time.perf_counter() - begin
        return json.loads(out.splitlines()[-1])["seconds"], whole
    return measure


def contenders(venv):
    cores = len(os.sched_getaffinity(0))
    python = venv / "bin" / "python"
    found = {"Lockstep, 2 ranks": lockstep(MPIRUN),
             f"Lockstep, 1 rank, {cores} threads": lockstep([], "--threads", cores)}
    if has(venv, "torch", "pandas"):
        found[f"PyTorch, one process, {cores} threads"] = torch([python], "--threads", cores)
        found["PyTorch, one process, 1 thread"] = torch([python], "--threads", 1)
    if has(venv, "torch", "pandas", "mpi4py"):
        found["PyTorch, 2 ranks, one flat MPI_Allreduce"] = torch([*MPIRUN, python], "--threads",
                                                                  1, "--reduce", "mpi")
    return found


def measure(venv, a):
    """{contender: (seconds without start, seconds of the process)}, medians."""
    all_contenders = contenders(venv)
    results = {name: [] for name in all_contenders}
    with tempfile.TemporaryDirectory() as folder:
        write_table(pathlib.Path(folder) / "train.csv", a.records, 22)
        write_table(pathlib.Path(folder) / "test.csv", 100, 23)
        for turn in range(a.rounds):
            for name, run in all_contenders.items():
                results[name].append(run(a, folder))
                print(f"round {turn + 1}: {name}: {results[name][-1][0]:.2f} s", file=sys.stderr)
    return {name: tuple(statistics.median(column) for column in zip(*rounds))
            for name, rounds in results.items()}


def table(found, a):
    examples = a.records * a.epochs
    lines = [f"| {examples:,} examples of a CSV of {a.records:,} records | reading and training "
             "| examples/s | whole process |", "| --- | --- | --- | --- |"]
    for name, (seconds, whole) in found.items():
        lines.append(f"| {name} | {seconds:.2f} s | {examples / seconds:,.0f} | {whole:.2f} s |")
    return "\n".join(lines)


def add_flags(parser):
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=pathlib.Path, help="the folder of scripts/peers/install.sh")
    parser.add_argument("--rounds", type=int, default=3)
    add_flags(parser)
    a = parser.parse_args()
    print(table(measure(a.venv, a), a))


if __name__ == "__main__":
    main()

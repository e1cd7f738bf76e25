#!/usr/bin/env python3
"""Lockstep beside its peers on the same files and network, interleaved in one run.

  scripts/peers/install.sh FOLDER torch numpy mpi4py jax optax tensorflow-cpu
  scripts/peers/compare.py FOLDER [--rounds 3] [--batch-sizes 32,128,512,4096] [--json FILE]

Writes the built-in data set once (or reads --data), then runs every contender in turn, ROUNDS
times over, and prints a Markdown table of medians. Examples/s are a global batch over the median
step; the first ten steps do not count. Peers that FOLDER lacks are left out. Nothing else should
run meanwhile: scripts/bench/METHOD.md.
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
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   TF_CPP_MIN_LOG_LEVEL="3")
MPIRUN = ["mpirun", "-n", 2]


def output_of(command, is_complete=lambda output: False, limit=1800, environment={}):
    """What a command prints. One that fails ends the program, unless its output is complete."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env=ENVIRONMENT | environment, timeout=limit)
    if done.returncode != 0:
        problem = f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        if not is_complete(done.stdout):
            sys.exit(problem)
        print(problem, file=sys.stderr)
    return done.stdout


def json_lines(output):
    return [line for line in output.splitlines() if line.startswith("{")]


def is_measured(output):
    """PyTorch's DDP sometimes aborts at its end, after it has printed its line."""
    return bool(json_lines(output))


def lockstep(launcher, *flags):
    """A contender: what `lockstep train` measures of itself."""
    def measure(data, steps, batch_size, layers):
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / "run"
            output_of([*launcher, LOCKSTEP, "train", "--data", data, "--batch-size", batch_size,
                       "--layers", layers, "--steps", steps + 10, "--epochs", 100000,
                       "--shuffle", "none", "--drop-remainder",
                       "--run-dir", run, *flags])
            summary = json.loads((run / "summary.json").read_text())
        return {"examples_per_second": batch_size / summary["step_seconds"]["median"],
                "first_step_seconds": summary["startup_seconds"],
                "evaluation_seconds": summary["evaluation_seconds"],
                "checkpoint_seconds": summary["checkpoint_seconds"],
                "peak_rss_bytes": summary["peak_rss_bytes"]}
    return measure


def peer(launcher, script, *flags):
    """A contender: the line of JSON that a peer prints last."""
    def measure(data, steps, batch_size, layers):
        out = output_of([*launcher, HERE / script, "--data", data, "--batch-size", batch_size,
                         "--layers", layers, "--steps", steps, *flags], is_measured)
        return json.loads(json_lines(out)[-1])
    return measure


def has(venv, *packages):
    """Whether all of these are installed in `venv`."""
    return subprocess.run([venv / "bin" / "python", "-c", f"import importlib.util as u, sys; "
                           f"sys.exit(None in map(u.find_spec, {packages}))"]).returncode == 0


def contenders(venv):
    """{name: contender}, Lockstep first; of the peers those that are installed."""
    python, torchrun = venv / "bin" / "python", venv / "bin" / "torchrun"
    cores = len(os.sched_getaffinity(0))
    found = {"Lockstep, 2 ranks": lockstep(MPIRUN),
             "Lockstep, 2 ranks that share the network": lockstep(MPIRUN, "--mesh", "model=2"),
             f"Lockstep, 1 rank, {cores} threads": lockstep([], "--threads", cores)}
    if has(venv, "torch"):
        found[f"PyTorch, one process, {cores} threads"] = peer([python], "torch_peer.py",
                                                               "--threads", cores)
        found["PyTorch, 2 ranks, DDP over gloo"] = peer([torchrun, "--nproc-per-node", 2],
                                                        "torch_peer.py")
    if has(venv, "torch", "mpi4py"):
        found["PyTorch, 2 ranks, one flat MPI_Allreduce"] = peer([*MPIRUN, python],
                                                                 "torch_peer.py", "--reduce", "mpi")
    if has(venv, "jax", "optax"):
        found["JAX, one process"] = peer([python], "jax_peer.py")
    if has(venv, "tensorflow"):
        found["TensorFlow, one process"] = peer([python], "tensorflow_peer.py", "--devices", 1)
        found["TensorFlow, DTensor on 2 devices"] = peer([python], "tensorflow_peer.py",
                                                         "--devices", 2)
    return found


def works_of(batch_sizes, wide_layers):
    """[(column, batch size, layers)]."""
    works = [(f"batch {size}", int(size), "700,500") for size in batch_sizes.split(",")]
    if wide_layers:
        works.append((f"128, layers {wide_layers}", 128, wide_layers))
    return works


def steps_of(steps, batch_size, layers):
    """Fewer steps of large batches and wide layers, which take longer."""
    wide = max(int(width) for width in layers.split(",")) > 1000
    return max(12, steps * 128 // max(batch_size, 128) // (8 if wide else 1))


def measure(venv, data, works, rounds, steps):
    """{contender: {column: [result of each round]}}, interleaved."""
    all_contenders = contenders(venv)
    results = {name: {column: [] for column, _, _ in works} for name in all_contenders}
    for turn in range(rounds):
        for column, batch_size, layers in works:
            for name, run in all_contenders.items():
                result = run(data, steps_of(steps, batch_size, layers), batch_size, layers)
                results[name][column].append(result)
                print(f"round {turn + 1}: {name}, {column}: "
                      f"{result['examples_per_second']:,.0f} examples/s", file=sys.stderr)
    return results


def median_of(results, figure):
    return statistics.median(result[figure] for result in results)


def medians(results):
    """{contender: {column: {figure: median}}}."""
    figures = ["examples_per_second", "first_step_seconds", "evaluation_seconds",
               "checkpoint_seconds", "peak_rss_bytes"]
    return {name: {column: {figure: median_of(rounds, figure) for figure in figures}
                   for column, rounds in columns.items()} for name, columns in results.items()}


def table(found):
    """Markdown: examples/s of each column; all else of batch 128."""
    columns = list(next(iter(found.values())))
    usual = "batch 128" if "batch 128" in columns else columns[0]
    lines = ["| examples/s | " + " | ".join(columns) + " | first step after | evaluation of the"
             " test set | checkpoint | memory a process |", "| --- " * (len(columns) + 5) + "|"]
    for name, of in found.items():
        rates = [f"{of[column]['examples_per_second']:,.0f}" for column in columns]
        lines.append(f"| {name} | " + " | ".join(rates) +
                     f" | {of[usual]['first_step_seconds']:.2f} s"
                     f" | {1e3 * of[usual]['evaluation_seconds']:.0f} ms"
                     f" | {1e3 * of[usual]['checkpoint_seconds']:.0f} ms"
                     f" | {of[usual]['peak_rss_bytes'] / 1e6:,.0f} MB |")
    peers = [name for name in found if not name.startswith("Lockstep")]
    if peers:
        best = [max(found[name][column]["examples_per_second"] for name in peers)
                for column in columns]
        for ours in [name for name in found if name not in peers]:
            ratios = [found[ours][column]["examples_per_second"] / of_peers
                      for column, of_peers in zip(columns, best)]
            lines.append(f"| {ours}, over the best peer | " +
                         " | ".join(f"{ratio:.2f}" for ratio in ratios) + " | | | | |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=pathlib.Path, help="the folder of scripts/peers/install.sh")
    parser.add_argument("--data", help="folder of IDX files of MNIST's shape [drawn digits]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", default="32,128,512,4096")
    parser.add_argument("--wide-layers", default="2048,2048,2048", help="at batch 128; '': none")
    parser.add_argument("--steps", type=int, default=300, help="of batch 128; of others in proportion")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    a = parser.parse_args()
    works = works_of(a.batch_sizes, a.wide_layers)
    with tempfile.TemporaryDirectory() as folder:
        if a.data is None:
            output_of([LOCKSTEP, "generate", folder])
        found = medians(measure(a.venv, a.data or folder, works, a.rounds, a.steps))
    if a.json:
        a.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()

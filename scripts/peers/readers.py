#!/usr/bin/env python3
"""Lockstep's readers beside tf.data, NumPy and PyTorch's DataLoader on the same files, interleaved.

  scripts/peers/install.sh FOLDER torch numpy tensorflow-cpu
  scripts/peers/readers.py FOLDER [--rounds 3] [--batch-size 128]

Writes the built-in training set (60,000 images of 784 bytes) in three formats, then every contender
reads it in turn, in order and shuffled, ROUNDS times over, and a Markdown table of medians is
printed: records/s of an epoch that is read when everything is warm, and seconds from opening the
file to the end of the first epoch in order. Features become float32 divided by 255. Lockstep checks
every checksum, number and label of a file when it opens it, and reads with one thread a rank; the
others take the cores they want. Lockstep's shuffle is of the whole set, tf.data's of 10,000 records.
Peers that FOLDER lacks are left out.
"""
import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare import HERE, LOCKSTEP, has, output_of

FORMATS = {"tfrecord": "train.tfrecord", "csv": "train.csv", "npy": "train-images.npy"}
PEERS = {  # way of reader_peer.py: what it is called, whose Python runs it, its format
    "tfdata-tfrecord": ("tf.data, parse_example of a batch", "tensorflow", "tfrecord"),
    "tfdata-csv": ("tf.data, decode_csv of a batch", "tensorflow", "csv"),
    "tfdata-csvdataset": ("tf.data, CsvDataset", "tensorflow", "csv"),
    "numpy-csv": ("NumPy, loadtxt", "torch", "csv"),
    "numpy-npy": ("NumPy, slices of a mapped file", "torch", "npy"),
    "torch-npy": ("PyTorch, DataLoader with a worker a core", "torch", "npy"),
}


ORDERS = ("in order", "shuffled")


def last_json(command):
    return json.loads(output_of(command).splitlines()[-1])


def lockstep(folder, launcher, words, batch_size, order):
    """(records/s, seconds from opening to the end of the epoch)."""
    command = [*launcher, LOCKSTEP, "bench", "data", "--json", "--data", folder, *words,
               "--batch-size", batch_size, "--divide-by", 255,
               "--shuffle", "global" if order == "shuffled" else "none"]
    first, warm = last_json(command), last_json([*command, "--seconds", 1])
    return warm["records_per_second"], first["open_seconds"] + first["seconds"]


def peer(python, way, file, batch_size, order):
    found = last_json([python, HERE / "reader_peer.py", way, file, "--batch-size", batch_size,
                       *(["--shuffle"] if order == "shuffled" else [])])
    return found["records"] / found["second"], found["first"]


def contenders(venv, data, batch_size, slow):
    """{(format, name): how to measure it in an order}."""
    python = venv / "bin" / "python"
    installed = {package for package in ("torch", "tensorflow") if has(venv, package)}
    found = {}
    for name in FORMATS:
        for label, launcher, words in (("1 rank", [], []),
                                       ("2 ranks as threads", [], ["--ranks", 2]),
                                       ("2 ranks as processes", ["mpirun", "-n", 2], [])):
            found[name, f"Lockstep, {label}"] = functools.partial(
                lockstep, data / name, launcher, words, batch_size)
        for way, (label, package, form) in PEERS.items():
            if form != name or (way == "tfdata-csvdataset" and not slow):
                continue
            if package not in installed:
                print(f"SKIPPED {label}: {venv} has no {package}", file=sys.stderr)
                continue
            found[name, label] = functools.partial(peer, python, way,
                                                   data / name / FORMATS[name], batch_size)
    return found


def measure(venv, rounds, batch_size=128, slow=False):
    """{"format, reader": {order: (records/s, seconds of the first epoch with opening)}}: medians."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        for name in FORMATS:
            subprocess.run([LOCKSTEP, "generate", data / name, "--format", name, "--test-limit",
                            "10"], check=True, stdout=subprocess.DEVNULL)
        everyone = contenders(venv, data, batch_size, slow)
        for _ in range(rounds):
            for order in ORDERS:
                for key, read in everyone.items():
                    results.setdefault((key, order), []).append(read(order))
                    print(*key, order, results[key, order][-1], file=sys.stderr)
    return {", ".join(key): {order: [statistics.median(run[i] for run in results[key, order])
                                     for i in (0, 1)] for order in ORDERS} for key in everyone}


def table(found):
    lines = ["| records/s | in order | shuffled | first epoch in order, with opening |",
             "| --- | --- | --- | --- |"]
    for name, of in found.items():
        lines.append(f"| {name} | {of['in order'][0]:,.0f} | {of['shuffled'][0]:,.0f}"
                     f" | {1e3 * of['in order'][1]:,.0f} ms |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("venv", type=pathlib.Path, help="the folder of scripts/peers/install.sh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--slow", action="store_true", help="CsvDataset too: half a minute a round")
    a = parser.parse_args()
    print(table(measure(a.venv, a.rounds, a.batch_size, a.slow)))


if __name__ == "__main__":
    main()

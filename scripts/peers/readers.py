#!/usr/bin/env python3
"""Lockstep's readers beside tf.data, NumPy and PyTorch's DataLoader on the same files, interleaved.

  scripts/peers/install.sh TORCH
  scripts/peers/install.sh TENSORFLOW tensorflow-cpu
  scripts/peers/readers.py --torch TORCH --tensorflow TENSORFLOW [--rounds 3] [--batch-size 128]

Writes the built-in training set (60,000 images of 784 bytes) in three formats, then every contender
reads it in turn, ROUNDS times over, and a Markdown table of medians is printed: records/s of an
epoch that is read when everything is warm, and seconds from opening the file to the end of the first
epoch. Features become float32 divided by 255. Lockstep checks every checksum, number and label of a
file when it opens it, and reads with one thread a rank; the others take the cores they want.
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
FORMATS = {"tfrecord": "train.tfrecord", "csv": "train.csv", "npy": "train-images.npy"}
PEERS = {  # way of reader_peer.py: what it is called, whose Python runs it, its format
    "tfdata-tfrecord": ("tf.data, parse_example of a batch", "tensorflow", "tfrecord"),
    "tfdata-csv": ("tf.data, decode_csv of a batch", "tensorflow", "csv"),
    "tfdata-csvdataset": ("tf.data, CsvDataset", "tensorflow", "csv"),
    "numpy-csv": ("NumPy, loadtxt", "torch", "csv"),
    "numpy-npy": ("NumPy, slices of a mapped file", "torch", "npy"),
    "torch-npy": ("PyTorch, DataLoader with a worker a core", "torch", "npy"),
}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", type=pathlib.Path, help="a folder of scripts/peers/install.sh")
    parser.add_argument("--tensorflow", type=pathlib.Path, help="another one, with tensorflow-cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--slow", action="store_true", help="CsvDataset too: half a minute a round")
    return parser.parse_args()


def last_json(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=1800, env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"))
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def lockstep(a, folder, ranks):
    """(records/s, seconds from opening to the end of the epoch)."""
    found = last_json([LOCKSTEP, "bench", "data", "--json", "--data", folder, "--ranks", ranks,
                       "--batch-size", a.batch_size, "--divide-by", 255,
                       "--shuffle", "global" if a.shuffle else "none"])
    return found["records_per_second"], found["open_seconds"] + found["seconds"]


def peer(a, venv, way, file):
    found = last_json([venv / "bin" / "python", HERE / "reader_peer.py", way, file, "--batch-size",
                       a.batch_size, *(["--shuffle"] if a.shuffle else [])])
    return found["records"] / found["second"], found["first"]


def contenders(a, data):
    """(format, name) and how to measure it."""
    for name in FORMATS:
        for ranks in (1, 2):
            label = "Lockstep, 1 rank" if ranks == 1 else f"Lockstep, {ranks} ranks"
            yield (name, label), lambda name=name, ranks=ranks: lockstep(a, data / name, ranks)
        for way, (label, library, form) in PEERS.items():
            venv = getattr(a, library)
            if form != name or (way == "tfdata-csvdataset" and not a.slow):
                continue
            if venv is None:
                print(f"SKIPPED {label}: no --{library}", file=sys.stderr)
                continue
            yield (name, label), lambda venv=venv, way=way, file=data / name / FORMATS[name]: peer(
                a, venv, way, file)


def main():
    a = arguments()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder)
        for name in FORMATS:
            subprocess.run([LOCKSTEP, "generate", data / name, "--format", name, "--test-limit",
                            "10"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(a.rounds):
            for key, measure in contenders(a, data):
                results.setdefault(key, []).append(measure())
                print(*key, results[key][-1], file=sys.stderr)
    print("| format | reader | records/s | first epoch, opening included |")
    print("| --- | --- | --- | --- |")
    for (name, label), runs in results.items():
        speed, first = (statistics.median(run[i] for run in runs) for i in (0, 1))
        print(f"| {name} | {label} | {speed:,.0f} | {first:.2f} s |")


if __name__ == "__main__":
    main()

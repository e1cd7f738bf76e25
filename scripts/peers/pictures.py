#!/usr/bin/env python3
"""Lockstep's decoding of pictures beside PyTorch's ImageFolder and DataLoader, interleaved.

  scripts/peers/install.sh FOLDER torch torchvision
  FOLDER/bin/python scripts/peers/pictures.py [--pictures 1000] [--size 224] [--rounds 5]

Draws a folder of PNG and JPEG files, half of each, of 200 to 500 pixels a side, in two classes. Each
round reads all of them in random order with Lockstep (`lockstep bench data`: one rank, a thread a
core) and with a DataLoader of a worker a core over ImageFolder, Resize, CenterCrop and ToTensor, and the
median of pictures a second is printed as a Markdown table, with the ratio of each round. Neither
counts the start: workers are running, and Lockstep has read the headers.

With --accuracy it instead trains LeNet on drawn digits as IDX, and on the same digits as PNG and JPEG
files of 28 to 84 pixels a side, and prints both accuracies.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings

import numpy
import torch
from PIL import Image
from torchvision import datasets, transforms

LOCKSTEP = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "lockstep"
KINDS = {"PNG": ["png"], "JPEG": ["jpg"], "PNG and JPEG": ["png", "jpg"]}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accuracy", action="store_true")
    return parser.parse_args()


def draw(folder, count, endings):
    """Smooth colours with some noise, which compress about as photographs do."""
    rng = numpy.random.default_rng(1)
    for i in range(count):
        columns, rows = (int(side) for side in rng.integers(200, 501, 2))
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=numpy.uint8))
        smooth = numpy.asarray(small.resize((columns, rows), Image.BICUBIC), dtype=numpy.int16)
        noisy = numpy.clip(smooth + rng.integers(-8, 9, smooth.shape), 0, 255).astype(numpy.uint8)
        path = folder / "train" / f"class-{i % 2}" / f"{i:05}.{endings[i // 2 % len(endings)]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(path)


def lockstep(a, folder):
    done = subprocess.run([LOCKSTEP, "bench", "data", "--json", "--data", folder, "--image-size",
                           str(a.size), "--batch-size", str(a.batch_size)],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["records_per_second"]


def workers():
    """One a core, as Lockstep's threads of `bench data`."""
    return len(os.sched_getaffinity(0))


def make_loader(a, folder):
    steps = transforms.Compose([transforms.Resize(a.size), transforms.CenterCrop(a.size),
                                transforms.ToTensor()])
    return torch.utils.data.DataLoader(datasets.ImageFolder(folder / "train", steps), a.batch_size,
                                       shuffle=True, num_workers=workers(), persistent_workers=True)


def dataloader(loader):
    began = time.perf_counter()
    counted = sum(len(x) for x, _ in loader)
    return counted / (time.perf_counter() - began)


def enlarge(idx, pictures):
    """The digits of an IDX folder as PNG and JPEG files of mixed sizes."""
    rng = numpy.random.default_rng(2)
    for part, stem in (("train", "train"), ("test", "t10k")):
        images = numpy.fromfile(idx / f"{stem}-images-idx3-ubyte", "u1")[16:].reshape(-1, 28, 28)
        labels = numpy.fromfile(idx / f"{stem}-labels-idx1-ubyte", "u1")[8:]
        for i, (image, label) in enumerate(zip(images, labels)):
            side = int(rng.integers(28, 85))
            path = pictures / part / str(label) / f"{i:05}.{('png', 'jpg')[i % 2]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((side, side), Image.BICUBIC).save(path)


def compare_accuracy():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([LOCKSTEP, "generate", folder / "idx", "--train-limit", "10000", "--test-limit",
                        "2000"], check=True, stdout=subprocess.DEVNULL)
        enlarge(folder / "idx", folder / "pictures")
        print("| LeNet, 3 epochs | test accuracy |\n| --- | --- |")
        for kind, flags in (("idx", []), ("pictures", ["--image-size", "28"])):
            subprocess.run([LOCKSTEP, "train", "--model", "lenet", "--progress", "off", "--data",
                            folder / kind, "--run-dir", folder / f"run-{kind}", *flags], check=True)
            summary = json.loads((folder / f"run-{kind}" / "summary.json").read_text())
            print(f"| {kind} | {summary['epochs'][-1]['test_accuracy']:.4f} |", flush=True)


def main():
    a = arguments()
    if a.accuracy:
        return compare_accuracy()
    warnings.filterwarnings("ignore")
    print(f"{a.pictures} pictures to {a.size}x{a.size}, batch {a.batch_size}, {workers()} cores, "
          f"torch {torch.__version__}\n")
    print("| pictures/s | Lockstep, a thread a core | DataLoader, a worker a core | ratio (least, most) |")
    print("| --- | --- | --- | --- |")
    for kind, endings in KINDS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            draw(folder, a.pictures, endings)
            loader = make_loader(a, folder)
            dataloader(loader)  # starts the workers, and brings the files into memory
            rounds = [(lockstep(a, folder), dataloader(loader)) for _ in range(a.rounds)]
            ours, theirs = (statistics.median(column) for column in zip(*rounds))
            ratios = [one / other for one, other in rounds]
            print(f"| {kind} | {ours:,.0f} | {theirs:,.0f} | {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f}, {max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    main()

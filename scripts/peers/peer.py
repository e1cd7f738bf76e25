"""What the training peers share: the flags, the clock, and the line of JSON that ends their output.

The work is dense layers with ReLU, softmax cross-entropy and Adam (rate 0.001, epsilon 1e-7), on
global batches in file order. A peer calls Clock.mark() when a step has ended.
"""
import argparse
import json
import os
import resource
import statistics
import tempfile
import time

import numpy as np

from idx import idx

RATE, EPSILON, SEED = 1e-3, 1e-7, 22


def arguments(**flags):
    """The flags of every peer, and `flags`: {name: options of add_argument}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder of IDX files")
    parser.add_argument("--batch-size", type=int, default=128, help="global")
    parser.add_argument("--layers", default="700,500")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=10, help="steps that are not timed")
    for name, options in flags.items():
        parser.add_argument("--" + name.replace("_", "-"), **options)
    return parser.parse_args()


def digits(a, part="train"):
    """(features [n, 784] in [0, 1], labels [n]) of the training set, or of "t10k", the test set."""
    x = idx(a.data, f"{part}-images").reshape(-1, 784).astype(np.float32) / np.float32(255)
    return x, idx(a.data, f"{part}-labels").astype(np.int64)


def widths(a, features=784, classes=10):
    return [features] + [int(w) for w in a.layers.split(",")] + [classes]


def batch_starts(a, records):
    """The first record of each step's batch: whole batches, from the beginning again and again."""
    batches = records // a.batch_size
    return (step % batches * a.batch_size for step in range(a.warmup + a.steps))


def process_age():
    """Seconds since the kernel started this process."""
    ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Clock:
    def __init__(self, a):
        self.a, self.marks, self.first = a, [], None

    def mark(self):
        self.marks.append(time.perf_counter())
        self.first = self.first or process_age()

    def report(self, loss, seconds_of={}):
        seconds = statistics.median(np.diff(self.marks[self.a.warmup - 1:]))
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"examples_per_second": self.a.batch_size / seconds,
                          "first_step_seconds": self.first, "peak_rss_bytes": rss,
                          "loss": float(loss), **seconds_of}), flush=True)


def timed_evaluation(a, correct_of):
    """Seconds of counting correct answers on the test set, batch by batch: correct_of(x, y). What
    is compiled, or allocated once, is so in a round before that does not count."""
    x, y = digits(a, "t10k")
    for _ in range(2):
        begin = time.perf_counter()
        correct = sum(int(correct_of(x[i:i + a.batch_size], y[i:i + a.batch_size]))
                      for i in range(0, len(x), a.batch_size))
        seconds = time.perf_counter() - begin
    if not 0 < correct <= len(x):
        raise SystemExit(f"{correct} of {len(x)} test images are classified correctly")
    return {"evaluation_seconds": seconds}


def timed_checkpoint(save):
    """Seconds of save(path), which writes weights and the optimizer's state."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        save(os.path.join(folder, "checkpoint"))
        return {"checkpoint_seconds": time.perf_counter() - begin}

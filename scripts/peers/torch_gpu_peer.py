#!/usr/bin/env python3
"""The tutorial's training run in PyTorch on one GPU, as fast as its documentation makes it.

  python torch_gpu_peer.py --data DIR [--batch-size 128] [--layers 700,500] [--precision float32]

The network is compiled (torch.compile, max-autotune), Adam is fused, and the whole step, from bytes
to weights, is one CUDA graph that is replayed. The data is in pinned memory; a stream of its own
copies the next batch while the step runs. No step waits for its loss. The last line of the output
is JSON. Exit code 77, with the reason: no PyTorch, or no GPU that it can use.
"""
import argparse
import itertools
import json
import statistics
import sys
import time

SKIPPED = 77
BLOCK = 20  # steps between two looks at the clock, each of which waits for the device


def skip(reason):
    print(f"torch_gpu_peer: SKIPPED, {reason}", file=sys.stderr)
    sys.exit(SKIPPED)


try:
    import numpy as np
    import torch
    from torch import nn
    from idx import idx
    from peer import process_age, widths
    from torch_peer import network
except ImportError as error:
    skip(f"{error} (scripts/peers/install.sh FOLDER brings PyTorch)")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder of IDX files; random bytes without")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--layers", default="700,500")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=40, help="steps that are not timed")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="auto",
                        help="auto: on, unless there is no Triton to compile with, which is said")
    return parser.parse_args()


def compiled(a, model):
    """(The network, whether it is compiled.) The step's graph holds all, so it gets none of its own."""
    try:
        import triton  # noqa: F401
    except ImportError:
        if a.compile == "on":
            skip("no Triton to compile with")
        if a.compile == "auto":
            print("torch_gpu_peer: not compiled, there is no Triton", file=sys.stderr)
        return model, False
    if a.compile == "off":
        return model, False
    return torch.compile(model, mode="max-autotune-no-cudagraphs"), True


def host_data(a):
    """Images [N, 784] as bytes and labels [N], in pinned memory."""
    if a.data:
        x = idx(a.data, "train-images").reshape(-1, 784)
        y = idx(a.data, "train-labels").astype(np.int64)
    else:
        random = np.random.default_rng(22)
        x = random.integers(0, 256, (max(60000, a.batch_size), 784), np.uint8)
        y = random.integers(0, 10, len(x), np.int64)
    if len(x) < a.batch_size:
        sys.exit(f"torch_gpu_peer: {len(x)} images are no batch of {a.batch_size}")
    return torch.tensor(x).pin_memory(), torch.tensor(y).pin_memory()


class Training:
    """One network, its optimizer, and a step on a batch in device memory."""

    def __init__(self, a):
        torch.set_float32_matmul_precision("high" if a.precision == "tf32" else "highest")
        torch.manual_seed(22)
        plain = network(widths(a)).cuda()
        self.model, self.compiled = compiled(a, plain)
        self.adam = torch.optim.Adam(plain.parameters(), lr=1e-3, eps=1e-7, fused=True,
                                     capturable=True)
        self.loss_of = nn.CrossEntropyLoss()
        self.bf16 = a.precision == "bf16"

    def step(self, x, y):
        self.adam.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss_of(self.model(x.float().div_(255)), y)
        loss.backward()
        self.adam.step()
        return loss.detach()


class Slot:
    """Memory for one batch, and the step on it as a graph."""

    def __init__(self, batch_size):
        self.x = torch.zeros(batch_size, 784, dtype=torch.uint8, device="cuda")
        self.y = torch.zeros(batch_size, dtype=torch.int64, device="cuda")
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()
        self.graph = torch.cuda.CUDAGraph()

    def record(self, training, pool):
        with torch.cuda.graph(self.graph, pool=pool):
            self.loss = training.step(self.x, self.y)

    def fill(self, copier, x, y, at):
        """Copies a batch as soon as the last step on this slot is over."""
        with torch.cuda.stream(copier):
            copier.wait_event(self.done)
            self.x.copy_(x[at:at + len(self.x)], non_blocking=True)
            self.y.copy_(y[at:at + len(self.y)], non_blocking=True)
            self.ready.record(copier)

    def run(self):
        torch.cuda.current_stream().wait_event(self.ready)
        self.graph.replay()
        self.done.record()


def two_slots(a, training):
    """As PyTorch's notes on graphs want it: a few steps on a side stream, then the capture."""
    slots = [Slot(a.batch_size), Slot(a.batch_size)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training.step(slots[0].x, slots[0].y)
    torch.cuda.current_stream().wait_stream(side)
    pool = torch.cuda.graph_pool_handle()
    for slot in slots:
        slot.record(training, pool)
    return slots


def main():
    a = arguments()
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    x, y = host_data(a)
    training = Training(a)
    slots, copier = two_slots(a, training), torch.cuda.Stream()
    starts = itertools.cycle(range(0, len(x) - a.batch_size + 1, a.batch_size))
    now, after = slots
    now.fill(copier, x, y, next(starts))
    marks, first = [], None
    for step in range(a.warmup + -(-a.steps // BLOCK) * BLOCK + 1):
        if step >= a.warmup and (step - a.warmup) % BLOCK == 0:
            torch.cuda.synchronize()
            marks.append(time.perf_counter())
        after.fill(copier, x, y, next(starts))
        now.run()
        now, after = after, now
        if first is None:
            torch.cuda.synchronize()
            first = process_age()
    torch.cuda.synchronize()
    median = statistics.median(np.diff(marks)) / BLOCK
    print(json.dumps({"examples_per_second": a.batch_size / median, "step_ms": 1e3 * median,
                      "first_step": first, "loss": float(slots[0].loss), "precision": a.precision,
                      "compiled": training.compiled, "device": torch.cuda.get_device_name(),
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()

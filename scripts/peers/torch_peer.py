"""The tutorial's training run in PyTorch, as its own documentation would have it.

  python torch_peer.py --data DIR --threads 2                     one process
  torchrun --nproc-per-node 2 torch_peer.py --data DIR            DistributedDataParallel over gloo
  mpirun -n 2 python torch_peer.py --data DIR --reduce mpi        one flat gradient, MPI_Allreduce

The data is a tensor in memory that each step slices: the fastest loader there is. The last line
of the output is JSON.
"""
import argparse
import json
import os
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from idx import idx


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder of IDX files")
    parser.add_argument("--batch-size", type=int, default=128, help="global")
    parser.add_argument("--layers", default="700,500")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reduce", choices=["ddp", "mpi"], default="ddp")
    return parser.parse_args()


def process_age():
    """Seconds since the kernel started this process."""
    ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def world(a):
    """(ranks, rank, MPI's communicator or None)."""
    if a.reduce == "mpi":
        from mpi4py import MPI
        return MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, MPI.COMM_WORLD
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    return ranks, int(os.environ.get("RANK", 0)), None


def network(a):
    widths = [784] + [int(w) for w in a.layers.split(",")] + [10]
    layers = []
    for n_in, n_out in zip(widths, widths[1:]):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def flat_gradient(parameters):
    """One buffer that all gradients are views of."""
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = g.view_as(p)
    return flat


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    torch.manual_seed(22)
    ranks, rank, mpi = world(a)
    x = torch.from_numpy(idx(a.data, "train-images").reshape(-1, 784).astype(np.float32) / 255)
    y = torch.from_numpy(idx(a.data, "train-labels").astype(np.int64))
    model = network(a)
    parameters = list(model.parameters())
    flat = flat_gradient(parameters) if mpi else None
    if ranks > 1 and not mpi:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    adam = torch.optim.Adam(parameters, lr=1e-3, eps=1e-7, fused=True)
    loss_of = nn.CrossEntropyLoss()
    local, per_epoch = a.batch_size // ranks, len(x) // a.batch_size
    marks, first = [], None
    for step in range(a.warmup + a.steps):
        at = step % per_epoch * a.batch_size + rank * local
        adam.zero_grad(set_to_none=mpi is None)
        loss = loss_of(model(x[at:at + local]), y[at:at + local])
        loss.backward()
        if mpi:
            from mpi4py import MPI
            mpi.Allreduce(MPI.IN_PLACE, flat.numpy())
            flat.div_(ranks)
        adam.step()
        loss.item()
        marks.append(time.perf_counter())
        first = first or process_age()
    if rank == 0:
        seconds = statistics.median(np.diff(marks[a.warmup - 1:]))
        print(json.dumps({"examples_per_second": a.batch_size / seconds, "first_step": first}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

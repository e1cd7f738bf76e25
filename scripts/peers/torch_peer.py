"""The tutorial's training run in PyTorch, as its own documentation would have it.

  python torch_peer.py --data DIR --threads 2                     one process
  torchrun --nproc-per-node 2 torch_peer.py --data DIR            DistributedDataParallel over gloo
  mpirun -n 2 python torch_peer.py --data DIR --reduce mpi        one flat gradient, MPI_Allreduce

The data is a tensor in memory that each step slices: the fastest loader there is. The last line
of the output is JSON.
"""
import os

import torch
import torch.distributed as dist
from torch import nn

from peer import (EPSILON, RATE, SEED, Clock, arguments, batch_starts, digits, timed_checkpoint,
                  timed_evaluation, widths)


def world(reduce):
    """(ranks, rank, MPI's communicator or None)."""
    if reduce == "mpi":
        from mpi4py import MPI
        return MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, MPI.COMM_WORLD
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    return ranks, int(os.environ.get("RANK", 0)), None


def network(sizes):
    layers = []
    for n_in, n_out in zip(sizes, sizes[1:]):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def flat_gradient(parameters):
    """One buffer that all gradients are views of."""
    flat = torch.zeros(sum(p.numel() for p in parameters))
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = g.view_as(p)
    return flat


def adam(parameters):
    return torch.optim.Adam(parameters, lr=RATE, eps=EPSILON, fused=True)


class Trainer:
    """A network on this rank of `ranks`, with its optimizer and the reduction of gradients."""

    def __init__(self, sizes, ranks, mpi, optimizer_of=adam):
        torch.manual_seed(SEED)
        self.model, self.ranks, self.mpi = network(sizes), ranks, mpi
        parameters = list(self.model.parameters())
        self.flat = flat_gradient(parameters) if mpi else None
        if ranks > 1 and not mpi:
            self.model = nn.parallel.DistributedDataParallel(self.model,
                                                             gradient_as_bucket_view=True)
        self.optimizer = optimizer_of(parameters)
        self.loss_of = nn.CrossEntropyLoss()

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=self.mpi is None)
        loss = self.loss_of(self.model(x), y)
        loss.backward()
        if self.mpi:
            from mpi4py import MPI
            self.mpi.Allreduce(MPI.IN_PLACE, self.flat.numpy())
            self.flat.div_(self.ranks)
        self.optimizer.step()
        return loss.item()

    def correct(self, x, y):
        """Correct answers on a batch, of which each rank takes a part."""
        rank = self.mpi.rank if self.mpi else dist.get_rank() if self.ranks > 1 else 0
        x, y = (torch.from_numpy(v).tensor_split(self.ranks)[rank] for v in (x, y))
        with torch.inference_mode():
            count = (self.model(x).argmax(1) == y).sum()
        if self.mpi:
            return self.mpi.allreduce(count.item())
        if self.ranks > 1:
            dist.all_reduce(count)
        return count.item()

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
                   path)


def main():
    a = arguments(threads=dict(type=int, default=1),
                  reduce=dict(choices=["ddp", "mpi"], default="ddp"))
    torch.set_num_threads(a.threads)
    ranks, rank, mpi = world(a.reduce)
    x, y = (torch.from_numpy(values) for values in digits(a))
    trainer, clock, local = Trainer(widths(a), ranks, mpi), Clock(a), a.batch_size // ranks
    for start in batch_starts(a, len(x)):
        mine = slice(start + rank * local, start + (rank + 1) * local)
        loss = trainer.step(x[mine], y[mine])
        clock.mark()
    evaluation = timed_evaluation(a, trainer.correct)
    if rank == 0:
        clock.report(loss, {**evaluation, **timed_checkpoint(trainer.save)})
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

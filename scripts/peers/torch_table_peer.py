"""Reads a CSV with pandas and trains PyTorch on it: what higgs.py measures.

  python torch_table_peer.py --data FILE.csv --threads 2
  mpirun -n 2 python torch_table_peer.py --data FILE.csv --reduce mpi

Every rank reads the file. The last line of the output has the seconds from the begin of reading to
the end of the last epoch.
"""
import json
import time

import numpy as np
import pandas
import torch

from peer import arguments, widths
from torch_peer import Trainer, world


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True)


def main():
    a = arguments(threads=dict(type=int, default=1), epochs=dict(type=int, default=1),
                  reduce=dict(choices=["ddp", "mpi"], default="ddp"))
    torch.set_num_threads(a.threads)
    ranks, rank, mpi = world(a.reduce)
    begin = time.perf_counter()
    rows = pandas.read_csv(a.data, dtype=np.float32).to_numpy()
    x = torch.from_numpy(np.ascontiguousarray(rows[:, :-1]))
    y = torch.from_numpy(rows[:, -1].astype(np.int64))
    trainer = Trainer(widths(a, x.shape[1], 2), ranks, mpi, sgd)
    local = a.batch_size // ranks
    for _ in range(a.epochs):
        for start in range(0, len(x) - a.batch_size + 1, a.batch_size):
            mine = slice(start + rank * local, start + (rank + 1) * local)
            loss = trainer.step(x[mine], y[mine])
    if rank == 0:
        print(json.dumps({"seconds": time.perf_counter() - begin, "loss": loss}))


if __name__ == "__main__":
    main()

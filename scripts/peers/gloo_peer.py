"""Collectives of PyTorch's gloo on buffers of float32, in place:

  torchrun --nproc-per-node 2 gloo_peer.py --bytes 1024,4096

The last line of the output is JSON: {operation: {bytes of the whole buffer: seconds}}, of the
slowest rank's means the least of all rounds: gloo's threads sleep between messages, and how soon
they wake differs between rounds by a factor of ten.
"""
import argparse
import json
import time

import torch
import torch.distributed as dist


def operations(count):
    """{operation: its call}, on buffers of `count` numbers."""
    whole = torch.ones(count)
    blocks = list(torch.ones(count).split(count // dist.get_world_size()))
    sent = blocks[dist.get_rank()].clone()
    return {"all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: dist.all_gather(blocks, sent),
            "broadcast": lambda: dist.broadcast(whole, 0)}


def seconds_of(call, rounds, seconds):
    """The least of `rounds`, each of about `seconds`."""
    def mean_of(times):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        slowest = torch.tensor((time.perf_counter() - begin) / times)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()
    times = max(2, int(seconds / mean_of(3)))  # the same on all ranks, as the mean is
    return min(mean_of(times) for _ in range(rounds))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", required=True, help="sizes, with commas between them")
    parser.add_argument("--rounds", type=int, default=15)
    a = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for size in map(int, a.bytes.split(",")):
        for name, call in operations(size // 4).items():
            found.setdefault(name, {})[size] = seconds_of(call, a.rounds, 0.02)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

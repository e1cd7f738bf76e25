#!/usr/bin/env python3
"""A network for images in Lockstep and in PyTorch, trained from the same weights on the same batches: both accuracies.

  scripts/peers/install.sh FOLDER torch numpy
  FOLDER/bin/python scripts/peers/images.py [--config configs/resnet.toml] [--seeds 22,1,2] [-- FLAGS]

FLAGS are of `lockstep train`: `--data mnist`, `--epochs 2`. PyTorch's network is made of torch.nn.Conv2d, BatchNorm2d and
Linear after the layers in Lockstep's checkpoint, its weights are Lockstep's first ones, its batches those that `lockstep
plan` lists, and its optimizer and schedule those of the run file. Two things are left as each has them: the order of
sums, and the running variance, which PyTorch multiplies by n / (n - 1), n being the values of a channel in a batch.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import numpy
import torch
from torch import nn

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Settings that only have these values here.
ONLY = {"augment": "none", "class-weights": "none", "clip-norm": "none", "clip-value": "none", "keep-best": False,
        "label-smoothing": 0.0, "patience": "none", "precision": "float32", "steps": "none", "test-split": "none",
        "validation": "none", "warmup": "0", "weight-decay": "auto"}
# A first step that changes no weight: the least rate above 0.
FIRST_WEIGHTS = "--steps 1 --epochs 1 --optimizer sgd --learning-rate 1e-45 --schedule constant --warmup 0".split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", default=REPOSITORY / "build/release/lockstep")
    parser.add_argument("--config", default=REPOSITORY / "configs/resnet.toml")
    parser.add_argument("--seeds", default="22")
    parser.add_argument("--ranks", default="2", help="of Lockstep, as threads")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch")
    parser.add_argument("flags", nargs="*", help="of `lockstep train`")
    return parser.parse_args()


def lockstep(a, *words):
    done = subprocess.run([a.lockstep, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"lockstep {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def trained(a, folder, seed, *flags):
    """The folder of a finished run."""
    lockstep(a, "train", a.config, *a.flags, "--seed", seed, "--ranks", a.ranks, "--run-dir", folder,
             "--progress", "off", *flags)
    return folder


def tensors(path):
    """The tensors of a safetensors file by name."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    found = {}
    for name, about in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in about["data_offsets"])
            found[name] = torch.from_numpy(numpy.frombuffer(raw[begin:end], "<f4").reshape(about["shape"]).copy())
    return found


class Network(nn.Module):
    """The layers of a checkpoint with its weights; running means of 0 and variances of 1."""

    def __init__(self, checkpoint):
        super().__init__()
        about = json.loads((checkpoint / "network.json").read_text())
        weights = tensors(checkpoint / "model.safetensors")
        self.layers, self.divisor, self.channels = about["layers"], about["divide_by"], about["input"][2]
        self.parts = nn.ModuleList(self.part(i, layer, weights) for i, layer in enumerate(self.layers))
        self.to(memory_format=torch.channels_last)

    def part(self, number, layer, weights):
        kind = layer["kind"]
        if kind == "conv":
            w = weights[f"{number}.weight"]  # [row, column, channel; filter]
            kernel, filters = layer["kernel"], layer["filters"]
            channels = len(w) // kernel**2
            padding = (kernel - 1) // 2 if layer["padding"] == "same" else 0
            made = nn.Conv2d(channels, filters, kernel, layer.get("stride", 1), padding)
            made.weight.data = w.reshape(kernel, kernel, channels, filters).permute(3, 2, 0, 1).contiguous()
            made.bias.data = weights[f"{number}.bias"]
        elif kind == "batch-norm":
            made = nn.BatchNorm2d(len(weights[f"{number}.gain"]), eps=1e-5, momentum=1 - layer["momentum"])
            made.weight.data, made.bias.data = weights[f"{number}.gain"], weights[f"{number}.bias"]
        elif kind == "dense":
            w = weights[f"{number}.weight"]
            made = nn.Linear(*w.shape)
            made.weight.data, made.bias.data = w.T.contiguous(), weights[f"{number}.bias"]
        elif kind in ("add", "global-pool"):
            made = nn.Identity()
        else:
            sys.exit(f"layer {number + 1}: {kind} is not written here")
        return made

    def forward(self, x):
        named = {"input": x}
        for layer, part in zip(self.layers, self.parts, strict=True):
            named[None] = x  # the layer before
            names = layer.get("from")
            inputs = [named[name] for name in (names if isinstance(names, list) else [names])]
            x = part(sum(inputs[1:], inputs[0]))
            if layer["kind"] == "global-pool":
                x = x.mean((2, 3)) if layer["pooling"] == "average" else x.amax((2, 3))
            if layer.get("activation") == "relu":
                x = x.relu()
            if "name" in layer:
                named[layer["name"]] = x
        return x


def records(folder, part, network):
    """Images [record, channel, row, column] and labels of what `lockstep convert` wrote."""
    x = torch.from_numpy(numpy.load(folder / f"{part}-images.npy").astype("f4")) / network.divisor
    x = x.reshape(*x.shape[:3], network.channels).permute(0, 3, 1, 2)  # channels_last, which is faster
    return x, torch.from_numpy(numpy.load(folder / f"{part}-labels.npy").astype("i8"))


def epoch_batches(a, config, count, seed, epoch):
    """The ids of each batch, by `lockstep plan`."""
    drop = ["--drop-remainder"] if config["drop-remainder"] else []
    plan = lockstep(a, "plan", "--range", count, "--batch-size", config["batch-size"], "--shuffle", config["shuffle"],
                    *drop, "--seed", seed, "--epoch", epoch, "--json", "--ids")
    return [ids for (ids,) in json.loads(plan)["ids"]]


def optimizer_of(config, parameters, steps):
    """The optimizer of the run file, and the factor of its rate in each step from 0."""
    rate, name = config["learning-rate"], config["optimizer"]
    if name == "adam":
        made = torch.optim.Adam(parameters, rate, (config["beta1"], config["beta2"]), config["epsilon"])
    elif name == "sgd":
        momentum = 0.0 if config["momentum"] == "auto" else config["momentum"]
        made = torch.optim.SGD(parameters, rate, momentum, nesterov=config["nesterov"])
    else:
        sys.exit(f"the optimizer {name} is not written here")
    last = config["final-rate"]
    factor = {"constant": lambda step: 1, "linear": lambda step: 1 - (1 - last) * step / steps,
              "cosine": lambda step: last + (1 - last) * (1 + math.cos(math.pi * step / steps)) / 2}[config["schedule"]]
    return made, torch.optim.lr_scheduler.LambdaLR(made, factor)


def accuracy(network, x, y):
    network.eval()
    with torch.no_grad():
        return sum((network(a).argmax(1) == b).sum().item() for a, b in zip(x.split(1000), y.split(1000))) / len(y)


def train(a, network, config, data, seed):
    """The losses of all steps, and the test accuracy."""
    x, y = records(data, "train", network)
    batches = [ids for epoch in range(config["epochs"]) for ids in epoch_batches(a, config, len(x), seed, epoch + 1)]
    optimizer, schedule = optimizer_of(config, network.parameters(), len(batches))
    losses = []
    network.train()
    for ids in batches:
        loss = nn.functional.cross_entropy(network(x[ids]), y[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, accuracy(network, *records(data, "test", network))


def main():
    a = arguments()
    torch.set_num_threads(a.threads)
    config = tomllib.loads(lockstep(a, "train", a.config, *a.flags, "--print-config"))
    for key, value in ONLY.items():
        if config[key] != value:
            sys.exit(f"{key} = {config[key]} is not written here")
    limits = [word for name in ("train-limit", "test-limit") if config[name] != "all"
              for word in (f"--{name}", config[name])]
    print(f"{config['data']}, {config['epochs']} epochs, torch {torch.__version__} on {a.threads} threads\n")
    print("| seed | Lockstep | PyTorch | difference | loss of step 1 | seconds |\n" + "| --- " * 6 + "|")
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lockstep(a, "convert", config["data"], folder / "data", "--format", "npy", *limits)
        for seed in a.seeds.split(","):
            first = trained(a, folder / f"first-{seed}", seed, *FIRST_WEIGHTS)
            network = Network(next((first / "checkpoints").iterdir()))
            began = time.perf_counter()
            run = trained(a, folder / f"run-{seed}", seed)
            middle = time.perf_counter()
            losses, theirs = train(a, network, config, folder / "data", seed)
            end = time.perf_counter()
            ours = json.loads((run / "summary.json").read_text())["epochs"][-1]["test_accuracy"]
            loss = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]
            found.append((ours, theirs))
            print(f"| {seed} | {ours:.2%} | {theirs:.2%} | {100 * (ours - theirs):+.2f} points | "
                  f"{loss:.6f}, {losses[0]:.6f} | {middle - began:.0f}, {end - middle:.0f} |", flush=True)
    if len(found) > 1:
        ours, theirs = (statistics.mean(column) for column in zip(*found))
        print(f"| mean | {ours:.2%} | {theirs:.2%} | {100 * (ours - theirs):+.2f} points | | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A small residual network in PyTorch, trained step by step from given weights with SGD: its losses, also in evaluation.

  FOLDER/bin/python scripts/peers/networks.py           compares tests/unit/lib/nn/network_figures.json with PyTorch
  FOLDER/bin/python scripts/peers/networks.py --write   writes it

The unit test `a residual network follows PyTorch` compares Lockstep with the same file, always. Weights and examples
are formulas of their index in Lockstep's layouts: images [rows, columns, channels], weights of a convolution
[row, column, channel, filter], of a dense layer [input, output]. PyTorch computes in float64. The running variance is
Lockstep's, of all values of a batch; PyTorch's own is larger by n / (n - 1).
"""

import sys
from pathlib import Path

import torch
from figures import compare_or_write
from torch.nn import functional

FIGURES = Path(__file__).resolve().parents[2] / "tests/unit/lib/nn/network_figures.json"
STEPS, BATCH, EXAMPLES, CLASSES = 25, 8, 24, 3
ROWS, COLUMNS, CHANNELS = 6, 5, 2
RATE, MOMENTUM = 0.1, 0.9


def wave(count, phase, scale):
    """scale * sin(1.3 i + phase) of i below count, rounded to float32."""
    return (scale * torch.sin(1.3 * torch.arange(count, dtype=torch.float64) + phase)).float().double()


class Weights:
    """The tensors of the network in their order; each is made when a layer is first run."""

    def __init__(self):
        self.tensors = []
        self.at = 0
        self.training = True

    def next(self, shape, start=0.0, is_trained=True):
        if self.at == len(self.tensors):
            values = start + wave(torch.Size(shape).numel(), 0.7 * self.at, 0.3)
            self.tensors.append(values.float().double().reshape(shape).requires_grad_(is_trained))
        self.at += 1
        return self.tensors[self.at - 1]


def convolution(weights, x, filters, kernel, stride=1):
    w = weights.next((kernel, kernel, x.shape[1], filters))
    bias = weights.next((filters,))
    return functional.conv2d(x, w.permute(3, 2, 0, 1), bias, stride, (kernel - 1) // 2)


def batch_norm(weights, x):
    gain = weights.next((x.shape[1],), start=1.0)
    bias = weights.next((x.shape[1],))
    mean = weights.next((x.shape[1],), is_trained=False)
    variance = weights.next((x.shape[1],), start=1.0, is_trained=False)
    if not weights.training:
        return functional.batch_norm(x, mean, variance, gain, bias, training=False, eps=1e-5)
    batch_variance, batch_mean = torch.var_mean(x.detach(), (0, 2, 3), correction=0)
    mean.mul_(MOMENTUM).add_((1 - MOMENTUM) * batch_mean)
    variance.mul_(MOMENTUM).add_((1 - MOMENTUM) * batch_variance)
    return functional.batch_norm(x, None, None, gain, bias, training=True, eps=1e-5)


def block(weights, x, filters, stride):
    y = batch_norm(weights, convolution(weights, x, filters, 3, stride)).relu()
    y = batch_norm(weights, convolution(weights, y, filters, 3))
    if stride > 1:
        x = batch_norm(weights, convolution(weights, x, filters, 1, stride))
    return (y + x).relu()


def forward(weights, x):
    weights.at = 0
    x = batch_norm(weights, convolution(weights, x, 4, 3)).relu()
    x = block(weights, x, 4, 1)
    x = block(weights, x, 6, 2)
    x = x.mean((2, 3))
    return x @ weights.next((6, CLASSES)) + weights.next((CLASSES,))


def figures():
    """The loss of each step, and that of all examples in evaluation after the last."""
    images = wave(EXAMPLES * ROWS * COLUMNS * CHANNELS, 0.1, 1.0).reshape(EXAMPLES, ROWS, COLUMNS, CHANNELS)
    images = images.permute(0, 3, 1, 2)
    labels = torch.tensor([(i * i + i // 5) % CLASSES for i in range(EXAMPLES)])
    weights = Weights()
    found = []
    for step in range(STEPS):
        first = step * BATCH % EXAMPLES
        loss = functional.cross_entropy(forward(weights, images[first:first + BATCH]), labels[first:first + BATCH])
        found.append(loss.item())
        tensors = [w for w in weights.tensors if w.requires_grad]
        for w, g in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
            w.data -= RATE * g
    weights.training = False
    with torch.no_grad():
        evaluation = functional.cross_entropy(forward(weights, images), labels).item()
    return {"losses": found, "evaluation": evaluation}


if __name__ == "__main__":
    sys.exit(compare_or_write(FIGURES, f"PyTorch {torch.__version__}", figures, 1e-9, is_relative=True))

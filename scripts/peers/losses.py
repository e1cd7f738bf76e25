"""The losses of a small network in PyTorch, trained with each loss function for 100 steps of SGD from given weights.

  FOLDER/bin/python scripts/peers/losses.py           compares tests/unit/lib/nn/loss_figures.json with PyTorch
  FOLDER/bin/python scripts/peers/losses.py --write   writes it

The unit test `losses follow PyTorch` compares Lockstep with the same file, always. Weights, examples and targets are
formulas of their index in Lockstep's layouts: weights [input, output], examples [example, feature]. PyTorch computes in
float64.
"""

import sys
from pathlib import Path

import torch
from figures import compare_or_write
from networks import wave
from torch.nn import functional

FIGURES = Path(__file__).resolve().parents[2] / "tests/unit/lib/nn/loss_figures.json"
STEPS, BATCH, EXAMPLES = 100, 8, 24
FEATURES, HIDDEN, OUTPUTS = 4, 5, 3
RATE = 0.1

I = torch.arange(EXAMPLES)
LABELS = (I * I + I // 5) % OUTPUTS
ONE_HOT = functional.one_hot(LABELS, OUTPUTS).double()
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
SAMPLE_WEIGHTS = ((I * I + 3) % 5).double() / 4  # some are 0
VALUES = wave(EXAMPLES * OUTPUTS, 0.5, 1).reshape(EXAMPLES, OUTPUTS)
J = torch.arange(EXAMPLES * OUTPUTS)
FLAGS = ((J * J + J // 4) % 3 == 0).double().reshape(EXAMPLES, OUTPUTS)

# The name in Lockstep's checkpoints, and the loss of each of the rows.
LOSSES = {
    "softmax cross-entropy": lambda z, rows: functional.cross_entropy(z, LABELS[rows], reduction="none"),
    "softmax cross-entropy, smoothing 0.1":
        lambda z, rows: functional.cross_entropy(z, LABELS[rows], reduction="none", label_smoothing=0.1),
    "mean squared error": lambda z, rows: functional.mse_loss(z, ONE_HOT[rows], reduction="none").mean(1),
    "binary cross-entropy":
        lambda z, rows: functional.binary_cross_entropy_with_logits(z, FLAGS[rows], reduction="none").mean(1),
    "mean squared error of values": lambda z, rows: functional.mse_loss(z, VALUES[rows], reduction="none").mean(1),
    "mean absolute error of values": lambda z, rows: functional.l1_loss(z, VALUES[rows], reduction="none").mean(1),
    "huber loss of values, delta 0.25":
        lambda z, rows: functional.huber_loss(z, VALUES[rows], reduction="none", delta=0.25).mean(1),
}

# The same with weights: the mean is divided by the sum of the weights, that of classes by PyTorch itself.
WEIGHTED = {
    "softmax cross-entropy | class weights":
        lambda z, rows: functional.cross_entropy(z, LABELS[rows], weight=CLASS_WEIGHTS),
    "softmax cross-entropy | sample weights": lambda z, rows: weighted("softmax cross-entropy", z, rows),
    "softmax cross-entropy | class weights, sample weights":
        lambda z, rows: weighted("softmax cross-entropy", z, rows, CLASS_WEIGHTS[LABELS[rows]]),
    "binary cross-entropy | sample weights": lambda z, rows: weighted("binary cross-entropy", z, rows),
    "huber loss of values, delta 0.25 | sample weights":
        lambda z, rows: weighted("huber loss of values, delta 0.25", z, rows),
}


def weighted(name, z, rows, factors=1.0):
    weights = SAMPLE_WEIGHTS[rows] * factors
    return (LOSSES[name](z, rows) * weights).sum() / weights.sum()


def trajectory(loss):
    weights = [wave(torch.Size(shape).numel(), 0.7 * t, 0.3).reshape(shape).requires_grad_()
               for t, shape in enumerate(((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS), (OUTPUTS,)))]
    x = wave(EXAMPLES * FEATURES, 0.1, 1).reshape(EXAMPLES, FEATURES)
    optimizer = torch.optim.SGD(weights, lr=RATE)
    losses = []
    for step in range(STEPS):
        first = step * BATCH % EXAMPLES
        rows = slice(first, first + BATCH)
        z = torch.relu(x[rows] @ weights[0] + weights[1]) @ weights[2] + weights[3]
        mean = loss(z, rows).mean()
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        losses.append(mean.item())
    return losses


def figures():
    return {name: trajectory(loss) for name, loss in (LOSSES | WEIGHTED).items()}


if __name__ == "__main__":
    sys.exit(compare_or_write(FIGURES, f"PyTorch {torch.__version__}", figures, 1e-12, is_relative=True, in_rows=2))

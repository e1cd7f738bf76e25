"""A small network in PyTorch with given weights: its prediction of each image, also as figures for a test.

  FOLDER/bin/python scripts/peers/initial_weights.py           compares tests/end_to_end/torch_figures.json with PyTorch
  FOLDER/bin/python scripts/peers/initial_weights.py --write   writes it

tests/end_to_end/init_test.py writes the same weights to a safetensors file, in the shapes of the state_dict() that are
recorded, and compares what Lockstep predicts with `--init-layout pytorch`. Weights are formulas of their index in
PyTorch's order; images those of files.images().
"""

import sys
from pathlib import Path

import torch
from figures import compare_or_write
from torch import nn

FIGURES = Path(__file__).resolve().parents[2] / "tests/end_to_end/torch_figures.json"
SIDE, IMAGES, CLASSES = 6, 10, 10


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 3, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.fc = nn.Linear(27, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.fc(self.body(self.stem(x))).relu())


def fill(number, tensor, start):
    """start + 0.4 sin(1.3 i + number), in the order of the elements."""
    i = torch.arange(tensor.numel(), dtype=torch.float64)
    tensor.copy_((start + 0.4 * torch.sin(1.3 * i + number)).float().reshape(tensor.shape))


def figures():
    network = Network()
    shapes = {}
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            shapes[name] = list(tensor.shape)
            if name.endswith("num_batches_tracked"):
                continue
            fill(len(shapes), tensor, 1.0 if name in ("stem.1.weight", "stem.1.running_var") else 0.0)
        network.double().eval()
        pixels = torch.arange(IMAGES * SIDE * SIDE) * 37 % 256
        probabilities = network(pixels.double().reshape(IMAGES, 1, SIDE, SIDE) / 255).softmax(1)
    best = probabilities.max(1)
    return {"shapes": shapes, "labels": best.indices.tolist(), "probabilities": best.values.tolist()}


if __name__ == "__main__":
    sys.exit(compare_or_write(FIGURES, f"PyTorch {torch.__version__}", figures, 1e-9, is_relative=True))

"""Optimizers, schedules and clipping of PyTorch on a small problem, step by step for 100 steps.

  FOLDER/bin/python scripts/peers/optimizers.py           compares tests/unit/lib/optim/optimizer_figures.json with PyTorch
  FOLDER/bin/python scripts/peers/optimizers.py --write   writes it

The unit test `optimizers follow PyTorch` compares Lockstep with the same file, always. LARS and LAMB are not part of
PyTorch: their formulas of the papers are written here with its operations.
"""

import math
import sys
from pathlib import Path

import torch
from figures import compare_or_write

FIGURES = Path(__file__).resolve().parents[2] / "tests/unit/lib/optim/optimizer_figures.json"
STEPS = 100
SHOWN = (1, 2, 5, 10, 20, 50, 100)  # steps whose weights are recorded
ROWS, COLS = 3, 4  # of a matrix, which a vector of COLS follows


def start():
    w = torch.tensor([((3 * i) % 7 - 3) / 8 for i in range(ROWS * COLS + COLS)])
    return w[:ROWS * COLS].clone(), w[ROWS * COLS:].clone()


def gradient(w, first, step):
    """a (w - b), with a and b that change with the step; of the elements from `first` on."""
    i = torch.arange(first, first + len(w))
    a = 0.5 + 0.1 * i
    b = ((7 * i + step) % 5 - 2) / 4
    return (a * (w.detach() - b)).to(torch.float32)


def schedule(kind, warmup=0, last=0.0, decay=0.1, every=1):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        done = min(1, (step - warmup) / (STEPS - warmup))
        return {"constant": 1, "linear": 1 - (1 - last) * done,
                "cosine": last + (1 - last) * (1 + math.cos(math.pi * done)) / 2,
                "step": decay ** ((step - warmup) // every),
                "exponential": decay ** ((step - warmup) / every)}[kind]
    return factor


class Layerwise(torch.optim.Optimizer):
    """LARS (arXiv:1708.03888, with PyTorch's order of momentum) and LAMB (arXiv:1904.00962)."""

    def __init__(self, groups, name, lr, momentum=0.9, trust=1e-3, betas=(0.9, 0.999), eps=1e-7):
        self.name, self.momentum, self.trust, self.betas, self.eps = name, momentum, trust, betas, eps
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group, is_vector in zip(self.param_groups, (False, True)):
            for w in group["params"]:
                state, decay, g = self.state[w], group["weight_decay"], w.grad
                if self.name == "lars":
                    ratio = 1.0
                    if not is_vector and w.norm() > 0 and g.norm() > 0:
                        ratio = self.trust * w.norm() / (g.norm() + decay * w.norm())
                    b = state.setdefault("b", torch.zeros_like(w))
                    b.mul_(self.momentum).add_(group["lr"] * ratio * (g + decay * w))
                    w.sub_(b)
                    continue
                m = state.setdefault("m", torch.zeros_like(w))
                v = state.setdefault("v", torch.zeros_like(w))
                t = state["t"] = state.get("t", 0) + 1
                m.mul_(self.betas[0]).add_((1 - self.betas[0]) * g)
                v.mul_(self.betas[1]).add_((1 - self.betas[1]) * g * g)
                r = m / (1 - self.betas[0]**t) / ((v / (1 - self.betas[1]**t)).sqrt() + self.eps) + decay * w
                ratio = 1.0
                if not is_vector and w.norm() > 0 and r.norm() > 0:
                    ratio = w.norm() / r.norm()
                w.sub_(group["lr"] * ratio * r)


# What is asked for, in the names of OptimizerOptions and Schedule.
CASES = [
    {"kind": "sgd", "learning_rate": 0.05},
    {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.01},
    {"kind": "sgd", "learning_rate": 0.02, "momentum": 0.9, "nesterov": True, "clip_value": 0.25},
    {"kind": "sgd", "learning_rate": 0.1, "clip_norm": 0.5, "schedule": {"kind": "step", "decay": 0.5, "every": 25}},
    {"kind": "adam", "learning_rate": 0.01},
    {"kind": "adam", "learning_rate": 0.01, "weight_decay": 0.1, "schedule": {"kind": "linear", "warmup": 10}},
    {"kind": "adam", "learning_rate": 0.02, "clip_norm": 1.0,
     "schedule": {"kind": "exponential", "decay": 0.5, "every": 30}},
    {"kind": "adamw", "learning_rate": 0.01, "weight_decay": 0.05,
     "schedule": {"kind": "cosine", "warmup": 7, "last": 0.1}},
    {"kind": "adamw", "learning_rate": 0.02, "weight_decay": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
    {"kind": "lamb", "learning_rate": 0.02, "weight_decay": 0.01},
    {"kind": "lamb", "learning_rate": 0.02, "clip_norm": 0.5, "schedule": {"kind": "cosine", "warmup": 5}},
    {"kind": "lars", "learning_rate": 0.1, "momentum": 0.8, "trust": 0.1, "weight_decay": 0.01,
     "schedule": {"kind": "linear", "warmup": 3, "last": 0.2}},
]


def optimizer_of(case, groups):
    lr = case["learning_rate"]
    betas, eps = (case.get("beta1", 0.9), case.get("beta2", 0.999)), case.get("epsilon", 1e-7)
    if case["kind"] == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=case.get("momentum", 0), nesterov=case.get("nesterov", False))
    if case["kind"] == "adam":
        return torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps)
    if case["kind"] == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)
    return Layerwise(groups, case["kind"], lr, case.get("momentum", 0.9), case.get("trust", 1e-3), betas, eps)


def trajectory(case):
    matrix, vector = (torch.nn.Parameter(w) for w in start())
    decay = case.get("weight_decay", 0.0)
    groups = [{"params": [matrix], "weight_decay": decay}, {"params": [vector], "weight_decay": 0.0}]
    optimizer = optimizer_of(case, groups)
    factor = schedule(**{"kind": "constant"} | case.get("schedule", {}))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    shown = {}
    for step in range(STEPS):
        matrix.grad, vector.grad = gradient(matrix, 0, step), gradient(vector, ROWS * COLS, step)
        if "clip_norm" in case:
            torch.nn.utils.clip_grad_norm_([matrix, vector], case["clip_norm"])
        if "clip_value" in case:
            torch.nn.utils.clip_grad_value_([matrix, vector], case["clip_value"])
        optimizer.step()
        scheduler.step()
        if step + 1 in SHOWN:
            shown[str(step + 1)] = [round(float(x), 9) for x in torch.cat([matrix, vector]).detach()]
    return shown


def figures():
    return [case | {"weights": trajectory(case)} for case in CASES]


if __name__ == "__main__":
    sys.exit(compare_or_write(FIGURES, f"PyTorch {torch.__version__}", figures, 2e-6, in_rows=4))

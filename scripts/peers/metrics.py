"""Figures of evaluations by scikit-learn, of outputs and targets that are formulas of their index.

  FOLDER/bin/python scripts/peers/metrics.py           compares tests/unit/lib/train/metric_figures.json with scikit-learn
  FOLDER/bin/python scripts/peers/metrics.py --write   writes it

The unit test `evaluations have the figures of scikit-learn` compares Lockstep with the same file, always, on several
ranks. Outputs are float32; scikit-learn computes in float64.
"""

import sys
from pathlib import Path

import numpy as np
import sklearn
from figures import compare_or_write
from sklearn import metrics

FIGURES = Path(__file__).resolve().parents[2] / "tests/unit/lib/train/metric_figures.json"
EXAMPLES, OUTPUTS = 60, 4

I = np.arange(EXAMPLES)
LABELS = (I * I + I // 5) % OUTPUTS
J = np.arange(EXAMPLES * OUTPUTS)
FLAGS = ((J * J + J // 7) % 3 == 0).astype(int).reshape(EXAMPLES, OUTPUTS)


def wave(count, phase, scale):
    """scale * sin(1.3 i + phase) of i below count, rounded to float32."""
    return (scale * np.sin(1.3 * np.arange(count) + phase)).astype(np.float32)


def outputs(phase, raised):
    """[EXAMPLES, OUTPUTS]: higher by 1.5 where `raised`, but for every third example."""
    z = wave(EXAMPLES * OUTPUTS, phase, 2).reshape(EXAMPLES, OUTPUTS)
    return (z + np.float32(1.5) * (raised * (I % 3 > 0)[:, None])).astype(np.float32).astype(float)


def of_classes(classes):
    labels = LABELS % classes
    z = outputs(0.4, np.eye(OUTPUTS)[labels])[:, :classes]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    precision, recall, f1, examples = metrics.precision_recall_fscore_support(labels, z.argmax(1))
    auc = metrics.roc_auc_score(labels, p[:, 1] if classes == 2 else p, multi_class="ovr")
    top = {"top-2": metrics.top_k_accuracy_score(labels, z, k=2)} if classes > 2 else {}
    return top | {"accuracy": metrics.accuracy_score(labels, z.argmax(1)), "auc": auc,
                  "loss": metrics.log_loss(labels, p),
                  "confusion": metrics.confusion_matrix(labels, z.argmax(1)).ravel().tolist(),
                  "precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist(),
                  "examples": examples.tolist()}


def of_flags():
    z = outputs(0.9, FLAGS)
    precision, recall, f1, examples = metrics.precision_recall_fscore_support(FLAGS, z > 0)
    return {"accuracy": metrics.accuracy_score(FLAGS, z > 0), "auc": metrics.roc_auc_score(FLAGS, z),
            "precision": precision.tolist(), "recall": recall.tolist(), "f1": f1.tolist(), "examples": examples.tolist()}


def of_values():
    values = wave(EXAMPLES * OUTPUTS, 0.5, 1).reshape(EXAMPLES, OUTPUTS).astype(float)
    z = values + wave(EXAMPLES * OUTPUTS, 0.1, 0.4).reshape(EXAMPLES, OUTPUTS).astype(float)
    z = z.astype(np.float32).astype(float)
    return {"r2": metrics.r2_score(values, z), "rmse": metrics.root_mean_squared_error(values, z, multioutput="raw_values").tolist(),
            "loss": metrics.mean_squared_error(values, z), "r2 of each": metrics.r2_score(values, z, multioutput="raw_values").tolist()}


def figures():
    return {"classes": of_classes(OUTPUTS), "two classes": of_classes(2), "flags": of_flags(), "values": of_values()}


if __name__ == "__main__":
    sys.exit(compare_or_write(FIGURES, f"scikit-learn {sklearn.__version__}", figures, 1e-12))

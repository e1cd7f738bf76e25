"""Reads IDX files, for the peers."""
import gzip
import os

import numpy as np


def idx(folder, stem):
    """The array in FOLDER/STEM*, gzip-compressed or not."""
    name = min(n for n in os.listdir(folder) if n.startswith(stem))
    path = os.path.join(folder, name)
    raw = (gzip.open if name.endswith(".gz") else open)(path, "rb").read()
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)

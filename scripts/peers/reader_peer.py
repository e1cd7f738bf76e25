"""Reads one file of records batch by batch, as each library's own guide would have it.

  reader_peer.py WAY FILE [--batch-size 128] [--shuffle] [--features 784]

Features arrive as float32 divided by 255, labels as integers, in batches that are dropped. The last
line of the output is JSON: records, seconds from opening to the end of the first epoch, and seconds
of the second epoch.
"""
import argparse
import json
import os
import pathlib
import time

import numpy as np


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--features", type=int, default=784)
    return parser.parse_args()


def tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow
    return tensorflow


def tfdata_tfrecord(a):
    """TFRecordDataset, batch, then one parse_example for the whole batch: the fastest order."""
    tf = tensorflow()
    features = {"image": tf.io.FixedLenFeature([], tf.string),
                "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(batch):
        found = tf.io.parse_example(batch, features)
        return tf.cast(tf.io.decode_raw(found["image"], tf.uint8), tf.float32) / 255, found["label"]

    records = tf.data.TFRecordDataset(str(a.file))
    return tfdata(records, parse, a)


def tfdata_csv(a):
    """TextLineDataset, batch, then one decode_csv for the whole batch."""
    tf = tensorflow()
    defaults = [tf.constant([], tf.int64)] + [tf.constant([], tf.float32)] * a.features

    def parse(lines):
        label, *columns = tf.io.decode_csv(lines, defaults)
        return tf.stack(columns, axis=1) / 255, label

    return tfdata(tf.data.TextLineDataset(str(a.file)).skip(1), parse, a)


def tfdata_csvdataset(a):
    """CsvDataset, a record at a time."""
    tf = tensorflow()
    types = [tf.int64] + [tf.float32] * a.features
    rows = tf.data.experimental.CsvDataset(str(a.file), types, header=True)
    rows = rows.batch(a.batch_size)
    return lambda: rows.map(lambda label, *columns: (tf.stack(columns, axis=1) / 255, label),
                            num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def tfdata(records, parse, a):
    auto = tensorflow().data.AUTOTUNE
    if a.shuffle:
        records = records.shuffle(10_000)
    dataset = records.batch(a.batch_size).map(parse, num_parallel_calls=auto).prefetch(auto)
    return lambda: dataset


def arrays(a):
    """Images and labels of an NPY pair, the images mapped into memory."""
    return (np.load(a.file, mmap_mode="r"),
            np.load(str(a.file).replace("images", "labels")).astype(np.int64))


def numpy_npy(a):
    """Slices of a mapped array; every batch by fancy indices where shuffled."""
    x, y = arrays(a)

    def epoch():
        order = np.random.permutation(len(x)) if a.shuffle else None
        for at in range(0, len(x), a.batch_size):
            rows = slice(at, at + a.batch_size) if order is None else order[at:at + a.batch_size]
            yield x[rows].reshape(-1, a.features).astype(np.float32) / np.float32(255), y[rows]
    return epoch


def numpy_csv(a):
    """loadtxt in pieces of one batch: NumPy's parser, in C."""
    def epoch():
        with open(a.file) as lines:
            next(lines)
            while True:
                rows = np.loadtxt(lines, np.float32, delimiter=",", max_rows=a.batch_size, ndmin=2)
                if len(rows) > 0:
                    yield rows[:, 1:] / np.float32(255), rows[:, 0].astype(np.int64)
                if len(rows) < a.batch_size:
                    return
    import warnings
    warnings.filterwarnings("ignore", "loadtxt: input contained no data")
    return epoch


def torch_npy(a):
    """DataLoader over a map-style Dataset of a mapped array, with a worker a core."""
    import torch

    class Images(torch.utils.data.Dataset):
        x, y = arrays(a)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return self.x[i].reshape(-1).astype(np.float32) / np.float32(255), self.y[i]

    loader = torch.utils.data.DataLoader(Images(), a.batch_size, shuffle=a.shuffle,
                                         num_workers=len(os.sched_getaffinity(0)),
                                         persistent_workers=True)
    return lambda: loader


WAYS = {"tfdata-tfrecord": tfdata_tfrecord, "tfdata-csv": tfdata_csv,
        "tfdata-csvdataset": tfdata_csvdataset, "numpy-npy": numpy_npy, "numpy-csv": numpy_csv,
        "torch-npy": torch_npy}


def main():
    a = arguments()
    if a.way.startswith("tfdata"):
        tensorflow()
    elif a.way.startswith("torch"):
        import torch  # noqa: F401, so that its import is not timed
    marks, records = [time.perf_counter()], 0
    epoch = WAYS[a.way](a)
    for _ in range(2):
        records = sum(len(labels) for _, labels in epoch())
        marks.append(time.perf_counter())
    print(json.dumps({"records": records, "first": marks[1] - marks[0],
                      "second": marks[2] - marks[1]}))


if __name__ == "__main__":
    main()

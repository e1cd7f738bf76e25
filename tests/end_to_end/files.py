"""Writes IDX files and reads safetensors, by the formats' own definitions."""

import ctypes
import gzip
import json
import struct

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(values, dims, magic=None):
    """An IDX file of bytes; `dims` stand in the header whether they fit or not."""
    return struct.pack(f">{1 + len(dims)}I", magic or 0x800 + len(dims), *dims) + bytes(values)


def images(count, side=4):
    return idx((i * 37 % 256 for i in range(count * side * side)), (count, side, side))


def labels(count, classes=10):
    return idx((i % classes for i in range(count)), (count,))


def write_set(folder, train=20, test=10, side=4, zipped=False):
    """A data folder with `train` and `test` images of side x side."""
    folder.mkdir(parents=True)
    for names, count in ((TRAIN, train), (TEST, test)):
        for name, content in zip(names, (images(count, side), labels(count))):
            if zipped:
                name, content = name + ".gz", gzip.compress(content)
            (folder / name).write_bytes(content)
    return folder


def write_signed(path, content):
    """Changes a file of a checkpoint, and what manifest.json says of it: the reader's own checks remain."""
    path.write_bytes(content)
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["files"][path.name] = {"bytes": len(content),
                                    "xxh3": f"{xxh3(content, ctypes.c_size_t(len(content))):016x}"}
    (path.parent / "manifest.json").write_text(json.dumps(manifest))


def read_safetensors(path):
    """{name: (shape, floats)}; raises ValueError where the file is not whole."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    body = raw[8 + length:]
    tensors, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        count = 1
        for size in entry["shape"]:
            count *= size
        if entry["dtype"] != "F32" or begin != at or end - begin != 4 * count:
            raise ValueError(f"{path}: {name} is {entry}, expected to begin at {at}")
        at = end
        tensors[name] = (entry["shape"], struct.unpack_from(f"<{count}f", body, begin))
    if at != len(body):
        raise ValueError(f"{path}: {len(body)} bytes behind the header, {at} described")
    return tensors

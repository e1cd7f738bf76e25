"""Writes IDX, PNG and TFRecord files, writes and reads safetensors, by the formats' own definitions."""

import ctypes
import gzip
import json
import struct
import zlib

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


def png(pixels, rows, columns, channels=1, bits=8):
    """A PNG file of gray (1), gray with alpha (2), RGB (3) or RGBA (4); rows without filter."""
    def chunk(name, content):
        return (struct.pack(">I", len(content)) + name + content
                + struct.pack(">I", zlib.crc32(name + content)))

    width = columns * channels * bits // 8
    raw = b"".join(b"\0" + bytes(pixels[row * width:(row + 1) * width]) for row in range(rows))
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, bits, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(raw, 1)) + chunk(b"IEND", b""))


def read_idx(images_path, labels_path):
    """[(pixels, label)] and (rows, columns) of a pair of IDX files."""
    raw, labelled = images_path.read_bytes(), labels_path.read_bytes()
    count, rows, columns = struct.unpack_from(">3I", raw, 4)
    size = rows * columns
    return [(raw[16 + i * size:16 + (i + 1) * size], labelled[8 + i]) for i in range(count)], (rows, columns)


def write_signed(path, content):
    """Changes a file of a checkpoint, and what manifest.json says of it: the reader's own checks remain."""
    path.write_bytes(content)
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype = ctypes.c_uint64
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["files"][path.name] = {"bytes": len(content),
                                    "xxh3": f"{xxh3(content, ctypes.c_size_t(len(content))):016x}"}
    (path.parent / "manifest.json").write_text(json.dumps(manifest))


def safetensors(tensors):
    """A file of {name: (type, shape, bytes)}."""
    header, at = {}, 0
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


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


# TFRecord.

def crc32c(data):
    """CRC-32C bit by bit, from its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number):
    out = b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def tfrecord_example(**features):
    """tf.train.Example as TensorFlow serialises it: entries of the map in the keys' order. A list of bytes, floats or
    whole numbers for each name."""
    def feature(values):
        if isinstance(values[0], bytes):
            return field(1, b"".join(field(1, value) for value in values))
        if isinstance(values[0], float):
            return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        return field(3, field(1, b"".join(varint(value % 2**64) for value in values)))

    entries = (field(1, field(1, name.encode()) + field(2, feature(features[name]))) for name in sorted(features))
    return field(1, b"".join(entries))


def tfrecord(payloads):
    """A TFRecord file."""
    out = b""
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        out += (length + struct.pack("<I", masked(length)) + payload
                + struct.pack("<I", masked(payload)))
    return out

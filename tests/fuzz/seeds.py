"""Writes small good files of a format as the seeds of its fuzz target: seeds.py FORMAT FOLDER."""

import gzip
import struct
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "end_to_end"))
import files  # noqa: E402
from pictures_test import CMYK_JPEG, GRAY_JPEG, RGB_JPEG  # noqa: E402


def npy(descr, shape, payload, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + payload


def pair(images, labels):
    return struct.pack("<H", len(images)) + images + labels


def seeds(name):
    if name == "idx":
        yield pair(files.images(5), files.labels(5))
        yield pair(gzip.compress(files.images(5)), files.labels(5))
    elif name == "csv":
        yield b"label,a,b\n1,2,3.5\n0,-1e3,7\n"
        yield b'\xef\xbb\xbf"a ""x""",label\r\n"1",2\r\n\r\n'
        yield gzip.compress(b"a,label\n1,2\n")
    elif name == "npy":
        labels = npy("<i8", "(2,)", struct.pack("<2q", 1, 2))
        yield pair(npy("|u1", "(2, 3)", bytes(6)), labels)
        yield pair(npy(">f4", "(2, 1)", struct.pack(">2f", 1, 2), 2), labels)
        yield pair(npy("<f8", "(2, 1)", struct.pack("<2d", 1, 2)), npy("|u1", "(2, 1)", b"\1\2"))
    elif name == "tfrecord":
        examples = [files.tfrecord_example(image=[b"abc"], label=[1]), files.tfrecord_example(image=[b"def"], label=[2])]
        yield files.tfrecord(examples)
        yield gzip.compress(files.tfrecord(examples[:1]))
        yield b"\0" + examples[0] + files.field(2, b"unknown")
        yield b"\0" + files.tfrecord_example(image=[0.5, 2.0], label=[7])
        unpacked = files.field(1, b"label") + files.field(2, files.field(3, b"\x08\x07"))  # a number without its list
        yield b"\0" + files.field(1, files.field(1, unpacked))
    elif name == "cifar":
        yield b"\7" + bytes(3072)
    elif name == "picture":
        for channels in (1, 2, 3, 4):
            yield files.png(bytes(range(5 * 7 * channels)), 5, 7, channels)
        yield files.png(bytes(60), 5, 2, 3, bits=16)
        yield from (RGB_JPEG, GRAY_JPEG, CMYK_JPEG)
    else:
        yield gzip.compress(b"some text" * 9)
        yield gzip.compress(b"one") + gzip.compress(b"two")
        yield zlib.compress(b"text", wbits=31, level=0)


def main(name, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for index, content in enumerate(seeds(name)):
        (folder / f"seed-{index}").write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])

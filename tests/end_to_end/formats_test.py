"""The same records in every format and number of files train to the same weights; NumPy agrees."""

import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import command
import files
from command import run

FORMATS = ("idx", "csv", "npy", "tfrecord")
LIMITS = "--train-limit 1500 --test-limit 300"
TRAIN = "--layers 24 --epochs 1 --progress off"


def python_with_numpy():
    """Debian's interpreter has Debian's NumPy; another one in front of it may have none."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False)
        if probe.returncode == 0:
            return python
    return None


NUMPY = python_with_numpy()


def tfrecord(records):
    return files.tfrecord(files.tfrecord_example(image=[pixels], label=[label]) for pixels, label in records)


class Formats(command.CommandTest):
    shared = None  # a folder with the sets, made by the first test that needs them

    @classmethod
    def tearDownClass(cls):
        if cls.shared:
            shutil.rmtree(cls.shared, ignore_errors=True)
        super().tearDownClass()

    def make_sets(self):
        names = [f"{name}-{count}" for name in FORMATS for count in (1, 16)]
        if not Formats.shared:
            Formats.shared = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
            self.succeed("generate", self.shared / "drawn", LIMITS)
            for name in names:
                form, count = name.split("-")
                self.succeed("convert", self.shared / "drawn", self.shared / name,
                             f"--format {form} --files {count}")
        return {name: self.shared / name for name in ("drawn", *names)}

    @staticmethod
    def flags(name):
        return "--divide-by 255" if "csv" in name else ""

    def trained(self, name, data, **options):
        return self.train(TRAIN, "--data", data, self.flags(name), name=f"run-{name}", **options)

    def test_all_formats_and_files_train_to_the_same_weights(self):
        sets = self.make_sets()
        hashes, read = {}, {}
        ranks = 1
        for name, data in sets.items():
            made = self.trained(name, data, **({"threads": ranks} if ranks > 1 else {}))
            hashes[f"{name} on {ranks}"] = made.summary["weights_hash"]
            read[name] = made.summary["data"]["bytes_read"]
            self.assertEqual(len(read[name]), ranks)
            ranks = ranks % 3 + 1
        for name in FORMATS:
            for threads in (2, 3):
                key = f"{name}-16"
                made = self.trained(f"{key}-{threads}", sets[key], threads=threads)
                hashes[f"{key} on {threads} threads"] = made.summary["weights_hash"]
        made = self.trained("tfrecord-mpi", sets["tfrecord-16"], ranks=2)
        hashes["tfrecord-16 under mpirun"] = made.summary["weights_hash"]
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        by_file = {}  # 16 files of 93 or 94 records: 6, 5 and 5 a rank
        for name in FORMATS:
            made = self.train(TRAIN, "--shard-policy file --batch-size 96 --data", sets[f"{name}-16"], self.flags(name),
                              name=f"run-{name}-by-file", ranks=3)
            by_file.setdefault((made.summary["weights_hash"], made.summary["plan_digest"]), []).append(name)
            self.assertEqual(made.summary["examples"], 1500)
        self.assertEqual(len(by_file), 1, by_file)

    def test_each_rank_reads_its_own_records(self):
        sets = self.make_sets()
        for name, record in (("drawn", 784), ("npy-1", 784), ("idx-16", 784), ("tfrecord-1", None),
                             ("csv-16", None)):
            with self.subTest(name=name):
                alone = self.trained(f"{name}-1", sets[name]).summary["data"]["bytes_read"]
                two = self.trained(f"{name}-2", sets[name], threads=2)
                two = two.summary["data"]["bytes_read"]
                if record:
                    self.assertEqual(alone, [1500 * record])
                self.assertEqual(sum(two), alone[0])
                self.assertLess(abs(two[0] - two[1]), 0.15 * alone[0])
        spoken = TRAIN.replace("--progress off", "--progress lines")
        made = self.train(spoken, "--data", sets["idx-1"], name="spoken", threads=2)
        self.assertEqual(made.summary["data"]["bytes_read"], [589568, 586432])
        self.assert_says(made.result.out, "each rank read 586.4 kB to 589.6 kB of training data",
                         made.result)

    def test_a_pattern_is_what_the_shell_would_give(self):
        sets = self.make_sets()
        by_folder = self.trained("by-folder", sets["npy-16"]).summary["weights_hash"]
        by_pattern = self.trained("by-pattern", f"{sets['npy-16']}/t*.npy")
        self.assertEqual(by_pattern.summary["weights_hash"], by_folder)
        result = run("train --data", f"{self.folder}/nothing*", "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["nothing*", "no file matches"])

    def test_compressed_files_train_to_the_same_weights(self):
        sets = self.make_sets()
        for name in ("csv-1", "npy-1", "tfrecord-16"):
            with self.subTest(name=name):
                plain = self.trained(name, sets[name]).summary["weights_hash"]
                zipped = self.folder / f"{name}-zipped"
                zipped.mkdir()
                for path in sets[name].iterdir():
                    (zipped / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
                packed = self.trained(f"{name}-gz", zipped, threads=2)
                self.assertEqual(packed.summary["weights_hash"], plain)

    def test_conversion_gives_back_the_same_files(self):
        idx = self.folder / "drawn"
        self.succeed("generate", idx, "--train-limit 50 --test-limit 20")
        first = {path.name: path.read_bytes() for path in idx.iterdir()}
        npy, again = self.folder / "npy", self.folder / "again"
        self.succeed("convert", idx, npy, "--format npy --files 7")
        self.succeed("convert", npy, again, "--format idx")
        self.assertEqual({path.name: path.read_bytes() for path in again.iterdir()}, first)
        limited = self.folder / "limited"
        self.succeed("convert", npy, limited, "--format csv --train-limit 9 --test-limit 3")
        self.assertEqual((limited / "train.csv").read_text().count("\n"), 10)
        self.assertEqual((limited / "test.csv").read_text().count("\n"), 4)

    def test_npz_is_a_pair_of_arrays(self):
        sets = self.make_sets()
        expected = self.trained("npz-idx", sets["npy-1"]).summary["weights_hash"]
        content = {name: (sets["npy-1"] / f"{name}.npy").read_bytes()
                   for name in ("train-images", "train-labels", "test-images", "test-labels")}

        def write(name, names, how=zipfile.ZIP_DEFLATED):
            with zipfile.ZipFile(self.folder / name, "w", how) as archive:
                for member, source in names.items():
                    archive.writestr(f"{member}.npy", content[source])
            return self.folder / name

        keras = {"x_train": "train-images", "y_train": "train-labels", "x_test": "test-images",
                 "y_test": "test-labels", "extra": "test-labels"}
        for name, how, options in (("packed.npz", zipfile.ZIP_DEFLATED, {"threads": 2}),
                                   ("stored.npz", zipfile.ZIP_STORED, {})):
            made = self.trained(name, write(name, keras, how), **options)
            self.assertEqual(made.summary["weights_hash"], expected)
        parts = {name: {"X": f"{name}-images", "y": f"{name}-labels"} for name in ("train", "test")}
        (self.folder / "parts").mkdir()
        for name in parts:
            write(f"parts/{name}.npz", parts[name])
        self.assertEqual(self.trained("parts", self.folder / "parts").summary["weights_hash"], expected)
        write("parts/test.npz", {"x_train": "test-images", "y_train": "test-labels"})
        result = run("train", TRAIN, "--data", self.folder / "parts", "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["parts/test.npz: has arrays of the other part only"])
        plain = write("plain.npz", {"X": "train-images", "y": "train-labels"})
        result = run("train", TRAIN, "--data", plain, "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["plain.npz", "no test files", "--test-split 0.2"])
        made = self.train(TRAIN, "--test-split 0.2 --data", plain, name="run-split")
        result = self.succeed("evaluate", made.folder, "--json --data", plain)
        self.assertEqual(json.loads(result.out)["examples"], 1500)
        for name, names, needles in (
                ("lone.npz", {"x_train": "train-images"}, ["lone.npz/x_train.npy", "no labels"]),
                ("twice.npz", keras | {"train_images": "train-images"}, ["both x_train.npy and train_images.npy"]),
                ("mixed.npz", {"X": "train-images", "y": "train-labels", "x_test": "test-images",
                               "y_test": "test-labels"}, ["no arrays of training images and labels", "numpy.savez("]),
                ("other.npz", {"a": "train-images"}, ["no arrays of images and labels, but 'a'"]),
                ("swapped.npz", keras | {"x_train": "train-labels", "y_train": "train-images"},
                 ["swapped.npz/x_train.npy", "exchanged"]),
                ("short.npz", keras | {"y_train": "test-labels"},
                 ["short.npz/y_train.npy", "300 labels", "1500 images", "save arrays of equal length"])):
            with self.subTest(name=name):
                self.assert_refused(run("train --data", write(name, names), "--run-dir", self.folder / "none"),
                                    65, needles)
        result = run("train --data", write("lzma.npz", keras, zipfile.ZIP_LZMA), "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["lzma.npz", "ompression method", "numpy.savez_compressed"])
        damaged = bytearray((self.folder / "stored.npz").read_bytes())
        damaged[len(damaged) // 3] ^= 0xFF  # a pixel
        for content_of, needle in ((damaged, "cannot be decompressed"), (damaged[:-9], "cannot be opened")):
            (self.folder / "damaged.npz").write_bytes(content_of)
            result = run("train --data", self.folder / "damaged.npz", "--run-dir", self.folder / "none",
                         threads=2)
            self.assert_refused(result, 65, ["damaged.npz", needle])

    def test_cifar_has_its_channels_last_here(self):
        folder = self.folder / "cifar"
        folder.mkdir()
        chance = random.Random(7)
        images = [chance.randbytes(3072) for _ in range(50)]
        for name, part in (("data_batch_1.bin", images[:20]), ("data_batch_2.bin", images[20:40]),
                           ("test_batch.bin", images[40:])):
            (folder / name).write_bytes(b"".join(bytes([i % 10]) + image for i, image in enumerate(part)))
        (folder / "batches.meta.txt").write_text("airplane\n")
        self.succeed("convert", folder, self.folder / "npy", "--format npy")
        last = b"".join(bytes(image[c * 1024 + i] for i in range(1024) for c in range(3))
                        for image in images[:40])
        self.assertEqual((self.folder / "npy" / "train-images.npy").read_bytes()[128:], last)
        hashes = {self.trained(f"cifar-{data}-{n}", self.folder / data, threads=n).summary["weights_hash"]
                  for data, n in (("cifar", 1), ("cifar", 3), ("npy", 2))}
        fine = self.folder / "cifar-100"
        fine.mkdir()
        labels = [*range(20), *range(20), *range(10)]
        for name, part in (("train.bin", slice(0, 40)), ("test.bin", slice(40, 50))):
            (fine / name).write_bytes(b"".join(bytes([19, label % 10]) + image
                                               for label, image in zip(labels[part], images[part])))
        hashes.add(self.trained("cifar-100", fine).summary["weights_hash"])
        self.assertEqual(len(hashes), 1)
        with open(fine / "test.bin", "ab") as file:
            file.write(b"x")
        result = run("train --data", fine, "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["test.bin: byte 30740", "3,074", "CIFAR-100"])
        with open(folder / "data_batch_2.bin", "ab") as file:
            file.write(b"x")
        result = run("train --data", folder, "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["data_batch_2.bin: byte 61460", "61,461 bytes", "3,073"])
        (folder / "data_batch_2.bin").write_bytes(b"\xff" + images[0])
        result = run("train --classes 10 --data", folder, "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["data_batch_2.bin: byte 0", "label of record 0 is 255"])

    def test_tfrecord_of_another_writer(self):
        folder = files.write_set(self.folder / "idx", train=40, test=10)
        other = self.folder / "tfrecord"
        self.succeed("convert", folder, other, "--format tfrecord")
        for part, count in (("train", 40), ("test", 10)):
            pixels, labels = files.images(count)[16:], files.labels(count)[8:]
            golden = tfrecord((pixels[16 * i:16 * i + 16], labels[i]) for i in range(count))
            self.assertEqual((other / f"{part}.tfrecord").read_bytes(), golden)

    def test_refusals_of_convert(self):
        folder = files.write_set(self.folder / "idx", train=5, test=3)
        to = self.folder / "to"
        for args, code, needles in (
                ((folder, to), 2, ["--format"]), ((folder,), 2, ["convert"]), ((), 2, ["convert"]),
                ((folder, to, "--format png"), 2, ["png"]),
                ((folder, to, "--format npy --image-size 7"), 2, ["--image-size 7", "not a folder of pictures"]),
                ((folder, to, "--format npy --from-format png"), 2, ["--from-format: 'png' is none of"]),
                ((folder, to, "--format csv --files 0"), 2, ["--files"]),
                ((folder, to, "--format csv --files 4"), 2, ["3 test records", "4 files"]),
                ((folder, folder, "--format csv"), 2, ["already exists"]),
                ((self.folder / "nowhere", to, "--format csv"), 65, ["nowhere"]),
                ((folder, "/proc/x", "--format csv"), 74, ["/proc/x"])):
            with self.subTest(args=args):
                self.assert_refused(run("convert", *args), code, needles)
                self.assertFalse(to.exists(), "a refusal that left something behind")
        for name in "train.npz", "data_batch_1.bin", "test.csv.gz":
            mixed = self.folder / name.split(".")[0]
            mixed.mkdir()
            (mixed / name).write_bytes(b"")
            self.assert_refused(run("convert", folder, mixed, "--format npy"), 2, [name, "already exists"])
        (folder / "train.csv").write_text("label,a\n1,2\n")
        result = run("convert", folder, to, "--format npy")
        self.assert_refused(result, 65, ["two formats", "--from-format"])
        self.succeed("convert", folder, to, "--format npy --from-format idx")

    def test_generate_refuses_more_files_than_records(self):
        to = self.folder / "to"
        result = run("generate", to, "--train-limit 20 --test-limit 5 --files 20")
        self.assert_refused(result, 2, ["5 t10k records", "20 files"])
        self.assertFalse(to.exists())

    def converted(self, data, *args, name="to"):
        """The folder that `convert` writes, and what it prints."""
        to = self.folder / name
        return to, self.succeed("convert", data, to, *args).out

    def table(self):
        """Numbers of two scales, one of them missing at times; words, classes, weights and values to predict."""
        numbers = random.Random(8)
        path = self.folder / "table.csv"
        path.write_text("size,kind,form,note,height,age,w\n" + "".join(
            f"{numbers.gauss(3, 1):.4f},{'dog' if i % 3 else 'cat'},{numbers.choice(['round', 'oval'])},n{i},"
            f"{'' if i % 9 == 4 else round(numbers.gauss(150, 9), 2)},{numbers.random():.3f},{numbers.randint(1, 3)}\n"
            for i in range(150)))
        return path

    def test_conversion_without_a_test_set(self):
        """As train and inspect take it: then a test set may be split off, at once or in training."""
        pairs = {"X": files.images(40)[16:], "y": files.labels(40, 3)[8:]}
        header = "{{'descr': '|u1', 'fortran_order': False, 'shape': {}, }}\n"
        with zipfile.ZipFile(self.folder / "set.npz", "w") as archive:
            for name, shape in (("X", "(40, 4, 4)"), ("y", "(40,)")):
                text = header.format(shape).encode()
                archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + pairs[name])
        idx = files.write_set(self.folder / "idx", train=40)
        for name in files.TEST:
            (idx / name).unlink()
        photos = self.folder / "photos"
        for i in range(20):
            (photos / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            (photos / "ab"[i % 2] / f"{i}.png").write_bytes(files.png(files.images(20)[16 + 16 * i:32 + 16 * i], 4, 4))
        words = self.folder / "words.csv"
        words.write_text("a,word,kind\n" + "".join(f"{i % 7},{'red' if i % 3 else 'blue'},k{i % 2}\n" for i in range(40)))
        for data, flags, own in ((self.folder / "set.npz", "", ""), (idx, "", ""), (photos, "", ""),
                                 (words, "--label-column kind", "--standardize false")):
            for form in ("npy", "tfrecord"):
                with self.subTest(data=data.name, form=form):
                    name = f"{data.stem}-{form}"
                    expected = self.train(TRAIN, "--test-split 0.25 --data", data, flags, own, name=f"run-{name}")
                    expected = expected.summary["weights_hash"]
                    whole, text = self.converted(data, flags, f"--format {form}", name=name)
                    self.assertIn("no test set: --test-split 0.2", text)
                    self.assertEqual({path.name[:5] for path in whole.iterdir()}, {"train"})
                    made = self.train(TRAIN, "--test-split 0.25 --data", whole, name=f"run-{name}-whole")
                    self.assertEqual(made.summary["weights_hash"], expected)
                    parts, text = self.converted(data, flags, f"--format {form} --test-split 0.25 --files 3",
                                                 name=f"{name}-parts")
                    self.assertNotIn("no test set", text)
                    made = self.train(TRAIN, "--data", parts, name=f"run-{name}-parts")
                    self.assertEqual(made.summary["weights_hash"], expected)
        for flags, needles in (("--test-limit 5", ["--test-limit", "no test set", "--test-split 0.2"]),
                               ("--seed 3", ["--seed without --test-split"]),
                               ("--label-column kind", ["--label-column kind", "is not a table"])):
            self.assert_refused(run("convert", idx, self.folder / "none", "--format npy", flags), 2, needles)
        nothing = run("convert", self.folder / "nothing", self.folder / "none", "--format npy")
        self.assert_refused(nothing, 65, ["nothing: no such file or folder", "name a table (`FILE.csv`)"])

    def test_a_table_becomes_numbers(self):
        """Features as training reads them, scaled on request; labels are the numbers of classes."""
        data = self.table()
        flags = "--label-column kind --ignore-columns w --test-split 0.25"
        for scale, train_flags in (("", "--standardize false"), ("--standardize true", "")):
            expected = self.train(TRAIN, "--data", data, flags, train_flags, name=f"run{scale[:5]}").summary["weights_hash"]
            for form in ("npy", "tfrecord"):
                with self.subTest(scale=scale, form=form):
                    name = f"{form}{scale[:5]}"
                    to, text = self.converted(data, flags, scale, f"--format {form}", name=name)
                    for needle in ("labels: 0 'cat', 1 'dog'", "'note' left out (words", "'w' left out (as asked)"):
                        self.assertIn(needle, text)
                    self.assertEqual("--standardize true writes" in text, scale == "")
                    self.assertEqual(self.train(TRAIN, "--data", to, name=f"run-{name}").summary["weights_hash"], expected)
        _, text = self.converted(data, "--label-column kind --train-limit 1 --format npy", name="one")
        self.assertIn("some classes have no record here: train with --classes 2", text)
        to, text = self.converted(data, "--label-column w --ignore-columns kind --classes 4 --format npy", name="numbers")
        self.assertNotIn("labels:", text)  # 1, 2 and 3, as they are
        labels = (to / "train-labels.npy").read_bytes()[128:]
        self.assertEqual(set(struct.unpack("<150i", labels)), {1, 2, 3})
        to = self.folder / "none"
        for flags, needles in (
                ("--label-column age --format npy", ["NPY holds labels, not numbers to predict: 'age'", "--format csv",
                                                     "--task classification"]),
                ("--label-column age,size --format tfrecord", ["TFRecord holds labels", "'age', 'size'", "--format csv"]),
                ("--label-column kind --weight-column w --format idx", ["IDX holds no weights of records: 'w'",
                                                                        "--ignore-columns w in place of --weight-column"]),
                ("--label-column kind --standardize true --format csv", ["--standardize with --format csv", "copied"]),
                ("--label-column kind --missing zero --format csv", ["--missing zero with --format csv", "copied"]),
                ("--label-column kind --format idx", ["IDX holds whole numbers", "a feature of record 0"])):
            with self.subTest(flags=flags):
                self.assert_refused(run("convert", data, to, flags), 2, needles)
                self.assertFalse(to.exists())
        (self.folder / "flags.csv").write_text("a,x,y\n1,0,1\n2,1,1\n3,1,0\n")
        result = run("convert", self.folder / "flags.csv", to, "--label-column x,y --format npy")
        self.assert_refused(result, 2, ["NPY holds one label a record, not several: 'x', 'y'", "--format csv"])
        self.assert_refused(run("convert", data, to, "--format npy"), 65, ["no column is named 'label'", "--label-column"])
        (self.folder / "drawn").mkdir()
        (self.folder / "drawn" / "train.csv").write_text("label,a\n0,1\n5,2\n")
        (self.folder / "drawn" / "test.csv").write_text("label,a\n3,1\n")
        result = run("convert", self.folder / "drawn", to, "--format idx")
        self.assert_refused(result, 65, ["test.csv:2", "'3' is none of the 2 classes", "--classes N"])
        to, _ = self.converted(self.folder / "drawn", "--classes 10 --format idx", name="all-classes")
        self.assertEqual((to / files.TEST[1]).read_bytes(), files.idx([3], (1,)))

    def test_a_table_is_copied_as_csv(self):
        """With words, missing values, weights and values to predict: it trains to the weights of the original."""
        data = self.table()
        for name, flags in (("classes", "--label-column kind --weight-column w"), ("values", "--label-column age,size"),
                            ("limited", "--label-column kind --train-limit 31 --test-limit 7")):
            with self.subTest(name=name):
                split = "--test-split 0.25 --seed 5"
                to, text = self.converted(data, flags, split, "--format csv --files 4", name=name)
                self.assertEqual(len(text.splitlines()), 2, text)
                flags = f"{flags} --ignore-columns note"  # of which the training set has not all words
                expected = self.train(TRAIN, "--data", data, flags, split, name=f"run-{name}").summary
                made = self.train(TRAIN, "--seed 5 --data", to, flags, name=f"run-{name}-copied").summary
                self.assertEqual(made["weights_hash"], expected["weights_hash"])
                self.assertEqual(made["epochs"][-1]["test_loss"], expected["epochs"][-1]["test_loss"])
        whole, _ = self.converted(data, "--label-column kind --format csv", name="whole")
        self.assertEqual((whole / "train.csv").read_bytes(), data.read_bytes())
        less, _ = self.converted(data, "--label-column kind --ignore-columns note,w --format csv --test-split 0.5", name="less")
        lines = data.read_text().splitlines()
        kept = [",".join(line.split(",")[i] for i in (0, 1, 2, 4, 5)) for line in lines]
        copied = [line for part in ("train", "test") for line in (less / f"{part}.csv").read_text().splitlines()]
        self.assertEqual(sorted(copied), sorted([kept[0], *kept]))
        # Files with columns in other orders and other separators, and fields that need quotes.
        mixed = self.folder / "mixed"
        mixed.mkdir()
        (mixed / "train-1.csv").write_text('a;"b, c";kind\n1;"x, y";k\n2;"p ""q""";l\n')
        (mixed / "train-2.csv").write_text('kind;a;"b, c"\nk;3;"x, y"\n')
        (mixed / "test.csv").write_text('more;kind;a;"b, c"\n0;l;4;"x, y"\n')
        to, _ = self.converted(mixed, "--label-column kind --format csv", name="joined")
        self.assertEqual((to / "train.csv").read_text(), 'a,"b, c",kind\n1,"x, y",k\n2,"p ""q""",l\n3,"x, y",k\n')
        self.assertEqual((to / "test.csv").read_text(), 'more,kind,a,"b, c"\n0,l,4,"x, y"\n')
        (self.folder / "bare.csv").write_text("".join(data.read_text().splitlines(keepends=True)[1:]))
        bare, _ = self.converted(self.folder / "bare.csv", "--header none --label-column 2 --format csv", name="bare")
        self.assertEqual((bare / "train.csv").read_bytes(), (self.folder / "bare.csv").read_bytes())

    def test_numbers_do_not_fit_into_idx(self):
        folder = self.folder / "csv"
        folder.mkdir()
        for part in ("train", "test"):
            (folder / f"{part}.csv").write_text("label,a\n1,2.5\n")
        result = run("convert", folder, self.folder / "to", "--format idx")
        self.assert_refused(result, 2, ["2.5", "record 0"])
        self.assertFalse((self.folder / "to").exists())

    def test_unknown_flags_name_the_nearest(self):
        self.assert_refused(run("convert a b --fromat csv"), 2, ["fromat", "--format"])

    def test_what_signals_interrupt_leaves_nothing(self):
        idx, to = self.folder / "idx", self.folder / "to"
        self.succeed("generate", idx)
        for sent in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=sent.name):
                convert = self.start(command.words(command.binary, "convert", idx, to, "--format csv"))
                self.wait_until(lambda: to.is_dir() and list(to.iterdir()), convert, "file")  # without a name yet
                convert.send_signal(sent)
                self.assert_ends(command.finish(convert, 20), -sent)
                self.assertEqual(list(to.iterdir()), [])

    def numpy(self, code):
        done = subprocess.run([NUMPY, "-c", code], capture_output=True, text=True, check=False,
                              cwd=self.folder, env={"PATH": os.environ["PATH"]})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @unittest.skipIf(NUMPY is None, "no NumPy (scripts/install.sh brings python3-numpy)")
    def test_numpy_reads_what_we_write(self):
        idx = self.folder / "drawn"
        self.succeed("generate", idx, "--train-limit 50 --test-limit 20")
        self.succeed("convert", idx, self.folder / "npy", "--format npy")
        self.succeed("convert", idx, self.folder / "csv", "--format csv")
        self.numpy("""
import numpy
raw = numpy.fromfile("drawn/train-images-idx3-ubyte", "u1")[16:].reshape(50, 28, 28)
labels = numpy.fromfile("drawn/train-labels-idx1-ubyte", "u1")[8:]
x, y = numpy.load("npy/train-images.npy"), numpy.load("npy/train-labels.npy")
assert x.dtype == numpy.uint8 and numpy.array_equal(x, raw), x.dtype
assert numpy.array_equal(y, labels), y
table = numpy.genfromtxt("csv/train.csv", delimiter=",", names=True)
assert numpy.array_equal(table["label"], labels)
assert numpy.array_equal(numpy.loadtxt("csv/train.csv", delimiter=",", skiprows=1)[:, 1:],
                         raw.reshape(50, 784))
""")

    @unittest.skipIf(NUMPY is None, "no NumPy (scripts/install.sh brings python3-numpy)")
    def test_we_read_what_numpy_writes(self):
        self.numpy("""
import numpy, os
rng = numpy.random.default_rng(5)
x, y = rng.integers(0, 256, (60, 5, 6)), rng.integers(0, 10, 60)
for name, dtype, labels in (("u1", "u1", "i8"), ("i2", ">i2", "u1"), ("f4", "<f4", ">i4"),
                            ("f8", ">f8", "u8"), ("i8", "i8", "i2")):
    os.mkdir(name)
    for part in ("train", "test"):
        numpy.save(f"{name}/{part}-images.npy", x.astype(dtype))
        numpy.save(f"{name}/{part}-labels.npy", y.astype(labels))
os.mkdir("csv")
for part in ("train", "test"):
    numpy.savetxt(f"csv/{part}.csv", numpy.column_stack([x.reshape(60, 30), y]), fmt="%d",
                  delimiter=",", comments="", header=",".join(f"p{i}" for i in range(30)) + ",label")
numpy.save("fortran.npy", numpy.asfortranarray(x.reshape(60, 30)))
""")
        hashes = {}
        for name in ("u1", "i2", "f4", "f8", "i8", "csv"):
            made = self.train(TRAIN, "--data", self.folder / name, "--divide-by 255",
                              name=f"run-{name}")
            hashes[name] = made.summary["weights_hash"]
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        shutil.copy(self.folder / "fortran.npy", self.folder / "u1" / "train-images.npy")
        result = run("train --data", self.folder / "u1", "--run-dir", self.folder / "none")
        self.assert_refused(result, 65, ["train-images.npy", "byte 10", "ascontiguousarray"])

    def test_damaged_files_end_all_ranks_alike(self):
        folder = files.write_set(self.folder / "idx", train=20, test=10)
        chance = random.Random(3)
        for name, victim in (("csv", "train.csv"), ("npy", "train-images.npy"),
                             ("tfrecord", "test.tfrecord")):
            good = self.folder / name
            self.succeed("convert", folder, good, f"--format {name}")
            whole = (good / victim).read_bytes()
            cut = whole[:chance.randrange(20, len(whole) - 30)]
            at = whole.index(b"\n") + 1 if name == "csv" else 9
            flipped = whole[:at] + b"\xff" + whole[at + 1:]
            cases = [cut, b"", b"\x1f\x8b", flipped, "fifo", "folder", None]
            for case, content in enumerate(cases):
                with self.subTest(name=name, case=case):
                    path = good / victim
                    if path.is_dir():
                        path.rmdir()
                    else:
                        path.unlink()
                    if content == "fifo":
                        os.mkfifo(path)
                    elif content == "folder":
                        path.mkdir()
                    elif content is None:
                        path.symlink_to("nowhere")
                    else:
                        path.write_bytes(content)
                    options = {"ranks": 2} if case == 0 else {"threads": 2}
                    result = run("train --layers 4 --data", good, "--run-dir",
                                 self.folder / "none", **options)
                    self.assert_refused(result, 65, [path, "remedy:"])


if __name__ == "__main__":
    unittest.main()

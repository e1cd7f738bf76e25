"""Bad input ends the command on every rank: soon, with the documented code and one message."""

import gzip
import os
import random
import shutil
import unittest

import command
import files
from command import mpirun, run
from files import TEST, TRAIN, idx, images, labels

ALONE, THREADS, MPI = {}, {"threads": 3}, {"ranks": 2}
HUGE = 0xFFFFFFFF

# What becomes of one file of a good data set, and what the message must name besides the file.
# "+ mpi" in a name: also under mpirun, which takes half a second each.
DAMAGED_FILES = {
    "missing file + mpi": (TRAIN[0], None, []),
    "missing labels": (TEST[1], None, []),
    "empty file": (TRAIN[0], b"", ["is empty", "fetch the file again"]),
    "FIFO + mpi": (TRAIN[0], "fifo", ["FIFO"]),
    "FIFO for labels": (TEST[1], "fifo", ["FIFO"]),
    "folder for a file": (TRAIN[1], "folder", ["folder"]),
    "dangling link": (TRAIN[0], "link", []),
    "cut in the header": (TRAIN[0], images(20)[:10], ["byte 10", "fetch the file again"]),
    "cut in the pixels + mpi": (TRAIN[0], images(20)[:100], ["byte 100", "336", "100"]),
    "cut in the labels": (TEST[1], labels(10)[:12], ["byte 12"]),
    "cut gzip": (TRAIN[0], gzip.compress(images(20))[:60], ["byte", "compressed"]),
    "cut gzip of labels": (TEST[1], gzip.compress(labels(10))[:-6], ["byte", "compressed"]),
    "no more than gzip's magic": (TRAIN[0], b"\x1f\x8b\x08", ["byte", "compressed"]),
    "bytes behind the pixels": (TRAIN[0], images(20) + b"x", ["336", "337"]),
    "bytes behind the gzip": (TRAIN[0], gzip.compress(images(20)) + b"junk", ["byte"]),
    "not IDX": (TRAIN[0], b"<html>not found</html>", ["byte 0", "magic", "0x3c68746d"]),
    "IDX of floats": (TRAIN[0], idx(images(20)[16:], (20, 4, 4), 0xD03), ["magic", "0x00000d03"]),
    "labels for images + mpi": (TRAIN[0], labels(20), ["magic", "exchanged"]),
    "images for labels": (TRAIN[1], images(20), ["magic", "exchanged"]),
    "count too large": (TRAIN[0], idx(images(20)[16:], (21, 4, 4)), ["21 records", "336"]),
    "count too small": (TRAIN[0], idx(images(20)[16:], (19, 4, 4)), ["19 records", "336"]),
    "gzip count too large": (TRAIN[0], gzip.compress(idx(images(20)[16:], (21, 4, 4))), ["byte"]),
    "gzip count too small": (TRAIN[0], gzip.compress(idx(images(20)[16:], (19, 4, 4))), ["byte"]),
    "enormous count": (TRAIN[0], idx(b"", (HUGE, 4, 4)), [str(HUGE)]),
    "enormous images": (TRAIN[0], idx(b"", (HUGE, HUGE, HUGE)), ["byte"]),
    "enormous gzip + mpi": (TRAIN[0], gzip.compress(idx(b"", (HUGE, HUGE, HUGE))), ["byte"]),
    "large gzip": (TRAIN[0], gzip.compress(idx(b"", (HUGE, 28, 28))), ["byte"]),
    "more labels than images": (TRAIN[1], labels(21), ["21 labels", "20 images", TRAIN[0]]),
    "fewer labels than images": (TEST[1], labels(9), ["9 labels", "10 images", TEST[0]]),
    "label out of range + mpi": (TRAIN[1], idx([*range(10), *range(9), 12], (20,)),
                                 ["record 19 has label 12", "no record has label 10", "--classes 13"]),
    "test label out of range": (TEST[1], idx([255] * 10, (10,)),
                                ["record 0 has label 255", "up to 9", "--classes 256"]),
    "no images": (TRAIN[0], images(0), ["0 records"]),
    "no labels": (TEST[1], labels(0), ["0 records"]),
    "images without pixels": (TRAIN[0], idx(b"", (20, 0, 4)), ["0x4"]),
    "other size of test images": (TEST[0], images(10, side=5), ["25", "16", TRAIN[0]]),
}

# A setting of `train` on a good data set, and what the message must name; the code is 2.
SETTINGS = {
    "--batch-size 0 + mpi": ["--batch-size: 0 is less than 1", "remedy: use 1 or more"],
    "--batch-size -5": ["batch-size", "'-5' is not a whole number"],
    "--batch-size 1.5": ["batch-size", "1.5"],
    "--epochs 0": ["epochs"],
    "--steps 0": ["steps"],
    "--train-limit 0": ["train-limit"],
    "--classes 0": ["classes"],
    "--leaf 0": ["leaf"],
    "--ranks 0": ["ranks"],
    "--ranks 100000": ["ranks", "100000"],
    "--threads 0": ["threads"],
    "--threads 100000": ["--threads 100000", "remedy"],
    "--checkpoint-every 0": ["checkpoint-every"],
    "--seed -1": ["seed", "-1"],
    "--layers 0 + mpi": ["layers", "0"],
    "--layers 7,0,5": ["layers", "0 is less than 1"],
    "--layers 7,,5": ["layers", "''"],
    "--layers 1000000,1000000 + mpi": ["layers", "memory"],
    f"--layers {2**31},{2**31}": ["layers", "memory"],
    f"--layers {2**63 - 1},{2**63 - 1}": ["layer 1", "width", "[1, 2147483648]"],
    f"--classes {2**31 - 1}": ["memory"],
    f"--classes {2**31}": ["is more than"],
    "--learning-rate nan + mpi": ["learning-rate", "'nan' is not a finite number above 0"],
    "--learning-rate inf": ["learning-rate", "'inf' is not a finite number above 0"],
    "--learning-rate 1e99": ["learning-rate", "'1e99' is not a finite number above 0"],
    "--learning-rate 1e-99": ["learning-rate", "'1e-99' is not a finite number above 0"],
    "--learning-rate 0": ["learning-rate", "'0' is not a finite number above 0"],
    "--learning-rate -1": ["learning-rate", "'-1' is not a finite number above 0"],
    "--learning-rate fast": ["learning-rate", "'fast' is not a finite number above 0"],
    "--divide-by 0": ["divide-by", "above 0"],
    "--device cuda + mpi": ["device", "cuda", "--device cpu"],
    "--precision tf32": ["precision tf32", "device cpu", "--device cuda"],
    "--precision bf16 --reduction allreduce": ["precision bf16", "device cpu", "library",
                                               "--products strict"],
    "--precision bf16 --mesh model=2 --ranks 2": ["mesh model=2", "precision bf16", "float32"],
    "--device cuda --precision bf16": ["precision bf16", "strict"],
    "--backend nccl + mpi": ["backend nccl", "device cpu", "--device cuda"],
    "--share-device": ["share-device", "device cpu"],
    "--device cuda --simd avx2": ["simd avx2", "device cuda"],
    "--device cuda --threads 2": ["threads", "device cuda"],
    "--device cuda --exchange activations": ["exchange activations", "device cuda"],
    "--device cuda --audit-every 5": ["audit-every", "device cuda"],
    "--device cuda --products library": ["products library", "cuBLAS", "--reduction allreduce"],
    "--device cuda --precision tf32": ["precision tf32", "strict"],
    "--mesh batch=7": ["mesh", "batch=7"],
    "--mesh rows=1": ["mesh", "'rows'", "batch=N,model=M"],
    "--mesh model=0": ["mesh", "model"],
    "--mesh batch=": ["mesh", "batch"],
    "--mesh batch=1,batch=1": ["mesh", "batch", "twice"],
    "--mesh model=5": ["mesh model=5", "groups of 5"],
    "--mesh batch=2,model=2": ["mesh batch=2,model=2", "4 places"],
    "--products library": ["products library", "canonical", "--reduction allreduce"],
    "--reduction allreduce --audit-every 3": ["audit-every", "canonical"],
    "--reduction allreduce --exchange sums": ["exchange sums", "canonical"],
    "--exchange sums --audit-every 3": ["audit-every", "--exchange activations"],
    "--sentinel-steps 0": ["sentinel-steps", "0"],
    "--reduction allreduce --simd avx2": ["simd avx2", "--products strict"],
    "--label-column foo + mpi": ["--label-column foo: ", "is not a table", "leave it out"],
    "--header none": ["--header none: ", "is not a table"],
    "--separator tab": ["--separator tab: ", "is not a table"],
    "--ignore-columns a,b": ["--ignore-columns a,b: ", "is not a table"],
    "--category-columns foo": ["--category-columns foo: ", "is not a table of numbers and words"],
    "--standardize true": ["--standardize: ", "is not a table of numbers and words"],
    "--missing error": ["--missing error: ", "is not a table of numbers and words"],
    "--task regression": ["--task regression: ", "is not a table of numbers and words"],
    "--data synthetic --test-split 0.2 + mpi": ["--test-split 0.2: synthetic has a test set of its own", "leave it out"],
    "--data synthetic-rgb --format csv": ["--format csv: synthetic-rgb is built in", "leave it out"],
}


class BadInput(command.CommandTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        self.run_dir = self.folder / "run"

    def refuse(self, code, needles, *args, mpi=True):
        """Alone, on three threads and on two processes; nothing may be left of the run."""
        for options in (ALONE, THREADS, MPI)[:3 if mpi else 2]:
            if "--ranks" in args[0] and options:
                continue
            with self.subTest(**options):
                result = run("train --layers 4 --data", self.data, *args, "--run-dir",
                             self.run_dir, **options)
                self.assert_refused(result, code, needles)
                self.assertFalse(self.run_dir.exists())

    def damage(self, name, content):
        path = self.data / name
        path.unlink()
        if content == "fifo":
            os.mkfifo(path)
        elif content == "folder":
            path.mkdir()
        elif content == "link":
            path.symlink_to(self.folder / "nowhere")
        elif content is not None:
            path.write_bytes(content)

    def test_damaged_files(self):
        for case, (name, content, needles) in DAMAGED_FILES.items():
            with self.subTest(case=case):
                shutil.rmtree(self.data, ignore_errors=True)
                files.write_set(self.data)
                self.damage(name, content)
                # Without its images, a labels file is what can be named.
                named = name if content is not None else name.split("-")[0]
                self.refuse(65, [self.data, named, "remedy:", *needles], "", mpi="mpi" in case)

    def test_any_flipped_byte_of_gzip_is_found(self):
        files.write_set(self.data, zipped=True)
        path = self.data / f"{TRAIN[0]}.gz"
        whole = path.read_bytes()
        for at in (*range(10, len(whole) - 8, 25), len(whole) - 6, len(whole) - 2):
            with self.subTest(at=at):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
                self.refuse(65, [path, "byte", "remedy:"], "", mpi=at == 10)

    def test_folders(self):
        file = self.folder / "file"
        file.write_text("")
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        empty = self.folder / "empty"
        empty.mkdir()
        only_train = files.write_set(self.folder / "only-train")
        for name in TEST:
            (only_train / name).unlink()
        twice = files.write_set(self.folder / "twice")
        shutil.copy(twice / TRAIN[0], twice / "train.images-idx3-ubyte")
        for data, needles in ((self.folder / "nowhere", ["no such file or folder"]),
                              (file, ["not a folder"]), (fifo, ["is a stream"]),
                              (empty, ["empty"]), (only_train, ["test"]), (twice, ["train"])):
            with self.subTest(data=data.name):
                self.data = data
                self.refuse(65, [data, "remedy:", *needles], "", mpi=data in (empty, fifo))

    def test_settings(self):
        files.write_set(self.data)
        for case, needles in SETTINGS.items():
            setting = case.removesuffix(" + mpi")
            with self.subTest(setting=setting):
                self.refuse(2, needles, setting, mpi=setting != case)

    def test_more_classes_mend_labels_out_of_range(self):
        files.write_set(self.data)
        (self.data / TRAIN[1]).write_bytes(labels(20, 12))
        self.refuse(65, "--classes 12", "--classes 11", mpi=False)
        made = self.train("--layers 4 --data", self.data)  # as many as the labels say
        self.assertEqual(made.summary["parameters"], 16 * 4 + 4 + 4 * 12 + 12)

    def test_what_a_limit_leaves_out_does_no_harm(self):
        files.write_set(self.data)
        (self.data / TRAIN[1]).write_bytes(labels(20, 12))
        self.train("--layers 4 --train-limit 10 --data", self.data)

    def test_a_test_loss_that_is_not_finite(self):
        for options in (ALONE, MPI):
            with self.subTest(**options):
                run_dir = self.folder / f"run-{len(options)}"
                result = run("train", command.SMALL, "--steps 1 --learning-rate 1e38 --run-dir",
                             run_dir, **options)
                self.assert_refused(result, 76, ["diverged", "remedy:"])
                self.assertEqual(command.Run(run_dir).summary["status"], "failed")

    def test_divergence_keeps_what_was_recorded(self):
        for options in (THREADS, MPI):
            with self.subTest(**options):
                run_dir = self.folder / next(iter(options))
                result = run("train", command.SMALL, "--learning-rate 1e30 --checkpoint-every 1 "
                             "--run-dir", run_dir, **options)
                self.assert_refused(result, 76, ["diverged at step", "the loss is not finite: rank ",
                                                 "in the output of layer ", "checkpoints saved before", "remedy:"])
                made = command.Run(run_dir)
                summary = made.summary
                self.assertEqual((summary["status"], summary["exit_code"]), ("failed", 76))
                self.assertIn("the loss is not finite: rank ", summary["cause"])
                self.assertEqual(len(made.checkpoints), len(made.metrics), str(result))
                self.assertGreater(len(made.checkpoints), 0)
                for path in made.checkpoints:
                    files.read_safetensors(path / "model.safetensors")

    def test_a_step_that_is_not_finite_ends_the_job_or_is_skipped(self):
        self.data.mkdir()
        numbers = random.Random(1)
        for name, records in (("train.csv", 400), ("test.csv", 100)):
            rows = [[i % 3] + [round(numbers.gauss(i % 3, 1), 4) for _ in range(8)]
                    for i in range(records)]
            if name == "train.csv":
                rows[77][1:] = [3e38] * 8  # too much for a layer's output
                rows[300][4] = 1e24        # too much for a gradient's square
            rows.insert(0, ["label"] + [f"x{i}" for i in range(8)])
            text = "".join(",".join(map(str, row)) + "\n" for row in rows)
            (self.data / name).write_text(text)
        job = ("--classes 10 --standardize false --layers 16,3 --batch-size 20 --epochs 2 --data", self.data)
        result = run("train", *job, "--run-dir", self.run_dir, **MPI)
        self.assert_refused(result, 76, ["diverged at step ", " has the first such value in the output "
                                         "of layer 1 (dense 16), for record 77", "--on-nonfinite skip"])
        self.assertNotIn("checkpoints", result.err)  # none was due

        # Only one rank's slice of the weights has the value, or sums that have it.
        text = (self.data / "train.csv").read_text().splitlines()
        text[78] = text[1]
        (self.folder / "alone").mkdir()
        (self.folder / "alone/train.csv").write_text("\n".join(text) + "\n")
        (self.folder / "alone/test.csv").write_text((self.data / "test.csv").read_text())
        alone = ("--classes 10 --standardize false --layers 3 --batch-size 20 --epochs 2 --ranks 3 --data",
                 self.folder / "alone", "--run-dir", self.folder / "run-alone")
        self.assert_ends(run("train", *alone, "--exchange activations"), 76)
        self.assert_ends(run("train", *alone[:-1], self.folder / "skip-alone", "--on-nonfinite skip"), 0)

        parts = run("train", *job, "--micro-batch 3 --run-dir", self.folder / "parts", **MPI)
        self.assertEqual(parts.err.splitlines()[:2], result.err.splitlines()[:2])

        skip = (*job, "--on-nonfinite skip")
        whole = self.train(*skip, name="whole", threads=3)
        skipped = [line for line in whole.metrics if "skipped" in line]
        self.assertEqual(whole.summary["skipped_steps"], 4)
        self.assertEqual([line["loss"] is None for line in skipped].count(True), 2)
        for options in (ALONE, {"ranks": 5}):
            with self.subTest(**options):
                name = f"on-{len(options)}"
                self.train(*skip, f"--micro-batch 7 --steps {skipped[1]['step']}", name=name, **options)
                result = run("train --resume-with steps=40 --resume", self.folder / name, **options)
                self.assertEqual(result.code, 0, str(result))
                made = command.Run(self.folder / name)
                self.assertEqual(made.summary["weights_hash"], whole.summary["weights_hash"])
                self.assertEqual(made.summary["skipped_steps"], 4)
                self.assertEqual([line["loss"] for line in made.metrics],
                                 [line["loss"] for line in whole.metrics])
                self.assertIn("for record 77", str(result))

    def test_data_that_is_damaged_on_one_rank_alone(self):
        here, there = self.folder / "here", self.folder / "there"
        files.write_set(here / "data")
        files.write_set(there / "data")
        (there / "data" / TRAIN[0]).write_bytes(images(20)[:100])
        train = ("train --layers 4 --data data --run-dir", self.run_dir)
        argv = (mpirun(1, *train, options=f"-wdir {here}") + [":"]
                + mpirun(1, *train, options=f"-wdir {there}")[2:])
        self.assert_refused(command.call(argv), 65, ["rank 1", TRAIN[0], "byte 100", "remedy:"])
        self.assertFalse(self.run_dir.exists())

    def test_a_link_to_nothing(self):
        link = self.folder / "runs"
        link.symlink_to(self.folder / "purged")
        for folder in (link, link / "one"):
            for options in (ALONE, THREADS):
                result = run("train", command.SMALL, "--steps 1 --run-dir", folder, **options)
                self.assert_refused(result, 74, [f"{link}: is a link to {self.folder / 'purged'}, which does not exist",
                                                 "make that folder, or remove the link"])


if __name__ == "__main__":
    unittest.main()

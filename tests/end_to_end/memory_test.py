"""Data larger than the memory a process may have trains, and no epoch leaves anything behind.

`Memory` runs with all tests; `Large`, with 4 GB of data, is labelled slow.
"""

import shutil
import struct
import time
import unittest
from pathlib import Path

import command
import files

MB = 1_000_000


def write_sparse(folder, records, side):
    """An IDX set whose training images are a hole in the file: no time, no disk."""
    files.write_set(folder, train=1, test=10, side=side)
    with open(folder / files.TRAIN[0], "wb") as images:
        images.write(struct.pack(">4I", 0x803, records, side, side))
        images.truncate(16 + records * side * side)
    (folder / files.TRAIN[1]).write_bytes(files.labels(records))
    return folder


class LimitedTest(command.CommandTest):
    def limited(self, limit, *args, name="run", wait=command.finish, **options):
        """A run of `train` in a process of at most `limit` bytes of private memory.

        RLIMIT_DATA counts what a process could write to, not what it merely reserves.
        """
        folder = self.folder / name
        argv = command.words("bash -c", Path(f'ulimit -d {limit // 1024} && exec "$@"'), "limited",
                             command.binary, "train --layers none --progress off --run-dir", folder,
                             *args)
        result = wait(command.start(argv, **options))
        self.assert_ends(result, 0)
        return command.Run(folder, result)


class Memory(LimitedTest):
    def peak(self, name, *args, limit=150 * MB):
        return self.limited(limit, "--threads 1", *args, name=name).summary["peak_rss_bytes"]

    def check(self, name, small, large, records, flags=""):
        """Ten times the data is 300 MB: an index of labels and places is all that may grow."""
        few = self.peak(f"{name}-small", "--epochs 1 --data", small, flags)
        many = self.peak(f"{name}-large", "--epochs 1 --data", large, flags)
        longer = self.peak(f"{name}-longer", "--epochs 2 --data", large, flags)
        self.assertLess(many, few + 2 * 12 * records + 4 * MB)  # twice: while the index grows
        self.assertLess(longer, many + 3 * MB)

    def test_images_larger_than_memory(self):
        small = write_sparse(self.folder / "small", 1800, 128)
        large = write_sparse(self.folder / "large", 18_000, 128)
        self.check("idx", small, large, 18_000)
        self.peak("ranks", "--steps 20 --ranks 2 --data", large, limit=200 * MB)  # evaluation alone: 2 x 67 MB

    def test_files_that_are_indexed(self):
        for name, records in (("tfrecord", 370_000), ("csv", 165_000)):
            with self.subTest(name=name):
                small, large = self.folder / f"{name}-s", self.folder / f"{name}-l"
                for folder, count in ((small, records // 10), (large, records)):
                    self.succeed("generate", folder, f"--format {name} --test-limit 10",
                                 f"--train-limit {count}")
                size = sum(path.stat().st_size for path in large.glob("train*"))
                self.assertGreater(size, 300 * MB)
                self.check(name, small, large, records, "--batch-size 512 --shuffle none")
                shutil.rmtree(large)

    def test_the_limit_holds(self):
        data = files.write_set(self.folder / "data", train=20)
        with self.assertRaisesRegex(AssertionError, "out of memory|bad_alloc|bytes"):
            self.limited(150 * MB, "--layers 8000,8000 --data", data)

    @unittest.skipUnless(command.MPI, "LOCKSTEP_MPI=OFF")
    def test_one_rank_with_less_memory(self):
        train = command.words("train", command.SMALL, "--layers 3000,3000 --backend mpi --run-dir", self.folder / "run")
        result = command.call([*command.mpirun(2, *train), *command.words(": -n 1 prlimit --as=400000000"),
                               str(command.binary), *train])
        self.assert_refused(result, 2, ["rank 2 on ", "out of memory", "use narrower layers", "remedy"])


class Large(LimitedTest):
    def test_four_gigabytes_with_one_of_memory(self):
        data = write_sparse(self.folder / "data", 262_144, 128)
        self.assertGreater((data / files.TRAIN[0]).stat().st_size, 4 * 2**30)
        samples = []
        made = self.limited(1000 * MB, "--epochs 2 --batch-size 512 --data", data,
                            wait=lambda process: self.watched(process, samples))
        self.assertEqual(made.summary["examples"], 2 * 262_144)
        self.assertEqual(made.summary["data"]["bytes_read"], [2 * (4 << 30)])
        self.assertLess(made.summary["peak_rss_bytes"], 300 * MB)
        quarter = len(samples) // 4
        self.assertGreater(quarter, 10)
        self.assertLess(max(samples[-quarter:]), max(samples[quarter:2 * quarter]) + 2 * MB)

    @staticmethod
    def watched(process, samples, limit=1200):
        """Waits for the process, and appends its resident bytes, without the page cache."""
        end = time.monotonic() + command.seconds(limit)
        while process.poll() is None and time.monotonic() < end:
            status = Path(f"/proc/{process.pid}/status").read_text().split("RssAnon:")
            if len(status) == 2:
                samples.append(1024 * int(status[1].split()[0]))
            time.sleep(0.1)
        return command.finish(process, 1)


if __name__ == "__main__":
    unittest.main()

"""--augment and --prefetch: the same weights on any number of ranks; --augment changes them."""

import struct
import unittest

import command
import files
from command import SMALL, run
from files import TEST, TRAIN

AUGMENT = "--augment shift=2,rotate=10,noise=0.05"


class Augment(command.CommandTest):
    def hash_of(self, *args, name, **options):
        return self.train(SMALL, "--epochs 2", *args, name=name, **options).summary["weights_hash"]

    def test_one_hash_for_any_ranks(self):
        alone = self.hash_of(AUGMENT, name="alone")
        for options in ({"threads": 2}, {"threads": 3}, {"threads": 5}, {"ranks": 2}, {"ranks": 3}):
            with self.subTest(**options):
                name = "-".join(f"{key}{value}" for key, value in options.items())
                self.assertEqual(self.hash_of(AUGMENT, name=name, **options), alone)
        self.assertEqual(self.hash_of(AUGMENT, "--prefetch 0", name="direct"), alone)

    def test_every_change_counts(self):
        settings = ("none", "shift=2", "rotate=10", "noise=0.05", "shift=2,rotate=10")
        hashes = {self.hash_of("--augment", one, name=one) for one in settings}
        self.assertEqual(len(hashes), len(settings))
        self.assertIn(self.hash_of(name="default"), hashes)

    def test_evaluation_is_not_touched(self):
        made = self.train(SMALL, AUGMENT)
        found = self.succeed("evaluate", made.folder, "--data synthetic --test-limit 200 --json")
        self.assert_says(found.out, f'"loss":{made.summary["epochs"][-1]["test_loss"]}', found)
        self.assert_says(made.result.out, ["augment", "shift=2"], made.result)

    def test_prefetch_changes_no_weights(self):
        data = self.folder / "digits"
        self.succeed("generate", data, "--train-limit 600 --test-limit 200")
        expected = self.hash_of("--prefetch 0", name="none")
        for source in ("synthetic", data):
            for depth, options in ((1, {}), (3, {"threads": 3}), (2, {"ranks": 2})):
                with self.subTest(source=source, depth=depth):
                    name = f"{'files' if source == data else 'drawn'}-{depth}"
                    found = self.hash_of("--data", source, f"--prefetch {depth}", name=name,
                                         **options)
                    self.assertEqual(found, expected)

    def test_refusals(self):
        refusals = (("--augment shfit=2", ["augment", "did you mean 'shift'"]),
                    ("--augment shift", ["amount"]),
                    ("--augment noise=-1", ["noise", "-1"]),
                    ("--augment rotate=360", ["rotate", "180"]),
                    ("--augment shift=28", ["augment shift=28", "images of 28x28", "below 28"]),
                    ("--prefetch -1", ["prefetch"]),
                    ("--prefetch 1025", ["prefetch", "1024"]))
        for setting, needles in refusals:
            for options in ({}, {"threads": 3}, {"ranks": 2}):
                with self.subTest(setting=setting, **options):
                    self.assert_refused(run("train", SMALL, setting, **options), 2, needles)

    def test_records_that_are_no_images(self):
        data = self.folder / "rows"
        data.mkdir()
        for names, count in ((TRAIN, 20), (TEST, 10)):
            content = bytes(i * 37 % 256 for i in range(16 * count))
            (data / names[0]).write_bytes(struct.pack(">3I", 0x802, count, 16) + content)
            (data / names[1]).write_bytes(files.labels(count))
        for options in ({}, {"threads": 3}):
            result = run("train --layers 4 --augment rotate=5 --data", data, "--run-dir",
                         self.folder / "refused", **options)
            self.assert_refused(result, 2, ["augment", "16 features", "remedy:"])
        self.train("--layers 4 --augment noise=0.1 --data", data, name="noise")

    def test_a_file_that_shrinks_while_it_is_read_ahead(self):
        data = files.write_set(self.folder / "data", train=4000)
        began = self.start(command.words(
            command.binary, "train --layers 300 --epochs 100000 --progress off --batch-size 8 "
            "--data", data, "--run-dir", self.folder / "cut"))
        self.wait_until((self.folder / "cut" / "metrics.jsonl").exists, began, "metrics")
        with open(data / TRAIN[0], "r+b") as file:
            file.truncate(500)
        self.assert_refused(command.finish(began), 65, [data / TRAIN[0], "ends here"])


if __name__ == "__main__":
    unittest.main()

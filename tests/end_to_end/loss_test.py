"""Losses from the command: one hash for any ranks, what is recorded and evaluated, and what is refused."""

import json
import unittest

import command
from command import run

FLAGS = "--test-split 0.2 --batch-size 16 --layers 8 --epochs 2 --progress off"
LOSSES = {  # flags and the name in network.json
    "--loss squared-error": "mean squared error of values",
    "--loss absolute-error": "mean absolute error of values",
    "--loss huber": "huber loss of values, delta 1.0",
    "--loss huber --huber-delta 0.25": "huber loss of values, delta 0.25",
}
REFUSED = {
    "--loss mse": ["loss", "'mse' is none of auto|cross-entropy"],
    "--loss huber": ["--loss huber", "there are classes", "--task regression"],
    "--huber-delta 2": ["--huber-delta", "--loss huber"],
    "--loss squared-error --label-smoothing 0.1": ["--label-smoothing", "--loss squared-error"],
}


class Losses(command.CommandTest):
    def table(self):
        """Two numbers to predict, one of them with outliers."""
        path = self.folder / "table.csv"
        rows = [(x * 7 % 23, x * x % 19) for x in range(90)]
        path.write_text("a,b,y,z\n" + "".join(
            f"{a},{b},{2 * a - b + (300 if i % 17 == 0 else 0) + 0.5},{a * b / 4}\n" for i, (a, b) in enumerate(rows)))
        return path

    def test_one_hash_for_any_ranks(self):
        data = ("--data", self.table(), "--label-column y,z", FLAGS)
        hashes = {}
        for flags, name in LOSSES.items():
            one = self.train(*data, flags, name=f"one{flags}".replace(" ", ""))
            hashes[one.summary["weights_hash"]] = flags
            self.assertEqual(json.loads((one.checkpoints[-1] / "network.json").read_text())["loss"], name)
            for world in ({"threads": 3}, {"threads": 5}, {"ranks": 2} if command.MPI else {"threads": 2}):
                with self.subTest(flags=flags, **world):
                    other = self.train(*data, flags, name=f"other{flags}{world}".replace(" ", ""), **world)
                    self.assertEqual(other.summary["weights_hash"], one.summary["weights_hash"])
            epoch = one.summary["epochs"][-1]
            self.assertEqual(epoch["train_r2"] is None, "squared" not in flags)
            self.assertIsInstance(epoch["test_r2"], float)
            result = self.succeed("evaluate", one.folder, "--data", self.table(), "--test-split 0.2")
            self.assert_says(result.out, [f"loss {epoch['test_loss']:.6f}"], result)
        self.assertEqual(len(hashes), len(LOSSES))
        plain = self.train(*data, name="plain")
        self.assertEqual(hashes[plain.summary["weights_hash"]], "--loss squared-error")

    def test_the_squared_error_of_classes(self):
        args = "--data synthetic --train-limit 300 --test-limit 60 --batch-size 50 --layers 8 --epochs 1 --progress off"
        one = self.train(args, "--loss squared-error", name="one")
        self.assertEqual(self.train(args, "--loss squared-error", name="three", threads=3).summary["weights_hash"],
                         one.summary["weights_hash"])
        self.assertLess(one.summary["epochs"][-1]["test_loss"], 1)
        for flags, texts in REFUSED.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", args, flags), 2, texts)

    def test_refusals_of_numbers(self):
        data = ("--data", self.table(), "--label-column y", FLAGS)
        for flags, texts in {"--loss cross-entropy": ["--loss cross-entropy", "there are no classes"],
                             "--loss huber --huber-delta 0": ["--huber-delta 0.0", "not above 0"],
                             "--label-smoothing 0.1": ["--label-smoothing", "there are no classes"]}.items():
            with self.subTest(flags=flags):
                self.assert_refused(run("train", *data, flags), 2, texts)


if __name__ == "__main__":
    unittest.main()
